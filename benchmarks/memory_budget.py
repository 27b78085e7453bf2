"""What a number of bytes for the KV cache is good for: tokens a second under a budget, and the largest batch.

    python -m benchmarks.memory_budget --part budgets [--visual 3328 8192] [--budgets 5 10 15 20 25 30]
    python -m benchmarks.memory_budget --part calibquant [--models internvl-8b internvl-26b]
    python -m benchmarks.memory_budget --part largest [--policies rd2 rd1]

``budgets``: InternVL-8B's text shape with random weights; prompts of an image and 64 text tokens, ``--new-tokens`` more
are generated. Each side decodes as many sequences at once as its cache holds in the budget up to the last token, from
the measured bytes of a sequence; room and page tables count. A policy ``A+B`` stores images as preset A does
and text as preset B. Baselines: ``DynamicCache`` eager and ``StaticCache`` in a CUDA graph; the faster counts.

``calibquant``: the same by the protocol of CalibQuant's throughput tables (arXiv 2502.14882, Tables 5 to 8): the text
shapes of InternVL2.5-8B and -26B, 256 and 3328 visual tokens, its own method at 1 and 2 bits with exact text, 500
tokens generated, budgets of 5 to 30 GB.

``largest``: Qwen3-8B's text shape; the most sequences of 4096 tokens with which a decode step runs in 80 GB, weights
and workspace included; torch is held to that, and the batch is lowered until the step fits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.report import Report, add_common_options, attempt, table
from benchmarks.stepping import (
    BASELINES,
    MODES,
    TEXT_TOKENS,
    GreedyStep,
    check_replays,
    image_modality,
    mode_options,
    packed_cache,
    prompt_modality,
    timed_steps,
)
from benchmarks.synthetic import build_model, calibration_file, dynamic_cache, kv_shape, weight_nbytes
from benchmarks.timing import Timing, bandwidth, free_memory
from kvmm import KVMMCache, get_policy
from kvmm.policy import KVPolicy

GB = 10**9
_LIMIT = 80 * GB
_LENGTH = 4096
_BUDGETS = {"models": ["internvl-8b"], "visual": [3328, 8192], "new_tokens": 272}
_CALIBQUANT = {
    "models": ["internvl-8b", "internvl-26b"],
    "visual": [256, 3328],
    "new_tokens": 500,
    "policies": ["paper-calibquant1", "benchmarks/policies/calibquant2-authors.yaml"],
}
_STEP_DOWN = 0.98  # what a batch that did not fit is lowered by


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("budgets", "calibquant", "largest"), required=True)
    parser.add_argument("--models", nargs="+", choices=("internvl-8b", "internvl-26b"), help="of budgets")
    parser.add_argument("--budgets", nargs="+", type=float, default=[5, 10, 15, 20, 25, 30], help="GB of 10^9 bytes")
    parser.add_argument("--visual", nargs="+", type=int, help="visual tokens of a prompt; default: 3328 8192")
    parser.add_argument("--policies", nargs="+", help="presets; default: calibquant1-mean+oscar2, or rd2 and rd1")
    parser.add_argument("--mode", choices=list(MODES), default="graph", help="how budgets decode")
    parser.add_argument("--baselines", nargs="*", default=["dynamic", "static"], choices=list(BASELINES))
    parser.add_argument("--new-tokens", type=int, help="generated, and timed but for a warm-up; default: 272")
    parser.add_argument("--steps", type=int, help="of the packed cache that are timed; default: all but a warm-up")
    parser.add_argument("--baseline-steps", type=int, default=50)
    add_common_options(parser, "memory_budget")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    for name, value in (_CALIBQUANT if options.part == "calibquant" else _BUDGETS).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.policies is None:
        options.policies = ["rd2", "rd1"] if options.part == "largest" else ["calibquant1-mean+oscar2"]
    if options.smoke:
        options.visual = [options.visual[-1 if options.part == "calibquant" else 0] // 4]
        options.budgets = [b / 1000 for b in options.budgets[:2]]
        options.new_tokens, options.baseline_steps = min(options.new_tokens, 48), 3

    torch.manual_seed(options.seed)
    report = Report("memory_budget", given, options)
    report.run["bandwidth"] = bandwidth(options.device)
    if options.part == "largest":
        largest_rows(report, options)
    else:
        report.run["settings"] = {"text_tokens": TEXT_TOKENS, "new_tokens": options.new_tokens, "mode": options.mode}
        report.run["settings"]["weight_bytes"] = {}
        for shape in options.models:
            budget_rows(report, options, shape)
            free_memory()
    show(report)
    report.finish()


def combined_policy(name: str) -> KVPolicy:
    """A preset, or of ``A+B`` the media of A and the text of B."""
    media, _, text = name.partition("+")
    policy = get_policy(media)
    if not text:
        return policy
    other = get_policy(text)
    return replace(policy, name=name, text=other.text)


def dense_nbytes(model: nn.Module, tokens: int) -> int:
    """Bytes of a sequence's keys and values in the model's dtype."""
    layers, heads, dim = kv_shape(model)
    return 2 * layers * heads * dim * tokens * model.dtype.itemsize


# -- tokens a second under a budget ---------------------------------------------------------------------------------


def budget_rows(report: Report, options: argparse.Namespace, shape: str) -> None:
    """A row for each number of visual tokens, budget and policy with a model of one shape."""
    model = build_model(shape, options.device, toy=options.smoke)
    calibration = calibration_file(model)
    report.run["settings"]["weight_bytes"][shape] = weight_nbytes(model)
    prefix = "" if shape == "internvl-8b" else f"{shape} "
    for visual in options.visual:
        length = visual + TEXT_TOKENS
        each = dense_nbytes(model, length + options.new_tokens)
        sizes = {}
        for name in options.policies:
            sizes[name] = sequence_nbytes(model, combined_policy(name), visual, calibration, options)
            free_memory()
        for budget in options.budgets:
            dense = dense_speed(model, int(budget * GB // each), length, options)
            for name, size in sizes.items():
                row = {"name": f"{prefix}{visual} {budget:g} GB {Path(name).stem}", "model": shape, "policy": name}
                row["visual_tokens"] = visual
                row |= {"budget_bytes": int(budget * GB), "dense_sequence_bytes": each, "sequence_bytes": size, **dense}
                with report.guarded(row):
                    row |= packed_speed(model, row, calibration, report, options)
                free_memory()


def sequence_nbytes(
    model: nn.Module, policy: KVPolicy, visual: int, calibration: Path, options: argparse.Namespace
) -> int:
    """Most bytes that a sequence takes in the cache while its tokens come, measured on two."""
    modality = image_modality(2, visual)
    settings = mode_options(options.mode, modality.shape[1] + options.new_tokens)
    cache = packed_cache(model, policy, modality, calibration, **settings)
    step = GreedyStep(model, cache, 2, model.device)
    most = 0
    for _ in range(1 if "max_length" in settings else options.new_tokens):  # then the room is there from the start
        step()
        most = max(most, cache.memory().nbytes)
    return -(-most // 2)


def dense_speed(model: nn.Module, batch: int, length: int, options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of transformers' caches with ``batch`` sequences."""
    if batch < 1:
        return {"dense_batch": 0, "dense_tokens_per_second": None}
    model.set_attn_implementation("sdpa")
    times: dict[str, Timing] = {}
    failures: dict[str, str] = {}
    for name in options.baselines:
        longest = {"max_length": length + options.new_tokens} if name.startswith("static") else {}

        def run(name: str = name, longest: dict[str, int] = longest) -> Timing:
            return BASELINES[name](model, batch, length, options.baseline_steps, **longest)

        attempt(times, failures, name, run)
        free_memory()
    best = min(times, key=lambda name: times[name].mean, default=None)
    return {
        "dense_batch": batch,
        "baseline": best,
        "dense_ms": None if best is None else times[best].mean * 1e3,
        "dense_tokens_per_second": None if best is None else batch / times[best].mean,
        "baselines_ms": {name: timing.mean * 1e3 for name, timing in times.items()},
        "baselines_failed": failures,
    }


