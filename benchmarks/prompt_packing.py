"""What packing a long prompt costs beside reading it: Qwen3-8B's text shape, random weights, 32K tokens.

    python -m benchmarks.prompt_packing [--tokens 32768] [--policies rd2 oscar2 ... | all] [--behind 0.02] [--kernels]

``prefill_ms`` is the forward pass over a prompt with transformers' ``DynamicCache`` (SDPA, logits of the last token).
``pack_ms`` is ``cache.pack()`` of all layers of random keys and values, waited for before and after; after ``host_ms``
of it the host has launched everything. ``behind_ms`` is how much later the GPU is done with a prompt that is read and
packed without waiting in between (``read_ms``: read alone, in the same pass), as the server does it: then the host
launches kernels while the GPU still reads. It is measured for policies whose share is above ``--behind``.
``kernel_ms`` is the GPU's time in kernels and ``launches`` their number, by torch's profiler (``--kernels``).
``extra_bytes`` is how far packing raises memory above what the unpacked cache took; ``extra_layers`` counts it in keys
and values of one layer (``layer_bytes``).
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
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache

from benchmarks.programs import keep_programs
from benchmarks.report import Report, add_common_options, table
from benchmarks.stepping import prompt_modality
from benchmarks.synthetic import build_model, calibration_file, fill, kv_shape
from benchmarks.timing import bandwidth, free_memory, synchronize
from kvmm import KVMMCache, get_policy, policies

_BEHIND = 2  # rounds of reading and packing; everything is compiled by then


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2**15)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--policies", nargs="+", default=["rd2", "oscar2", "kivi2", "calibquant1-mean", "kitty"])
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds after one warm-up")
    parser.add_argument(
        "--behind", type=float, help="read and pack, too, where packing alone takes more than this share"
    )
    parser.add_argument("--kernels", action="store_true", help="also the GPU's time in kernels, and how many there are")
    parser.add_argument("--programs", type=Path, help="folder where compiled kernels are kept for other processes")
    add_common_options(parser, "prompt_packing")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if options.smoke:
        options.tokens, options.rounds = 512, 2

    torch.manual_seed(options.seed)
    if options.programs:
        keep_programs(options.programs)
    if options.policies == ["all"]:
        options.policies = [name for name in policies() if name != "bf16"]
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
            row |= packing(model, name, calibration, layer_bytes, prefill, report, options)
        free_memory()
    show(report)
    report.finish()


def packing(
    model: nn.Module,
    name: str,
    calibration: Path,
    layer_bytes: int,
    prefill: list[float],
    report: Report,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """What one row says of a policy."""
    runs = [pack_once(model, name, calibration, options) for _ in range(options.rounds + 1)]
    seconds, before, after = statistics.median(prefill), runs[-1]["before"], runs[-1]["nbytes"]
    taken, host = (statistics.median(run[key] for run in runs[1:]) for key in ("seconds", "host"))
    moved = kv_shape(model)[0] * layer_bytes + after
    row = {
        "prefill_ms": seconds * 1e3,
        "pack_ms": taken * 1e3,
        "host_ms": host * 1e3,
        "share": taken / seconds,
        "rounds": options.rounds,
        "bytes": moved,
        "bandwidth": moved / taken,
        "floor_ms": moved / max(report.run["bandwidth"].values()) * 1e3,
        "cache_bytes": after,
    }
    if runs[-1]["peak"] is not None:
        extra = max(run["peak"] - before for run in runs[1:])
        row |= {"extra_bytes": extra, "extra_layers": extra / layer_bytes}
    if options.kernels and options.device != "cpu":
        row |= kernels(filled(model, name, calibration, options))
    if options.behind is not None and row["share"] > options.behind:
        rounds = [read_and_pack(model, name, calibration, options) for _ in range(_BEHIND)]
        read, behind = (statistics.median(times) for times in zip(*rounds, strict=True))
        row |= {"read_ms": read * 1e3, "behind_ms": behind * 1e3, "behind_share": behind / read}
    return row


def prefill_seconds(model: nn.Module, batch: int, tokens: int) -> float:
    """Seconds of one forward pass over a random prompt."""
    model.set_attn_implementation("sdpa")
    ids = torch.randint(model.config.vocab_size, (batch, tokens), device=model.device)
    synchronize(model.device)
    begin = time.perf_counter()
    model(ids, past_key_values=DynamicCache(config=model.config), use_cache=True, logits_to_keep=1)
    synchronize(model.device)
    return time.perf_counter() - begin


def made(model: nn.Module, name: str, calibration: Path) -> KVMMCache:
    """An empty cache of a policy."""
    policy = get_policy(name)
    fitted = {"calibration": str(calibration)} if "rd" in {s.codec for s in policy.all_specs()} else {}
    return KVMMCache.for_model(model, policy, **fitted)


def filled(model: nn.Module, name: str, calibration: Path, options: argparse.Namespace) -> KVMMCache:
    """A cache with a random prompt of what its policy packs, unpacked."""
    cache = made(model, name, calibration)
    modality = prompt_modality(cache.policy, options.batch, options.tokens)
    cache.set_modality(modality)
    cache.announce(torch.zeros(*modality.shape, dtype=torch.long, device=model.device), None, None)
    return fill(cache, model, options.batch, options.tokens)


def pack_once(model: nn.Module, name: str, calibration: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of packing a filled cache, and of the host's part; memory before and at the peak, bytes when packed."""
    cache = filled(model, name, calibration, options)
    cuda = model.device.type == "cuda"
    if cuda:
        free_memory()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else None
    synchronize(model.device)
    begin = time.perf_counter()
    cache.pack()
    host = time.perf_counter() - begin
    synchronize(model.device)
    seconds = time.perf_counter() - begin
    peak = torch.cuda.max_memory_allocated() if cuda else None
    return {"seconds": seconds, "host": host, "before": before, "peak": peak, "nbytes": cache.memory().nbytes}


