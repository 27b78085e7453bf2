"""How many sequences Kitty's cache serves at once, and how many tokens per second that makes.

    python -m benchmarks.kitty_throughput [--prompt 1024] [--length 8192] [--policies paper-kitty kitty-pro kivi2]

The protocol of Kitty's throughput figures (arXiv 2511.18643: batches up to 8 times as large, 2.1 to 4.1 times the
tokens per second): Qwen3-8B's text shape (random weights), prompts of ``--prompt`` tokens, and tokens are generated up
to ``--length`` without an end token, with as many sequences as fit in ``--memory`` GB, weights and workspace included.

The dense side is transformers: ``DynamicCache`` eager, as the paper has it, and ``StaticCache`` in a CUDA graph; the
faster one counts, each with the most sequences that fit. A policy's side decodes through kvmm's graphs. A
whole answer would take minutes per row, so steps are timed over caches of ``--points`` lengths, spread evenly from the
prompt to the last token; ``answer_seconds`` is the mean of their times by all tokens. Prefill is left out on both
sides. With ``--factor N`` a policy runs with N times the dense batch (the paper's 8), if that fits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.memory_budget import GB, dense_nbytes, hold_to, largest
from benchmarks.report import Report, add_common_options, attempt, table
from benchmarks.stepping import (
    BASELINES,
    GreedyStep,
    check_replays,
    mode_options,
    packed_cache,
    prompt_modality,
    timed_steps,
)
from benchmarks.synthetic import build_model, calibration_file, dynamic_cache
from benchmarks.timing import bandwidth, free_memory
from kvmm import KVMMCache, get_policy
from kvmm.policy import KVPolicy

_STEP_DOWN = 0.9  # what the batch of a baseline that did not fit is lowered by


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=["paper-kitty", "kitty-pro", "paper-kivi2"])
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--length", type=int, default=8192, help="tokens of a sequence at its end")
    parser.add_argument("--memory", type=float, default=80.0, help="GB of 10^9 bytes that all may take")
    parser.add_argument("--factor", type=float, help="times the dense batch; default: as many as fit")
    parser.add_argument("--points", type=int, default=4, help="lengths at which steps are timed")
    parser.add_argument("--steps", type=int, default=136, help="timed steps at a length; a page fills in 128")
    parser.add_argument("--baselines", nargs="+", default=["dynamic", "static"], choices=list(BASELINES))
    add_common_options(parser, "kitty_throughput")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if options.smoke:
        options.prompt, options.length, options.points, options.steps = 160, 512, 2, 4

    torch.manual_seed(options.seed)
    report = Report("kitty_throughput", given, options)
    report.run["bandwidth"] = bandwidth(options.device)
    model = build_model("qwen3-8b", options.device, toy=options.smoke)
    weights = sum(p.nbytes for p in model.parameters())
    limit = weights + 4 * dense_nbytes(model, options.length) if options.smoke else int(options.memory * GB)
    hold_to(limit, options.device)
    names = ("prompt", "length", "points", "steps", "factor")
    report.run["settings"] = {name: getattr(options, name) for name in names} | {"limit_bytes": limit}
    dense: dict[str, Any] = {"name": "dense", "policy": "dense"}
    with report.guarded(dense):
        dense |= dense_side(model, limit - weights, options)
    for name in options.policies:
        row: dict[str, Any] = {"name": name, "policy": name}
        with report.guarded(row):
            row |= packed_side(model, get_policy(name), limit - weights, dense, options)
        free_memory()
    show(report)
    report.finish()


def timed_lengths(options: argparse.Namespace) -> list[int]:
    """Tokens of the caches over which steps are timed: the middles of equal parts of the answer."""
    part = (options.length - options.prompt) / options.points
    return [round(options.prompt + part * (index + 0.5)) for index in range(options.points)]


def answered(batch: int, milliseconds: list[float], options: argparse.Namespace) -> dict[str, Any]:
    """What steps of so many milliseconds, at :func:`timed_lengths`, make of a whole answer."""
    tokens = options.length - options.prompt
    seconds = tokens * sum(milliseconds) / len(milliseconds) / 1e3
    return {
        "batch": batch,
        "lengths": timed_lengths(options),
        "ms": milliseconds,
        "new_tokens": tokens,
        "answer_seconds": seconds,
        "tokens_per_second": batch * tokens / seconds,
    }


def dense_side(model: nn.Module, room: int, options: argparse.Namespace) -> dict[str, Any]:
    """The faster of transformers' caches, each with the most sequences whose steps fit into ``room`` bytes."""
    model.set_attn_implementation("sdpa")
    most = room // dense_nbytes(model, options.length)
    found = largest(model, most, lambda batch: dynamic_cache(model, batch, options.length - 1))
    sides: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for name in options.baselines:
        attempt(sides, failures, name, lambda name=name: baseline(model, name, found["batch"], options))
    free_memory()
    best = max(sides, key=lambda name: sides[name]["tokens_per_second"])
    return {**sides[best], "baseline": best, "baselines": sides, "failed_baselines": failures}


