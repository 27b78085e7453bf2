"""What the first lines of the README give on a GPU: ``generate()`` with a kvmm cache against ``DynamicCache``.

    python -m benchmarks.generate [--shapes 1x4k 1x32k 16x4k] [--policies balanced oscar2 kivi2 kitty]

A model of 36 layers and 1024 hidden units (random weights, 32 query heads, 8 KV heads of 128 channels) answers a prompt
of random tokens with ``KVMMCache.for_model(model, policy=...)`` and nothing else set, and with a ``DynamicCache`` made
by ``generate()`` itself (SDPA attention, a model object without kvmm). In a round they take turns with 1, ``--short``
and ``--tokens`` new tokens: from these come the seconds to the first token and of a short answer, and the tokens per
second behind the first token. Medians over ``--rounds``, after answers that compile kernels (``cold_seconds`` is the
first). ``balanced`` has no calibration file here and is what it then falls back to; ``balanced+file`` has one.

``host_us`` is the host's time for one layer's call of a step that is not captured as a whole (``graph=False``; a graph
of its own then replays the call): ``cache.update`` and the attention function, without waiting for the GPU; beside it
the same of ``DynamicCache`` and SDPA.
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

from benchmarks.layer_calls import host_seconds
from benchmarks.report import Report, add_common_options, table
from benchmarks.synthetic import build_model, calibration_file, fill, kv_shape
from benchmarks.timing import bandwidth, free_memory, synchronize
from kvmm import KVMMCache

SHAPES = {"1x4k": (1, 2**12), "1x32k": (1, 2**15), "16x4k": (16, 2**12)}
_SMOKE = (2, 160)
_WITH_FILE = "+file"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--policies", nargs="+", default=["balanced", "balanced+file", "oscar2", "kivi2", "kitty"])
    parser.add_argument("--short", type=int, default=16, help="new tokens of a short answer")
    parser.add_argument("--tokens", type=int, default=257, help="new tokens of a long answer")
    parser.add_argument("--rounds", type=int, default=3)
    add_common_options(parser, "generate")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if options.smoke:
        options.tokens, options.rounds = min(options.tokens, 40), 1

    torch.manual_seed(options.seed)
    report = Report("generate", given, options)
    report.run["bandwidth"] = bandwidth(options.device)
    dense = build_model("qwen3-36x1024", options.device, toy=options.smoke)
    model = build_model("qwen3-36x1024", options.device, toy=options.smoke)
    model.load_state_dict(dense.state_dict())
    layers, kv_heads, dim = kv_shape(model)
    report.run["model"] = {"shape": "qwen3-36x1024", "layers": layers, "kv_heads": kv_heads, "head_dim": dim}
    file = calibration_file(model)
    for shape in options.shapes:
        batch, length = _SMOKE if options.smoke else SHAPES[shape]
        prompt = torch.randint(3, model.config.vocab_size, (batch, length), device=options.device)
        sides = {policy: Side(model, policy, file) for policy in options.policies}
        seconds, cold = timings({"dynamic": Side(dense), **sides}, prompt, options)
        for policy, side in sides.items():
            row: dict[str, Any] = {"name": f"{shape} {policy}", "shape": shape, "policy": policy}
            row |= {"batch": batch, "tokens": length}
            with report.guarded(row):
                if isinstance(seconds[policy], Exception):
                    raise seconds[policy]
                row |= {"cold_seconds": cold[policy], "dynamic_cold_seconds": cold["dynamic"]}
                row |= compared(summary(seconds["dynamic"], batch, options), summary(seconds[policy], batch, options))
                row |= side.facts() | host_times(dense, side, batch, length)
            free_memory()
    show(report)
    report.finish()


class Side:
    """One way to answer: the caches that it makes, as the README writes it; without a policy ``generate()`` makes them.

    Args:
        model: that answers.
        policy: a preset, ``+file`` behind it if with a calibration file, or None.
        file: the calibration file.
    """

    def __init__(self, model: nn.Module, policy: str | None = None, file: Path | None = None):
        self.model = model
        self.name = None if policy is None else policy.removesuffix(_WITH_FILE)
        self.extra = {"calibration": str(file)} if policy is not None and policy.endswith(_WITH_FILE) else {}
        self.cache: KVMMCache | None = None  # the last one

    def arguments(self) -> dict[str, Any]:
        """Arguments of ``generate()``."""
        self.cache = None
        if self.name is None:
            return {}
        self.cache = KVMMCache.for_model(self.model, policy=self.name, **self.extra)
        return {"past_key_values": self.cache}

    def facts(self) -> dict[str, Any]:
        """What the last cache says of itself, which is then gone."""
        cache, self.cache = self.cache, None
        memory = cache.memory()
        found = {"bits_per_value": memory.bits_per_value, "nbytes": memory.nbytes, "reserved": memory.reserved_nbytes}
        return {"graph": None if cache.graph is None else cache.graph.report(), **found}


def timings(
    sides: dict[str, Side], prompt: torch.Tensor, options: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, float]]:
    """Seconds of every side by number of new tokens (or the error that ended it), and of its first short answer."""
    counts = (1, options.short, options.tokens)
    seconds: dict[str, Any] = {name: {count: [] for count in counts} for name in sides}
    cold: dict[str, float] = {}
    for turn in range(-1, options.rounds):
        for count in counts if turn >= 0 else (options.short, options.tokens):
            for name, side in sides.items():
                if isinstance(seconds[name], Exception):
                    continue
                try:
                    taken = timed(side, prompt, count)
                except Exception as error:  # one policy must not cost the others
                    seconds[name] = error
                    continue
                if turn < 0:
                    cold.setdefault(name, taken)
                else:
                    seconds[name][count].append(taken)
    return seconds, cold


def summary(seconds: dict[int, list[float]], batch: int, options: argparse.Namespace) -> dict[str, float]:
    """Medians of one side."""
    first, short, long = (statistics.median(times) for times in seconds.values())
    step = (long - first) / (options.tokens - 1)
    return {
        "first_ms": first * 1e3,
        "short_ms": short * 1e3,
        "ms_per_step": step * 1e3,
        "tokens_per_second": batch / step,
    }


def compared(theirs: dict[str, float], ours: dict[str, float]) -> dict[str, Any]:
    """Both sides, and what ours is in theirs."""
    return {
        "dynamic": theirs,
        "kvmm": ours,
        "ratio": ours["tokens_per_second"] / theirs["tokens_per_second"],
        "first_ratio": ours["first_ms"] / theirs["first_ms"],
        "short_ratio": ours["short_ms"] / theirs["short_ms"],
    }


def host_times(dense: nn.Module, side: Side, batch: int, length: int) -> dict[str, Any]:
    """The host's part of a call without a graph, beside ``DynamicCache`` and SDPA."""
    plain = KVMMCache.for_model(side.model, policy=side.name, graph=False, **side.extra)
    found = {
        "kvmm": host_seconds(side.model, fill(plain, dense, batch, length).pack()) * 1e6,
        "dynamic": host_seconds(dense, fill(DynamicCache(), dense, batch, length)) * 1e6,
    }
    return {"host_us": found, "host_ratio": found["kvmm"] / found["dynamic"]}


@torch.no_grad()
def timed(side: Side, prompt: torch.Tensor, tokens: int) -> float:
    """Seconds of one ``generate()``, the making of its cache included."""
    synchronize(prompt.device)
    begin = time.perf_counter()
    exact = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    side.model.generate(prompt, **side.arguments(), **exact)
    synchronize(prompt.device)
    return time.perf_counter() - begin


def show(report: Report) -> None:
    """A table of the rows of the file."""
    header = ("shape", "policy", "tok/s", "dynamic", "ratio", "first", "short", "host us", "dynamic", "ratio", "cold s")
    rows = []
    for row in report.rows:
        if "failed" in row:
            rows.append([row["shape"], row["policy"], *[None] * 9])
            continue
        rates = [row[side]["tokens_per_second"] for side in ("kvmm", "dynamic")]
        host = [row["host_us"][side] for side in ("kvmm", "dynamic")]
        ratios = [row["ratio"], row["first_ratio"], row["short_ratio"]]
        rows.append([row["shape"], row["policy"], *rates, *ratios, *host, row["host_ratio"], row["cold_seconds"]])
    table(header, rows)


if __name__ == "__main__":
    main()