def packed_speed(
    model: nn.Module, row: dict[str, Any], calibration: Path, report: Report, options: argparse.Namespace
) -> dict[str, Any]:
    """Tokens a second of the packed cache with as many sequences as the budget holds."""
    batch = row["budget_bytes"] // row["sequence_bytes"]
    if batch < 1:
        raise ValueError("the budget holds no sequence")
    modality = image_modality(batch, row["visual_tokens"])
    settings = mode_options(options.mode, modality.shape[1] + options.new_tokens)
    cache = packed_cache(model, combined_policy(row["policy"]), modality, calibration, **settings)
    step = GreedyStep(model, cache, batch, model.device)
    timing = timed_steps(step, min(options.steps or options.new_tokens, options.new_tokens - 16), model.device)
    memory = cache.memory()
    if memory.nbytes > 1.001 * row["budget_bytes"]:
        raise RuntimeError(f"the cache holds {memory.nbytes} bytes, more than the budget")
    speed, moved = max(report.run["bandwidth"].values()), weight_nbytes(model) + memory.nbytes
    dense = row["dense_tokens_per_second"]
    return {
        "batch": batch,
        "ms": timing.mean * 1e3,
        "median_ms": timing.median * 1e3,
        "steps": timing.runs,
        "tokens_per_second": batch / timing.mean,
        "ratio": None if dense is None else batch / timing.mean / dense,
        "cache_bytes": memory.nbytes,
        "cache_bits_per_value": memory.bits_per_value,
        **check_replays(cache, timing.runs),
        "bandwidth": moved / timing.mean,
        "floor_ms": moved / speed * 1e3,
        "floor_share": moved / speed / timing.mean,
    }


