"""Decode attention over angle codes and exact values with several plans of its CUDA kernel.

    python -m benchmarks.angle_plans [--shapes 1x128k 64x4k] [--policies spherical-high] [--plans 8,5,1 6,3,2]

A plan is warps a block, tiles of values that a warp has under way, and blocks a multiprocessor
(:mod:`kvmm.kernels.attention.backends.cuda.angle_kernel`, which has those that came out best). What is timed is the
whole call, as in :mod:`benchmarks.decode_attention`, in a CUDA graph; bf16 is not measured. ``floor_us`` is the time in
which the memory delivers what a call reads and writes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import torch

from benchmarks.decode_attention import _SMOKE, SHAPES, Inputs, distance, pack, packed_tokens, queries, several
from benchmarks.report import Report, add_common_options, table
from benchmarks.synthetic import random_vectors
from benchmarks.timing import bandwidth, free_memory, l2_bytes, time_calls
from kvmm import get_policy
from kvmm.kernels.attention.backends.cuda import angle_kernel

_POLICIES = ("spherical-high", "spherical-mid", "spherical-low")
_PLANS = ("8,5,1", "8,4,1", "6,3,2", "4,4,2", "12,4,1")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["1x128k", "32x8k", "64x4k"], choices=list(SHAPES))
    parser.add_argument("--policies", nargs="+", default=list(_POLICIES), choices=_POLICIES)
    parser.add_argument("--plans", nargs="+", default=list(_PLANS), help="warps, stages and blocks")
    parser.add_argument("--runs", type=int, default=20, help="timed replays, of which the median counts")
    add_common_options(parser, "angle_plans")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    torch.manual_seed(options.seed)
    report = Report("angle_plans", given, options)
    report.run["bandwidth"] = bandwidth(options.device)
    report.run["l2_bytes"] = l2_bytes(options.device)
    for shape in options.shapes:
        for policy in options.policies:
            plan_rows(report, shape, policy, options)
            free_memory()
    names = ("us", "floor_us", "floor_share", "error")
    table(("case", *names), [[row["name"], *(row.get(name) for name in names)] for row in report.rows])
    report.finish()


def plan_rows(report: Report, name: str, policy_name: str, options: argparse.Namespace) -> None:
    """A row for each plan, on the same data."""
    shape, policy = _SMOKE if options.smoke else SHAPES[name], get_policy(policy_name)
    size = (shape.batch, shape.heads, shape.tokens, shape.dim)
    key, value = (random_vectors(size, options.device, torch.bfloat16) for _ in range(2))
    packed = packed_tokens(policy, shape.tokens)
    parts = [pack(policy, key[:, :, :packed], value[:, :, :packed])]
    query = queries(shape, key, options.device)
    inputs = Inputs(query, parts, *(x[:, :, packed:].clone() for x in (key, value)))
    calls = [one.attend for one in several(inputs, options.device)]
    floor = inputs.nbytes / max(report.run["bandwidth"].values())
    for plan in options.plans:
        warps, stages, blocks = map(int, plan.split(","))
        fields = {"warps": warps, "stages": stages, "blocks": blocks}
        row = {"name": f"{name} {policy_name} {plan}", "shape": name, "policy": policy_name, "plan": plan}

        def fitted(variant, device, units, fields=fields):
            return replace(variant, **fields)

        with report.guarded(row), patch.object(angle_kernel, "_fitted", fitted):
            row["error"] = distance(inputs)
            timing = time_calls(calls, options.device, options.runs)
            row |= {"us": timing.median * 1e6, "floor_us": floor * 1e6, "floor_share": floor / timing.median}


if __name__ == "__main__":
    main()
