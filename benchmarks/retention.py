"""Spherical KV's ablations of retention, A1 to A5, at equal bytes.

    python -m benchmarks.retention --data tests/data/heldout/sample.jsonl [--limit 24] [--shares 0.8 0.6 0.4]

Pages are packed before the question, under a budget that is a share of what the same policy holds without one. Then the
question and its answer are read (teacher forcing), and the distributions compared with full precision on the answer:
KL(full || policy), and how often the likeliest token is the same. Without ``--model`` the embedded model answers, with
the codebooks of its calibration file.

A1: tables against rebuilt keys, on the same codes. A2: joint, only dropping, only lowering, and lowering first. A3: one
tier for all heads against tiers of their own, with the share of a layer's bytes that its largest head holds. A4: pages
of the document's prefix and end weigh more. A5: the margin gate.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers

from kvmm import KVMMError, KVPolicy, RetentionSettings, get_policy
from kvmm.analysis.drift.prompts import read_lines, shortened
from kvmm.calibration import model_fingerprint
from kvmm.media import load_image
from kvmm.models import load_model
from kvmm.models.caches import DYNAMIC
from kvmm.models.documents import Document, read_on
from kvmm.models.prompting import encode_question
from kvmm.policy import KVSpec, spec

VARIANTS = {
    "joint": RetentionSettings(),
    "A2 retention only": RetentionSettings(mode="retain"),
    "A2 quantisation only": RetentionSettings(mode="quantize"),
    "A2 decoupled": RetentionSettings(mode="decoupled"),
    "A3 heads alike": RetentionSettings(heads="uniform"),
    "A4 prefix and end weigh 4": RetentionSettings(segment_weights=(4.0, 1.0, 4.0)),
    "A5 margin gate": RetentionSettings(margin_gate=True),
}


def policies() -> dict[str, KVPolicy]:
    """The paper's setting, values exact; and product codes for both, where lowering keys frees what counts."""
    product = KVSpec(spec("spherical", 2), spec("spherical", 1))
    codes = KVPolicy("spherical 2 and 1", "", product, product, product, product)
    return {"spherical-high": get_policy("spherical-high"), codes.name: codes}


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON. What the user can put right is one line and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub id; default: the embedded model")
    parser.add_argument("--data", type=Path, required=True, help="questions about pages, JSON lines")
    parser.add_argument("--limit", type=int, default=24, help="questions, spread evenly over the data")
    parser.add_argument("--dtype", help="float32, bfloat16 or float16; default: chosen for the device")
    parser.add_argument(
        "--shares", type=float, nargs="+", default=[0.8, 0.6, 0.4], help="of the bytes without a budget"
    )
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    try:
        run(options)
    except KVMMError as error:
        print(f"retention: {error}", file=sys.stderr)
        sys.exit(2)


@torch.no_grad()
def run(options: argparse.Namespace) -> None:
    """Measure, print and write."""
    if options.threads:
        torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model, processor = load_model(options.model, dtype=options.dtype)
    lines = shortened(
        [line for line in read_lines(options.data) if line["images"] and not line["audio"]], options.limit
    )
    rows: dict[tuple, list[dict[str, float]]] = {}
    document: tuple[Any, Document | None] = (None, None)
    for number, line in enumerate(lines, start=1):
        images = [load_image(path) for path in line["images"]]
        inputs = encode_question(model, processor, line["question"], images)
        if document[0] != line["images"]:
            document = (line["images"], Document(model, inputs))
        answer = processor.tokenizer(line["answers"][0], return_tensors="pt", add_special_tokens=False)["input_ids"]
        for key, found in measured(model, inputs, document[1], answer, options.shares):
            rows.setdefault(key, []).append(found)
        print(f"{number} of {len(lines)} questions", file=sys.stderr)
    results = [
        dict(zip(("policy", "share", "variant"), key, strict=True))
        | {"questions": len(found)}
        | {name: round(fmean(one[name] for one in found), 5) for name in found[0]}
        for key, found in rows.items()
    ]
    for row in results:
        numbers = "  ".join(
            f"{name} {row[name]:>10.4f}" for name in ("nbytes", "kl", "agreement", "dropped", "lowered")
        )
        print(
            f"{row['policy']:18} {row['share']:4} {row['variant']:26} {numbers}  head {row['largest_head_share']:.3f}"
        )
    if options.output:
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
        report = {
            "settings": {name: value for name, value in settings.items() if name != "output"},
            "model": {"name": options.model or "the embedded model", "fingerprint": model_fingerprint(model)},
            "device": str(model.device),
            "dtype": str(model.dtype).removeprefix("torch."),
            "versions": {name: version(name) for name in ("torch", "transformers")},
            "results": results,
        }
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def measured(
    model: Any, inputs: dict[str, torch.Tensor], document: Document, answer: torch.Tensor, shares: Sequence[float]
) -> Iterator[tuple[tuple[str, float, str], dict[str, float]]]:
    """``((policy, share, variant), numbers)`` of one question; variants that cannot meet a budget are left out."""

    def read(policy: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        cache = document.cache(policy)
        held = {} if policy == DYNAMIC else {"nbytes": cache.memory().nbytes}
        if held and policy.budget is not None:
            held |= cache.retention_report()
        logits = read_on(model, inputs, cache, answer)[-answer.shape[1] - 1 : -1]
        return logits.float().log_softmax(-1), held

    full, _ = read(DYNAMIC)
    for name, policy in policies().items():
        free, held = read(policy)
        nbytes = held["nbytes"]
        yield (name, 1.0, "no budget"), _numbers(full, free, held)
        rebuilt = policy.map_specs(lambda kv: replace(kv, key=_rebuilt(kv.key)))
        yield (name, 1.0, "A1 rebuilt keys"), _numbers(full, *read(rebuilt))
        for share in shares:
            for variant, settings in VARIANTS.items():
                try:
                    found = read(replace(policy, budget=int(share * nbytes), retention=settings))
                except KVMMError:
                    continue
                yield (name, share, variant), _numbers(full, *found)


def _rebuilt(key: Any) -> Any:
    return replace(key, options=tuple(sorted({**dict(key.options), "reconstruct": True}.items())))


def _numbers(full: torch.Tensor, logits: torch.Tensor, held: dict[str, Any]) -> dict[str, float]:
    largest = [max(layer["share_by_head"]) for layer in held.get("layers", [])]
    return {
        "nbytes": held["nbytes"],
        "kl": float((full.exp() * (full - logits)).sum(-1).mean()),
        "agreement": float((full.argmax(-1) == logits.argmax(-1)).float().mean()),
        "dropped": held.get("dropped", 0),
        "lowered": held.get("lowered", 0),
        "largest_head_share": fmean(largest) if largest else 0.0,
    }


if __name__ == "__main__":
    main()