# -- the largest batch ----------------------------------------------------------------------------------------------


def largest_rows(report: Report, options: argparse.Namespace) -> None:
    """A row for the dense cache and one for each policy."""
    model = build_model("qwen3-8b", options.device, toy=options.smoke)
    length = _LENGTH // 4 if options.smoke else _LENGTH
    weights = sum(p.nbytes for p in model.parameters())
    limit = weights + 4 * dense_nbytes(model, length) if options.smoke else _LIMIT
    hold_to(limit, options.device)
    report.run["settings"] = {"model": "qwen3-8b", "tokens": length, "limit_bytes": limit, "weight_bytes": weights}
    calibration = calibration_file(model)

    each = dense_nbytes(model, length)
    dense: dict[str, Any] = {"name": "largest bf16", "policy": "bf16", "sequence_bytes": each}
    model.set_attn_implementation("sdpa")
    with report.guarded(dense):
        dense |= largest(model, (limit - weights) // each, lambda batch: dynamic_cache(model, batch, length - 1))
    for name in options.policies:
        row: dict[str, Any] = {"name": f"largest {name}", "policy": name}
        with report.guarded(row):
            free_memory()
            policy = get_policy(name)
            few = packed_cache(model, policy, prompt_modality(policy, 4, length - 1), calibration)
            each = -(-few.memory().nbytes // 4)
            row["sequence_bytes"] = each
            row |= largest(model, (limit - weights) // each, lambda batch, few=few: _repeated(few, batch))
            row["ratio"] = row["batch"] / dense["batch"]
            del few


def _repeated(few: KVMMCache, batch: int) -> KVMMCache:
    """A cache of as many sequences as asked for, those of ``few`` over and over."""
    cache = few.fork()
    cache.batch_select_indices(torch.arange(batch) % few.batch_size)
    return cache


def largest(model: nn.Module, most: int, make: Callable[[int], Any]) -> dict[str, Any]:
    """The largest batch from ``most`` downwards for which ``make(batch)`` and a decode step fit in memory."""
    batch, cuda = most, model.device.type == "cuda"
    while batch:
        free_memory()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        try:
            timing = timed_steps(GreedyStep(model, make(batch), batch, model.device), 2, model.device)
        except torch.cuda.OutOfMemoryError:
            batch = min(batch - 1, int(batch * _STEP_DOWN))
            continue
        peak = torch.cuda.max_memory_allocated() if cuda else None
        return {"batch": batch, "batch_by_bytes": most, "ms": timing.median * 1e3, "peak_bytes": peak}
    raise RuntimeError("not even one sequence fits")


def hold_to(limit: int, device: str) -> None:
    """Let the whole process take no more than ``limit`` bytes of the GPU."""
    if torch.device(device).type != "cuda":
        return
    free, total = torch.cuda.mem_get_info()
    context = total - free - torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((limit - context) / total)


def show(report: Report) -> None:
    """Tables of the rows of the file."""
    budgets = [row for row in report.rows if "budget_bytes" in row]
    keys = ("batch", "ms", "tokens_per_second", "dense_batch", "dense_ms", "dense_tokens_per_second", "baseline")
    if budgets:
        header = ("row", "batch", "ms", "tokens/s", "dense batch", "ms", "tokens/s", "by", "ratio", "floor share")
        rows = [[row["name"], *(row.get(k) for k in (*keys, "ratio", "floor_share"))] for row in budgets]
        table(header, rows)
    if others := [row for row in report.rows if "budget_bytes" not in row]:
        keys = ("sequence_bytes", "batch", "batch_by_bytes", "ratio", "ms", "peak_bytes")
        table(("row", *keys), [[row["name"], *(row.get(k) for k in keys)] for row in others])


if __name__ == "__main__":
    main()
