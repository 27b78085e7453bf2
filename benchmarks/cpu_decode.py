"""What a decode step and a whole question cost on a CPU under every cache policy, against transformers' DynamicCache.

    python -m benchmarks.cpu_decode [--dtypes float32 bfloat16] [--threads 2] [--output FILE]

tiny-omni has read a question about a four-page document (2436 visual tokens). Steps with DynamicCache and SDPA
and steps with a packed cache take turns in one process, so that whatever else the machine does meets both; first with
the cache as it is read where there is a C compiler ("compiled"), then with the same cache read by plain torch. A ratio
is the median of a policy's steps over the median of DynamicCache's steps between them. Whole questions, page processing
and prompt included, take turns too. On a machine that does other things, `chrt -r 1` before the command keeps threads
from waiting for these.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from benchmarks.ask_policies import ROOT, find_document, git_hash, machine
from kvmm import KVMMCache, load_model, policies
from kvmm.kernels.attention.backends.cpu import kernel as native
from kvmm.models import Conversation
from kvmm.models.caches import DYNAMIC
from kvmm.models.loading import TINY_MODEL

QUESTION = "What is the total?"
ASKED = ("balanced", "small", "oscar2", "oscar4-2", "kivi4")
WARM_UP = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pdf", type=Path, help="a document; default: as in benchmarks.ask_policies")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--policies", nargs="+", default=list(policies()))
    parser.add_argument("--steps", type=int, default=50, help="timed steps of each kind (default: 50)")
    parser.add_argument("--asked", nargs="*", default=list(ASKED), help="policies of the whole questions")
    parser.add_argument("--rounds", type=int, default=3, help="whole questions of each kind (default: 3)")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "cpu_decode.json")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    media, document = find_document(args.pdf)
    results = {}
    for dtype in args.dtypes:
        model, processor = load_model(TINY_MODEL, device="cpu", dtype=dtype)
        conversation = Conversation(model, processor, DYNAMIC)
        *_, _ = conversation.ask(QUESTION, media, max_new_tokens=1)
        inputs = conversation.prompt_inputs()
        dynamic = Steps(model, inputs, DYNAMIC)
        results[dtype] = {
            "steps": {name: steps(dynamic, Steps(model, inputs, name), args.steps) for name in args.policies},
            "questions": {name: questions(model, processor, media, name, args.rounds) for name in args.asked},
        }
        show(dtype, results[dtype])
    report = {
        "command": shlex.join(["python", "-m", "benchmarks.cpu_decode", *sys.argv[1:]]),
        "document": document,
        "pages": len(media),
        "steps": args.steps,
        "rounds": args.rounds,
        "compiled": native.available(),
        "machine": machine(args.threads, torch.device("cpu")),
        "scheduling": scheduling(),
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy")},
        "git_hash": git_hash(),
        "date": time.strftime("%Y-%m-%d"),
        "results": results,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def scheduling() -> dict[str, Any]:
    """What else the machine did, and whether this process waited for it."""
    realtime = hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    return {"load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None, "realtime": realtime}


class Steps:
    """Greedy steps behind one prompt."""

    def __init__(self, model: PreTrainedModel, inputs: dict[str, torch.Tensor], policy: str):
        self.model = model
        if policy == DYNAMIC:
            self.cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        else:
            self.cache = KVMMCache.for_model(model, policy)
        with torch.inference_mode():
            logits = model(**inputs, past_key_values=self.cache).logits
        self.token = logits[:, -1:].argmax(-1)
        self.mask = inputs["attention_mask"]
        self.position = int(inputs["position_ids"].max())

    def copy(self) -> Steps:
        """The same place again."""
        twin = copy.copy(self)
        twin.cache = copy.deepcopy(self.cache)
        return twin

    def __call__(self) -> float:
        """Seconds of the next one."""
        self.position += 1
        self.mask = torch.cat([self.mask, self.mask.new_ones(1, 1)], 1)
        position = torch.full((3, 1, 1), self.position)
        begin = time.perf_counter()
        with torch.inference_mode():
            logits = self.model(
                input_ids=self.token, attention_mask=self.mask, position_ids=position, past_key_values=self.cache
            ).logits
        seconds = time.perf_counter() - begin
        self.token = logits[:, -1:].argmax(-1)
        return seconds


@contextmanager
def plain_torch() -> Iterator[None]:
    """As on a machine without a C compiler."""
    known, native.library = native.library, lambda: None
    try:
        yield
    finally:
        native.library = known


def steps(dynamic: Steps, packed: Steps, count: int) -> dict[str, float]:
    """Medians in seconds, and ratios."""
    found = {}
    for kind, reading in (("compiled", nullcontext), ("torch", plain_torch)):
        twin, seconds, reference = dynamic.copy(), [], []
        for number in range(WARM_UP + count):
            expected = twin()
            with reading():
                taken = packed()
            if number >= WARM_UP:
                reference.append(expected)
                seconds.append(taken)
        taken, expected = statistics.median(seconds), statistics.median(reference)
        found |= {f"{kind}_seconds": taken, f"{kind}_dynamic_seconds": expected, f"{kind}_ratio": taken / expected}
    return found


def questions(model: PreTrainedModel, processor: Any, media: list, policy: str, rounds: int) -> dict[str, Any]:
    """Medians in seconds of whole questions, and their ratio."""
    seconds: dict[str, list[float]] = {DYNAMIC: [], policy: []}
    for _ in range(rounds):
        for name, times in seconds.items():
            *_, answer = Conversation(model, processor, name).ask(QUESTION, media)
            times.append(answer.seconds)
    found = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "dynamic_seconds": found[DYNAMIC],
        "seconds": found[policy],
        "ratio": found[policy] / found[DYNAMIC],
        "answer": answer.text,
    }


def show(dtype: str, results: dict[str, dict[str, dict[str, Any]]]) -> None:
    print(f"{dtype:<18}{'dynamic ms':>12}{'compiled':>10}{'torch':>8}{'question':>10}")
    for name, row in results["steps"].items():
        asked = results["questions"].get(name)
        columns = f"{row['compiled_ratio']:10.2f}{row['torch_ratio']:8.2f}"
        columns += f"{asked['ratio']:10.2f}" if asked else ""
        print(f"{name:<18}{1000 * row['compiled_dynamic_seconds']:12.2f}{columns}", flush=True)


if __name__ == "__main__":
    main()
