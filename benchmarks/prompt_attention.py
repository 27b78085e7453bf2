"""Attention of a prompt on a CPU: the C library beside torch's SDPA, in turn in one process.

    python -m benchmarks.prompt_attention [--threads 2] [--rounds 7]

In each dtype that the library multiplies on this processor. Shapes are those of office-omni: a page of 3908 patches
before its vision tower, and causal prompts of one page and of four before its text tower, the fourth page also behind
the other three. ``ratio`` is the median over rounds of what torch takes in what the library takes, and ``flops`` counts
the two products of the keys that are seen. Distances are from float64, relative.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch

from benchmarks.report import Report, add_common_options, table
from kvmm.errors import KVMMError
from kvmm.kernels.prompt_attention import native, reference


@dataclass(frozen=True)
class Shape:
    """Heads, KV heads, tokens, channels a head, whether a query sees earlier tokens only, and tokens without one."""

    heads: int
    kv_heads: int
    tokens: int
    dim: int
    causal: bool
    before: int = 0


SHAPES = {
    "patches of a page": Shape(4, 4, 3908, 64, False),
    "prompt of a page": Shape(9, 3, 977, 64, True),
    "prompt of four pages": Shape(9, 3, 3885, 64, True),
    "fourth page behind three": Shape(9, 3, 3885, 64, True, 2914),
}
SIDES: dict[str, Callable[..., torch.Tensor]] = {
    "library": native.prompt_attention,
    "torch": reference.prompt_attention,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row.

    Raises:
        KVMMError: the library does not run on this machine.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds after one warm-up")
    add_common_options(parser, "prompt_attention")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if not native.dtypes():
        raise KVMMError(
            "This needs a C compiler and a processor with AVX2 and no AVX512, or with AVX512_BF16 and no AMX."
        )
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    report = Report("prompt_attention", given, options)
    for dtype, (name, shape) in itertools.product(native.dtypes(), SHAPES.items()):
        named = str(dtype).removeprefix("torch.")
        row: dict[str, Any] = {"name": f"{name}, {named}", "dtype": named, **vars(shape)}
        with report.guarded(row):
            heads, kv_heads, tokens, dim, causal, before = astuple(shape)
            if options.smoke:
                tokens, before = 200, min(before, 100)
            query = torch.randn(1, tokens - before, heads, dim, dtype=dtype).transpose(1, 2)
            key, value = (torch.randn(1, kv_heads, tokens, dim, dtype=dtype) for _ in range(2))
            row |= measure(query, key, value, causal, options.rounds)
    keys = ("library_ms", "torch_ms", "ratio", "library_gflops", "library_distance", "torch_distance")
    table(("row", *keys), [[row["name"], *(row.get(key) for key in keys)] for row in report.rows])
    report.finish()


def measure(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, rounds: int) -> dict[str, Any]:
    """What one row says."""
    heads, queries, dim = query.shape[1:]
    call = (query, key, value, dim**-0.5, causal)
    seconds = [{side: _seconds(function, call) for side, function in SIDES.items()} for _ in range(rounds + 1)][1:]
    products = 4 * heads * queries * dim * (key.shape[2] - (queries - 1) / 2 if causal else key.shape[2])
    row = {f"{side}_ms": 1e3 * statistics.median(one[side] for one in seconds) for side in SIDES}
    row |= {f"{side}_gflops": products / row[f"{side}_ms"] / 1e6 for side in SIDES}
    row["ratio"] = statistics.median(one["torch"] / one["library"] for one in seconds)
    exact = reference.prompt_attention(*(x.double() for x in call[:3]), *call[3:])
    distances = {side: (function(*call).double() - exact).norm() / exact.norm() for side, function in SIDES.items()}
    return row | {f"{side}_distance": float(distance) for side, distance in distances.items()}


def _seconds(function: Callable[..., torch.Tensor], call: tuple[Any, ...]) -> float:
    begin = time.perf_counter()
    function(*call)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