def baseline(model: nn.Module, name: str, most: int, options: argparse.Namespace) -> dict[str, Any]:
    """One of transformers' caches with the most sequences, ``most`` of them at first, that fit at every length.

    A captured step has memory of its own beside the one that it was captured from, so fewer fit.

    Raises:
        RuntimeError: not even one sequence fits.
    """
    batch, steps = most, min(options.steps, 16)  # no page fills here
    longest = {"max_length": options.length} if name.startswith("static") else {}
    while batch:
        milliseconds: list[float] = []
        try:
            for length in reversed(timed_lengths(options)):  # the longest shows first what does not fit
                free_memory()
                milliseconds.append(BASELINES[name](model, batch, length, steps, **longest).mean * 1e3)
        except torch.OutOfMemoryError:
            batch = min(batch - 1, int(batch * _STEP_DOWN))
            continue
        return answered(batch, milliseconds[::-1], options)
    raise RuntimeError("not even one sequence fits")


def packed_side(
    model: nn.Module, policy: KVPolicy, room: int, dense: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """A policy's side: its largest batch, or ``--factor`` times the dense one."""
    calibration = calibration_file(model)
    settings = mode_options("graph", options.length)

    def filled(length: int, few: int = 4) -> KVMMCache:
        modality = prompt_modality(policy, few, length)
        return packed_cache(model, policy, modality, calibration, **settings)

    sample = filled(options.length - 1)
    each, memory = -(-sample.memory().nbytes // 4), sample.memory()
    if options.factor:
        batch = round(options.factor * dense["batch"])
    else:
        batch = largest(model, room // each, _repeating(sample))["batch"]
    del sample
    milliseconds, graphs = [], []
    for length in timed_lengths(options):
        free_memory()
        cache = _repeating(filled(length))(batch)
        timing = timed_steps(GreedyStep(model, cache, batch, model.device), options.steps, model.device)
        milliseconds.append(timing.mean * 1e3)
        graphs.append(check_replays(cache, timing.runs // 2))
        del cache
    row = answered(batch, milliseconds, options)
    return row | {
        "sequence_bytes": each,
        "packed_bits_per_value": memory.packed_bits_per_value,
        "bits_per_value": memory.bits_per_value,
        "batch_ratio": batch / dense["batch"],
        "throughput_ratio": row["tokens_per_second"] / dense["tokens_per_second"],
        "graphs": graphs,
    }


def _repeating(few: KVMMCache) -> Callable[[int], KVMMCache]:
    """Makes a cache of so many sequences, those of ``few`` over and over."""

    def make(batch: int) -> KVMMCache:
        cache = few.fork()
        cache.batch_select_indices(torch.arange(batch) % few.batch_size)
        return cache

    return make


def show(report: Report) -> None:
    """A table of the rows of the file."""
    keys = ("batch", "batch_ratio", "tokens_per_second", "throughput_ratio", "answer_seconds", "bits_per_value")
    table(("policy", *keys), [[row["policy"], *(row.get(key) for key in keys)] for row in report.rows])


if __name__ == "__main__":
    main()
