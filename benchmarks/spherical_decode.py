"""Spherical KV's central claim (ablation A1): attention over angle codes against rebuilding the keys first.

    python -m benchmarks.spherical_decode [--shapes 1x128k 32x8k] [--codes spherical-high angles-4] [--layers 36]

Both read the same codes of the same keys. *Direct* is what the package does with a query of a layer, whatever kernel
that is on the machine (:func:`kvmm.kernels.attention.attend`); *rebuilt* (``reconstruct=True``) writes dense keys and
multiplies. *Dense* is the fastest attention over keys in bfloat16. Values are in bfloat16 everywhere, as in the paper.

``hbm_bytes`` are counted, not read from hardware counters: every tensor that a call has to read or write once, and for
the control the dense keys, written and read. ``scratch_bytes`` is measured, what a call allocates at most beside its
inputs (CUDA only); a path that claims not to rebuild keys must stay below their size. ``tokens_per_second`` is of
attention alone, through so many layers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.decode_attention import (
    _SMOKE,
    BASELINES,
    SHAPES,
    Inputs,
    Shape,
    _dense_sets,
    baseline,
    distance,
    pack,
    packed_tokens,
    queries,
    several,
)
from benchmarks.report import Report, add_common_options, table
from benchmarks.synthetic import random_vectors
from benchmarks.timing import bandwidth, free_memory, l2_bytes, synchronize, time_calls
from kvmm import KVPolicy, get_policy
from kvmm.policy import CodecSpec, KVSpec, spec

CODES: dict[str, CodecSpec] = {
    **{name: get_policy(name).text.key for name in ("spherical-high", "spherical-mid", "spherical-low")},
    **{f"angles-{bits}": spec("spherical-angles", bits) for bits in (4, 3, 2)},
}
_REBUILT = 4  # bytes of a channel of a rebuilt key, which is float32


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["1x128k", "32x8k", "64x4k"], choices=list(SHAPES))
    parser.add_argument("--codes", nargs="+", default=list(CODES), choices=list(CODES))
    parser.add_argument("--layers", type=int, default=36, help="of a model, for tokens per second")
    parser.add_argument("--baselines", nargs="+", default=["flash", "cudnn"], choices=list(BASELINES))
    parser.add_argument("--runs", type=int, default=50, help="timed replays, of which the median counts")
    add_common_options(parser, "spherical_decode")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    torch.manual_seed(options.seed)
    report = Report("spherical_decode", given, options)
    report.run["bandwidth"] = bandwidth(options.device)
    report.run["l2_bytes"] = l2_bytes(options.device)
    report.run["settings"] = {"runs": options.runs, "layers": options.layers, "values": "bfloat16"}
    for name in options.shapes:
        shape_rows(report, name, _SMOKE if options.smoke else SHAPES[name], options)
    show(report)
    report.finish()


def shape_rows(report: Report, name: str, shape: Shape, options: argparse.Namespace) -> None:
    """Rows of one shape: every code, read directly and by rebuilding."""
    size = (shape.batch, shape.heads, shape.tokens, shape.dim)
    key, value = (random_vectors(size, options.device, torch.bfloat16) for _ in range(2))
    query = queries(shape, key, options.device)
    dense = baseline(_dense_sets(query, key, value, options.device), options)
    speed = max(report.run["bandwidth"].values())
    for code in options.codes:
        for path in ("direct", "rebuilt"):
            row = {"name": f"{name} {code} {path}", "shape": name, "code": code, "path": path, **vars(shape), **dense}
            with report.guarded(row):
                policy = policy_of(code, rebuilt=path == "rebuilt")
                packed = packed_tokens(policy, shape.tokens)
                part = pack(policy, key[:, :, :packed], value[:, :, :packed])
                inputs = Inputs(query, [part], *(x[:, :, packed:].clone() for x in (key, value)))
                row |= measure(inputs, shape, packed, speed, path, options)
            free_memory()


def policy_of(code: str, rebuilt: bool) -> KVPolicy:
    """Keys of a code and exact values, for everything."""
    key = CODES[code]
    if rebuilt:
        key = replace(key, options=tuple(sorted({**dict(key.options), "reconstruct": True}.items())))
    kv = KVSpec(key, spec("bf16"))
    return KVPolicy(code, "", kv, kv, kv, kv)


def measure(
    inputs: Inputs, shape: Shape, packed: int, speed: float, path: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Time, bytes and tokens per second of one path."""
    keys = sum(tensor.nbytes for tensor in inputs.parts[0].key.packed.tensors.values())
    rebuilt = shape.batch * shape.heads * packed * shape.dim * _REBUILT
    nbytes = inputs.nbytes + (2 * rebuilt if path == "rebuilt" else 0)
    timing = time_calls([one.attend for one in several(inputs, options.device)], options.device, options.runs)
    found = {
        "us": timing.median * 1e6,
        "tokens_per_second": shape.batch / (timing.median * options.layers),
        "key_bits_per_value": 8 * keys / (shape.batch * shape.heads * packed * shape.dim),
        "hbm_bytes": nbytes,
        "floor_us": nbytes / speed * 1e6,
        "share_of_floor": nbytes / speed / timing.median,
        "error": distance(inputs),
        "timing": timing.to_dict(),
    }
    return found | ({"scratch_bytes": scratch(inputs)} if torch.device(options.device).type == "cuda" else {})


def scratch(inputs: Inputs) -> int:
    """Bytes that a call holds at most beside what was there before."""
    inputs.attend()
    synchronize("cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    inputs.attend()
    synchronize("cuda")
    return torch.cuda.max_memory_allocated() - before


def show(report: Report) -> None:
    """Print what was measured."""
    names = ("us", "tokens_per_second", "hbm_bytes", "floor_us", "share_of_floor", "scratch_bytes", "error")
    rows = [[row["name"], *(row.get(name) for name in names), row.get("baseline_us")] for row in report.rows]
    table(("path", *names, "dense_us"), rows)


if __name__ == "__main__":
    main()
