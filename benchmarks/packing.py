"""What packing a four-page document adds to reading it, under every cache policy.

    python -m benchmarks.packing [--policies ...] [--threads 2] [--rounds 7] [--output benchmarks/results/packing.json]

Reading (page processing, vision tower, decoder) and packing (``cache.pack()``, all layers) are timed in one process, in
rounds that go through all policies in turn; ratios are of medians. On a CPU with a C compiler ``torch_seconds`` is
packing by torch alone, and ``torch_ratio`` how many times as long that takes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import torch
from transformers.utils import logging

from benchmarks.ask_policies import ROOT, find_document, machine
from kvmm import policies
from kvmm.kernels import quantize
from kvmm.models import load_model
from kvmm.models.documents import Document
from kvmm.models.loading import TINY_MODEL
from kvmm.models.prompting import encode_question


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    """Command line; prints one line a policy and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub id; default: tiny-omni")
    parser.add_argument("--policies", nargs="+", default=list(policies()))
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds after one warm-up")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "packing.json")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)

    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    model, processor = load_model(options.model or TINY_MODEL, device=options.device, dtype=options.dtype)
    pages, name = find_document(None)
    images = [page.data for page in pages]
    reading: list[float] = []
    packing: dict[str, list[float]] = {policy: [] for policy in options.policies}
    in_torch: dict[str, list[float]] = {policy: [] for policy in options.policies}
    compared = options.device == "cpu" and quantize.compiled()
    for round_index in range(options.rounds + 1):
        begin = time.perf_counter()
        document = Document(model, encode_question(model, processor, "What is the total?", images))
        _wait(model)
        read = time.perf_counter() - begin
        for policy in options.policies:
            seconds = _pack(document, policy)
            with _without_compiler():
                others = _pack(document, policy) if compared else 0.0
            if round_index:  # the first round warms up
                packing[policy].append(seconds)
                in_torch[policy].append(others)
        if round_index:
            reading.append(read)
    median = statistics.median(reading)
    results = {
        policy: {"seconds": statistics.median(times), "share_of_reading": statistics.median(times) / median}
        for policy, times in packing.items()
    }
    if compared:
        for policy, times in in_torch.items():
            results[policy]["torch_seconds"] = statistics.median(times)
            results[policy]["torch_ratio"] = results[policy]["torch_seconds"] / results[policy]["seconds"]
    report = {
        "command": f"python -m benchmarks.packing {shlex.join(given)}".strip(),
        "document": name,
        "pages": len(pages),
        "tokens": document.length,
        "reading_seconds": median,
        "reading_seconds_range": [min(reading), max(reading)],
        "rounds": options.rounds,
        "dtype": str(model.dtype).removeprefix("torch."),
        "machine": machine(options.threads, model.device),
        "versions": {package: version(package) for package in ("torch", "transformers")},
        "results": results,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    print(f"reading {document.length} tokens: {median:.2f} s")
    for policy, row in results.items():
        beside = f"  {row['torch_ratio']:5.2f} x in torch" if compared else ""
        print(f"{policy:18} {1000 * row['seconds']:7.0f} ms  {row['share_of_reading']:6.1%}{beside}")


def _pack(document: Document, policy: str) -> float:
    """Seconds of packing."""
    cache = document.unpacked(policy)
    _wait(document.model)
    begin = time.perf_counter()
    cache.pack()
    _wait(document.model)
    return time.perf_counter() - begin


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Pages are cut for torch, as where there is no compiler."""
    compiled, quantize.compiled = quantize.compiled, lambda: False
    try:
        yield
    finally:
        quantize.compiled = compiled


def _wait(model: torch.nn.Module) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
