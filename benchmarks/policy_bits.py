"""Measure what every preset holds of the four-page sample with tiny-omni, for the app's list of policies.

The question is asked as the app asks it, and the cache is measured after the answer, as the app shows it.

python -m benchmarks.policy_bits                     # writes kvmm/policy/bits.json
python -m benchmarks.policy_bits --policies NAME ... # adds presets to the file, of the same model
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from kvmm import policies
from kvmm.memory_text import memory_text
from kvmm.models import load_model
from kvmm.models.loading import TINY_MODEL
from kvmm.policy.costs import BITS_PATH
from kvmm.samples import SampleQuestion, load_samples
from kvmm.ui.chat.session import Session, UserMessage
from kvmm.ui.models import Models
from kvmm.ui.settings import Settings

KIND = "pdf"
FIGURES = ("bits_per_value", "packed_bits_per_value", "ratio", "held_nbytes", "nbytes_dense", "tokens", "packed_tokens")


def sample() -> SampleQuestion:
    """The sample of the app that is a document."""
    return next(one for one in load_samples() if one.kind == KIND)


def measure(session: Session, asked: SampleQuestion, policy: str) -> dict[str, Any]:
    """Ask the sample's question in a new conversation; the figures of ``FIGURES`` and the answer."""
    session.reset()
    message = UserMessage(asked.question, [str(path) for path in asked.files])
    *_, last = session.ask(message, Settings(policy=policy))
    report = last.progress.memory.to_dict()
    print(f"{policy:18} {report['ratio']:5.2f}x  {memory_text(report)}  {last.progress.text}", flush=True)
    return {**{name: round(report[name], 4) for name in FIGURES}, "answer": last.progress.text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policies", nargs="+", choices=list(policies()), help="default: all presets, anew")
    named = parser.parse_args().policies
    model, processor = load_model(TINY_MODEL, device="cpu")
    session, asked = Session(Models.of(model, processor)), sample()
    rows = json.loads(BITS_PATH.read_text(encoding="utf-8"))["policies"] if named else {}
    rows |= {name: measure(session, asked, name) for name in named or policies()}
    rows = {name: rows[name] for name in policies() if name in rows}
    pages = len(session.talk.media)
    result = {
        "command": "python -m benchmarks.policy_bits",
        "document": f"a PDF of {pages} pages",
        "file": asked.files[0].name,
        "question": asked.question,
        "model": TINY_MODEL,
        "dtype": str(model.dtype).removeprefix("torch."),
        "policies": rows,
    }
    BITS_PATH.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
