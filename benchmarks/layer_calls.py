"""What one layer's call of a decode step costs the host: ``cache.update`` and the attention function.

    python -m benchmarks.layer_calls [--policies balanced rd2 ... | all] [--rounds 9] [--profile]
    python -m benchmarks.layer_calls --model qwen3-36x1024 --policies rd2 --append

A cache without anything asked for replays a layer's call as a small CUDA graph, where it does not replay whole steps;
``graph="never"`` launches every kernel from Python. Beside both stand ``DynamicCache`` and SDPA. The GPU is not waited
for, so the time does not depend on how long a cache is. SDPA's plans for the lengths that occur are made before.

Policies and the baseline take turns, round by round: what else the host does then costs one round of all of them, not a
policy alone. What a step costs the host once, whatever the number of layers, counts here too, a layer's part of it: of
four layers (``--model``) a larger one than in a model that people use. ``host_us`` are medians over rounds, and
``host_ratio`` is the median of what ``replayed`` is in ``dynamic`` of the same round; ``ratios`` holds the least and
the greatest. ``--profile`` adds the functions in which the host spends most of a replayed call, by cProfile.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks.programs import keep_programs
from benchmarks.report import Report, add_common_options, table
from benchmarks.synthetic import build_model, calibration_file, fill, kv_shape
from benchmarks.timing import bandwidth, free_memory, synchronize
from kvmm import KVMMCache, get_policy, policies

TOKENS = 2048
STEPS = 12  # of a round, the first third of which does not count
GRAPHS: dict[str, Any] = {"replayed": False, "plain": "never"}
SHOWN = 12  # functions of a profile


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=["all"], help="presets; default: all")
    parser.add_argument("--model", choices=("qwen3-4x1024", "qwen3-36x1024"), default="qwen3-4x1024", help="its shape")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds after one warm-up")
    parser.add_argument("--profile", action="store_true", help="also where the host's time of a replayed call goes")
    parser.add_argument("--programs", type=Path, help="folder where compiled kernels are kept for other processes")
    add_common_options(parser, "layer_calls")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)

    torch.manual_seed(options.seed)
    if options.programs:
        keep_programs(options.programs)
    report = Report("layer_calls", given, options)
    report.run["bandwidth"] = bandwidth(options.device)
    tokens = 160 if options.smoke else TOKENS
    report.run["settings"] = {"tokens": tokens, "rounds": options.rounds, "steps": STEPS, "dtype": "bfloat16"}
    # two models: caches of kvmm hook the attention of the one that they are made for
    dense, model = (build_model(options.model, options.device, toy=options.smoke) for _ in range(2))
    file = calibration_file(model)
    for name in list(policies()) if options.policies == ["all"] else options.policies:
        layers = kv_shape(model)[0]
        row: dict[str, Any] = {"name": f"{layers} layers {name}", "policy": name, "layers": layers}
        with report.guarded(row):
            caches = {mode: packed(model, name, file, graph, tokens) for mode, graph in GRAPHS.items()}
            row |= timed(dense, model, caches, tokens, options.rounds)
            if options.profile:
                row["profile"] = profiled(lambda: host_seconds(model, caches["replayed"], STEPS))  # noqa: B023
        free_memory()
    show(report)
    report.finish()


@torch.no_grad()
def host_seconds(model: nn.Module, cache: Cache, steps: int = 30) -> float:
    """Seconds of the host for one layer's ``update`` and attention of a single token, the median step."""
    layers, heads, dim = kv_shape(model)
    batch, query_heads = cache.layers[0].keys.shape[0], model.config.num_attention_heads
    new = {"device": model.device, "dtype": model.dtype}
    query = torch.randn(batch, query_heads, 1, dim, **new)
    key, value = (torch.randn(batch, heads, 1, dim, **new) for _ in range(2))
    modules = [layer.self_attn for layer in model.model.layers]
    found = []
    for _ in range(steps):
        synchronize(model.device)
        begin = time.perf_counter()
        for index, module in enumerate(modules):
            keys, values = cache.update(key, value, index)
            attention = ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", None)
            attention(module, query, keys, values, None, scaling=module.scaling)
        found.append((time.perf_counter() - begin) / layers)
    return statistics.median(found[steps // 3 :])


def packed(model: nn.Module, policy: str, calibration: Path, graph: Any, tokens: int) -> KVMMCache:
    """A cache of a policy that has packed ``tokens`` random tokens."""
    codecs = {spec.codec for spec in get_policy(policy).all_specs()}
    settings = {"calibration": str(calibration)} if "rd" in codecs else {}
    return fill(KVMMCache.for_model(model, policy=policy, graph=graph, **settings), model, 1, tokens).pack()


def timed(dense: nn.Module, model: nn.Module, caches: dict[str, KVMMCache], tokens: int, rounds: int) -> dict[str, Any]:
    """``host_us`` by kind of call, ``host_ratio`` of the default, ``replayed``, to ``dynamic``, and its range."""
    found: list[dict[str, float]] = []
    for _ in range(rounds + 1):
        one = {mode: host_seconds(model, cache, STEPS) for mode, cache in caches.items()}
        one["dynamic"] = host_seconds(dense, fill(DynamicCache(), dense, 1, tokens), STEPS)
        found.append(one)
    counted = found[1:]  # the first compiles and captures
    ratios = sorted(one["replayed"] / one["dynamic"] for one in counted)
    return {
        "host_us": {name: statistics.median(one[name] for one in counted) * 1e6 for name in counted[0]},
        "host_ratio": statistics.median(ratios),
        "ratios": [ratios[0], ratios[-1]],
    }


def profiled(call: Callable[[], object]) -> list[dict[str, Any]]:
    """The functions in which ``call`` spends most time of their own: calls, and microseconds in all of them."""
    profiler = cProfile.Profile()
    profiler.runcall(call)
    rows = pstats.Stats(profiler).stats.items()  # type: ignore[attr-defined]
    slowest = sorted(rows, key=lambda item: -item[1][2])[:SHOWN]
    return [
        {"function": f"{Path(file).name}:{line} {name}", "calls": calls, "own_us": own * 1e6}
        for (file, line, name), (_, calls, own, _, _) in slowest
    ]


def show(report: Report) -> None:
    """A table of the rows of the file."""
    rows = [
        [row["name"], *row["host_us"].values(), row["host_ratio"], *row["ratios"]]
        for row in sorted(report.rows, key=lambda row: -row.get("host_ratio", 0))
        if "host_us" in row
    ]
    table(("policy", *GRAPHS, "dynamic", "ratio", "least", "greatest"), rows)


if __name__ == "__main__":
    main()
