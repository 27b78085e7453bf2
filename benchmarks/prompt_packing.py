"""What packing a long prompt costs beside reading it: Qwen3-8B's text shape, random weights, 32K tokens.

    python -m benchmarks.prompt_packing [--tokens 32768] [--policies rd2 oscar2 ...]

``prefill_ms`` is the forward pass over a prompt with transformers' ``DynamicCache`` (SDPA, logits of the last token).
``pack_ms`` is ``cache.pack()`` of all layers of random keys and values. ``extra_bytes`` is how far packing raises
memory above what the unpacked cache took; ``extra_layers`` counts it in keys and values of one layer (``layer_bytes``).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from benchmarks.report import Report, add_common_options, table
from benchmarks.stepping import prompt_modality
from benchmarks.synthetic import build_model, calibration_file, fill, kv_shape
from benchmarks.timing import bandwidth, free_memory, synchronize
from kvmm import KVMMCache, get_policy


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2**15)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--policies", nargs="+", default=["rd2", "oscar2", "kivi2", "calibquant1-mean", "kitty"])
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds after one warm-up")
    add_common_options(parser, "prompt_packing")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if options.smoke:
        options.tokens, options.rounds = 512, 2

    torch.manual_seed(options.seed)
    report = Report("prompt_packing", given, options)
    report.run["bandwidth"] = bandwidth(options.device)
    model = build_model("qwen3-8b", options.device, toy=options.smoke)
    calibration = calibration_file(model)
    layers, heads, dim = kv_shape(model)
    layer_bytes = 2 * options.batch * heads * options.tokens * dim * model.dtype.itemsize
    prefill = [prefill_seconds(model, options.batch, options.tokens) for _ in range(options.rounds + 1)][1:]
    free_memory()
    for name in options.policies:
        row: dict[str, Any] = {"name": f"{options.batch}x{options.tokens} {name}", "policy": name}
        row |= {"tokens": options.tokens, "batch": options.batch, "layers": layers, "layer_bytes": layer_bytes}
        with report.guarded(row):
            runs = [pack_once(model, name, calibration, options) for _ in range(options.rounds + 1)]
            seconds, before, after = statistics.median(prefill), runs[-1]["before"], runs[-1]["nbytes"]
            packing = statistics.median(run["seconds"] for run in runs[1:])
            moved = layers * layer_bytes + after
            row |= {
                "prefill_ms": seconds * 1e3,
                "pack_ms": packing * 1e3,
                "share": packing / seconds,
                "rounds": options.rounds,
                "bytes": moved,
                "bandwidth": moved / packing,
                "floor_ms": moved / max(report.run["bandwidth"].values()) * 1e3,
                "cache_bytes": after,
            }
            if runs[-1]["peak"] is not None:
                extra = max(run["peak"] - before for run in runs[1:])
                row |= {"extra_bytes": extra, "extra_layers": extra / layer_bytes}
        free_memory()
    show(report)
    report.finish()


def prefill_seconds(model: nn.Module, batch: int, tokens: int) -> float:
    """Seconds of one forward pass over a random prompt."""
    model.set_attn_implementation("sdpa")
    ids = torch.randint(model.config.vocab_size, (batch, tokens), device=model.device)
    synchronize(model.device)
    begin = time.perf_counter()
    model(ids, past_key_values=DynamicCache(config=model.config), use_cache=True, logits_to_keep=1)
    synchronize(model.device)
    return time.perf_counter() - begin


def pack_once(model: nn.Module, name: str, calibration: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of packing a filled cache, memory before and at the peak, and bytes of the packed cache."""
    policy = get_policy(name)
    fitted = {"calibration": str(calibration)} if "rd" in {s.codec for s in policy.all_specs()} else {}
    cache = KVMMCache.for_model(model, policy, **fitted)
    modality = prompt_modality(policy, options.batch, options.tokens)
    cache.set_modality(modality)
    cache.announce(torch.zeros(*modality.shape, dtype=torch.long, device=model.device), None, None)
    fill(cache, model, options.batch, options.tokens)
    cuda = model.device.type == "cuda"
    if cuda:
        free_memory()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else None
    synchronize(model.device)
    begin = time.perf_counter()
    cache.pack()
    synchronize(model.device)
    seconds = time.perf_counter() - begin
    peak = torch.cuda.max_memory_allocated() if cuda else None
    return {"seconds": seconds, "before": before, "peak": peak, "nbytes": cache.memory().nbytes}


def show(report: Report) -> None:
    """A table of the rows of the file."""
    keys = ("prefill_ms", "pack_ms", "share", "floor_ms", "extra_layers")
    table(("row", *keys), [[row["name"], *(row.get(key) for key in keys)] for row in report.rows])


if __name__ == "__main__":
    main()
