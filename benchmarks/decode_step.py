"""A whole decode step of Qwen3-8B's text shape (random weights) over a packed cache, against transformers' own caches.

    python -m benchmarks.decode_step [--shapes 1x128k 1x32k 32x4k] [--policies rd2] [--modes graph compile eager]

Caches are filled layer by layer with random keys and values. Times are of greedy steps without waiting for the host in
between, after steps in which two pages were packed: mean (``ms``) and median over ``--steps`` steps that include
packing of full pages, the captured graph alone (``replay_ms``), and milliseconds a token of ``generate()``.
``compile`` is a graph of compiled layers.

Baselines, in the same process: ``DynamicCache`` eager, the same through ``generate()``, ``StaticCache`` captured in a
CUDA graph, and ``StaticCache`` with ``torch.compile(mode="reduce-overhead")``; the fastest counts. The floors are the
bytes of weights (without the embedding) and of the cache at the measured bandwidth (the better of a copy and a sum):
``floor_bf16_ms`` of a cache in 16 bits, ``floor_ms`` of the packed one, its room for later tokens included.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.report import Report, add_common_options, attempt, table
from benchmarks.stepping import (
    BASELINES,
    MODES,
    PAGE_WARM_UP,
    GreedyStep,
    check_replays,
    generate_seconds,
    mode_options,
    packed_cache,
    prompt_modality,
    replay_seconds,
    timed_steps,
)
from benchmarks.synthetic import build_model, calibration_file, kv_shape, weight_nbytes
from benchmarks.timing import Timing, bandwidth, free_memory
from kvmm import get_policy

SHAPES = {"1x128k": (1, 2**17), "1x32k": (1, 2**15), "32x4k": (32, 2**12)}
_SMOKE = (2, 192)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--policies", nargs="+", default=["rd2"])
    parser.add_argument("--modes", nargs="+", default=["graph", "compile"], choices=list(MODES))
    parser.add_argument("--baselines", nargs="*", default=list(BASELINES), choices=list(BASELINES))
    parser.add_argument("--steps", type=int, default=288, help="timed steps over the packed cache")
    parser.add_argument("--baseline-steps", type=int, default=50)
    parser.add_argument("--no-generate", action="store_true", help="do not time generate() over the packed cache")
    add_common_options(parser, "decode_step")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if options.smoke:
        options.steps, options.baseline_steps = min(options.steps, 40), min(options.baseline_steps, 3)

    torch.manual_seed(options.seed)
    report = Report("decode_step", given, options)
    report.run["bandwidth"] = bandwidth(options.device)
    model = build_model("qwen3-8b", options.device, toy=options.smoke)
    calibration = calibration_file(model)
    layers, kv_heads, dim = kv_shape(model)
    report.run["model"] = {
        "shape": "qwen3-8b",
        "layers": layers,
        "kv_heads": kv_heads,
        "head_dim": dim,
        "weight_bytes": weight_nbytes(model),
        "dtype": "bfloat16",
    }
    for shape in options.shapes:
        batch, length = _SMOKE if options.smoke else SHAPES[shape]
        dense = baselines(model, batch, length, options)
        for policy in options.policies:
            for mode in options.modes:
                row = {"name": f"{shape} {policy} {mode}", "shape": shape, "policy": policy, "mode": mode}
                row |= {"batch": batch, "tokens": length, **dense}
                with report.guarded(row):
                    row |= measure(model, batch, length, policy, mode, calibration, report, options)
                    if dense["baseline_ms"] is not None:
                        row["ratio"] = dense["baseline_ms"] / row["ms"]
                free_memory()
    show(report)
    report.finish()


def baselines(model: nn.Module, batch: int, length: int, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds a step of every baseline, and which is fastest."""
    model.set_attn_implementation("sdpa")
    times: dict[str, Timing] = {}
    failures: dict[str, str] = {}
    for name in options.baselines:
        attempt(times, failures, name, lambda name=name: BASELINES[name](model, batch, length, options.baseline_steps))
        free_memory()
    best = min(times, key=lambda name: times[name].mean, default=None)
    return {
        "baseline": best,
        "baseline_ms": None if best is None else times[best].mean * 1e3,
        "baselines_ms": {name: {"mean": t.mean * 1e3, "median": t.median * 1e3} for name, t in times.items()},
        "baselines_failed": failures,
    }


def measure(
    model: nn.Module,
    batch: int,
    length: int,
    policy_name: str,
    mode: str,
    calibration: Path,
    report: Report,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """What one row says of the packed cache."""
    policy = get_policy(policy_name)
    speed = max(report.run["bandwidth"].values())
    settings = mode_options(mode, length + PAGE_WARM_UP + 2 * options.steps + 64)
    cache = packed_cache(model, policy, prompt_modality(policy, batch, length), calibration, **settings)
    memory = cache.memory()
    step = GreedyStep(model, cache, batch, model.device)
    timing = timed_steps(step, options.steps, model.device, PAGE_WARM_UP)
    found: dict[str, Any] = {
        "ms": timing.mean * 1e3,
        "median_ms": timing.median * 1e3,
        "slowest_ms": timing.slowest * 1e3,
        "steps": timing.runs,
        "cache_bytes": memory.held_nbytes,
        "cache_bits_per_value": memory.bits_per_value,
        **check_replays(cache, options.steps),
    }
    if (replay := replay_seconds(cache)) is not None:
        found["replay_ms"] = replay * 1e3
    if not options.no_generate:
        found["generate_ms"] = generate_seconds(model, cache, batch, options.steps) * 1e3
    weights = weight_nbytes(model)
    floor = (weights + memory.held_nbytes) / speed
    return found | {
        "bytes": weights + memory.held_nbytes,
        "bandwidth": (weights + memory.held_nbytes) / timing.mean,
        "floor_ms": floor * 1e3,
        "floor_share": floor / timing.mean,
        "floor_bf16_ms": (weights + memory.nbytes_dense) / speed * 1e3,
    }


def show(report: Report) -> None:
    """A table of the rows of the file."""
    keys = (
        "ms",
        "median_ms",
        "generate_ms",
        "baseline_ms",
        "baseline",
        "ratio",
        "floor_bf16_ms",
        "floor_ms",
        "floor_share",
    )
    header = (
        "shape",
        "policy",
        "mode",
        "ms",
        "median",
        "generate",
        "dense",
        "by",
        "ratio",
        "floor bf16",
        "floor",
        "share",
    )
    table(header, [[row["shape"], row["policy"], row["mode"], *(row.get(k) for k in keys)] for row in report.rows])


if __name__ == "__main__":
    main()
