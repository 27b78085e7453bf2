"""What the first lines of the README give on this machine: ``generate()`` with a kvmm cache against ``DynamicCache``.

    python -m benchmarks.generate [--shapes 1x4k 1x32k 16x4k] [--policies balanced oscar2 kivi2 kitty]

A model of 36 layers and 1024 hidden units (random weights, 32 query heads, 8 KV heads of 128 channels) answers a prompt
of random tokens with ``KVMMCache.for_model(model, policy=...)`` and nothing else set, and with a ``DynamicCache`` made
by ``generate()`` itself (SDPA attention, a model object without kvmm). The two take turns; a round is a prompt with
1, ``--short`` and ``--tokens`` new tokens, from which come the seconds to the first token, of a short answer, and the
tokens a second behind the first token. Medians over ``--rounds``, after one round that compiles kernels
(``cold_seconds`` is its short answer). ``balanced`` has no calibration file here and is what it then falls back to;
``balanced+file`` is the same with one.

``host_us`` is the host's time for one layer's call of a step that is not captured (``graph=False``): ``cache.update``
and the attention function, without waiting for the GPU; beside it the same of ``DynamicCache`` and SDPA.
"""

from __future__ import annotations

import argparse
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
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from benchmarks.report import Report, add_common_options, table
from benchmarks.synthetic import build_model, calibration_file, fill, kv_shape
from benchmarks.timing import bandwidth, free_memory, synchronize
from kvmm import KVMMCache
from kvmm.attention import kvmm_attention_forward

SHAPES = {"1x4k": (1, 2**12), "1x32k": (1, 2**15), "16x4k": (16, 2**12)}
_SMOKE = (2, 160)
_WITH_FILE = "+file"
MakeCache = Callable[[], Cache]


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
        for policy in options.policies:
            row: dict[str, Any] = {"name": f"{shape} {policy}", "shape": shape, "policy": policy}
            row |= {"batch": batch, "tokens": length}
            with report.guarded(row):
                row |= measure(dense, model, prompt, policy, file, options)
            free_memory()
    show(report)
    report.finish()


def measure(
    dense: nn.Module, model: nn.Module, prompt: torch.Tensor, policy: str, file: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """What one row says: both sides in turns, then the host's part of a call."""
    name, with_file = policy.removesuffix(_WITH_FILE), policy.endswith(_WITH_FILE)
    extra = {"calibration": str(file)} if with_file else {}
    made: list[KVMMCache] = []

    def packed() -> Cache:
        made[:] = [KVMMCache.for_model(model, policy=name, **extra)]  # as the README writes it
        return made[0]

    counts = {"first": 1, "short": options.short, "long": options.tokens}
    sides: dict[str, tuple[nn.Module, MakeCache | None]] = {"dynamic": (dense, None), "kvmm": (model, packed)}
    seconds: dict[str, dict[str, list[float]]] = {side: {kind: [] for kind in counts} for side in sides}
    cold = {side: timed(*sides[side], prompt, options.short) for side in sides}
    timed(model, packed, prompt, options.tokens)  # kernels of pages that fill
    for _ in range(options.rounds):
        for kind, count in counts.items():
            for side, (which, make) in sides.items():
                seconds[side][kind].append(timed(which, make, prompt, count))
    found: dict[str, Any] = {"cold_seconds": cold}
    for side, runs in seconds.items():
        first, short, long = (statistics.median(runs[kind]) for kind in counts)
        rate = prompt.shape[0] * (options.tokens - 1) / (long - first)
        found[side] = {"first_ms": first * 1e3, "short_ms": short * 1e3, "tokens_per_second": rate}
        found[side]["ms_per_step"] = 1e3 * (long - first) / (options.tokens - 1)
    ours, theirs = found["kvmm"], found["dynamic"]
    found["ratio"] = ours["tokens_per_second"] / theirs["tokens_per_second"]
    found["first_ratio"] = ours["first_ms"] / theirs["first_ms"]
    found["short_ratio"] = ours["short_ms"] / theirs["short_ms"]
    cache, memory = made[0], made[0].memory()
    found["graph"] = None if cache.graph is None else cache.graph.report()
    found |= {"bits_per_value": memory.bits_per_value, "nbytes": memory.nbytes, "reserved": memory.reserved_nbytes}
    made.clear()
    del cache
    batch, length = prompt.shape
    plain = KVMMCache.for_model(model, policy=name, graph=False, **extra)
    found["host_us"] = {
        "kvmm": host_seconds(model, fill(plain, model, batch, length).pack(), kvmm_attention_forward) * 1e6,
        "dynamic": host_seconds(dense, fill(DynamicCache(), model, batch, length), sdpa_attention_forward) * 1e6,
    }
    found["host_ratio"] = found["host_us"]["kvmm"] / found["host_us"]["dynamic"]
    return found


@torch.no_grad()
def timed(model: nn.Module, make: MakeCache | None, prompt: torch.Tensor, tokens: int) -> float:
    """Seconds of one ``generate()``, the making of its cache included."""
    synchronize(prompt.device)
    begin = time.perf_counter()
    given = {} if make is None else {"past_key_values": make()}
    model.generate(prompt, **given, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    synchronize(prompt.device)
    return time.perf_counter() - begin


@torch.no_grad()
def host_seconds(model: nn.Module, cache: Cache, attention: Callable[..., Any], steps: int = 30) -> float:
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
            attention(module, query, keys, values, None, scaling=module.scaling)
        found.append((time.perf_counter() - begin) / layers)
    return statistics.median(found[steps // 3 :])


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
        cold = row["cold_seconds"]["kvmm"]
        rows.append([row["shape"], row["policy"], *rates, *ratios, *host, row["host_ratio"], cold])
    table(header, rows)


if __name__ == "__main__":
    main()