def read_and_pack(model: nn.Module, name: str, calibration: Path, options: argparse.Namespace) -> tuple[float, float]:
    """Seconds of a forward pass over a random prompt into a cache, and of what packing adds behind it."""
    cache = made(model, name, calibration)
    modality = prompt_modality(cache.policy, options.batch, options.tokens)
    cache.set_modality(modality)
    ids = torch.randint(model.config.vocab_size, (options.batch, options.tokens), device=model.device)
    synchronize(model.device)
    times = [_now(model.device)]
    model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    times.append(_now(model.device))
    cache.pack()
    times.append(_now(model.device))
    synchronize(model.device)
    return _between(*times[:2]), _between(*times[1:])


def _now(device: torch.device) -> float | torch.cuda.Event:
    """A moment of the GPU's current stream, or of the host where there is no GPU."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(first: Any, second: Any) -> float:
    """Seconds between two moments."""
    return second - first if isinstance(first, float) else first.elapsed_time(second) / 1e3


def kernels(cache: KVMMCache) -> dict[str, Any]:
    """The GPU's milliseconds in kernels while a filled cache is packed, how many, and the slowest ones."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        cache.pack()
        torch.cuda.synchronize()
    events = [event for event in profiler.key_averages() if event.self_device_time_total > 0]
    slowest = sorted(events, key=lambda event: -event.self_device_time_total)[:8]
    return {
        "kernel_ms": sum(event.self_device_time_total for event in events) / 1e3,
        "launches": sum(event.count for event in events),
        "slowest_ms": {event.key[:60]: event.self_device_time_total / 1e3 for event in slowest},
    }


def show(report: Report) -> None:
    """A table of the rows of the file."""
    keys = ("prefill_ms", "pack_ms", "share", "host_ms", "kernel_ms", "launches", "behind_share", "extra_layers")
    table(("row", *keys), [[row["name"], *(row.get(key) for key in keys)] for row in report.rows])


if __name__ == "__main__":
    main()
