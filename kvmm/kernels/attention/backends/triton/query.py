"""The queries of a decode step in the basis and the digits of a part's keys: launches of ``triton_query``."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from triton import next_power_of_2
from triton.runtime.interpreter import InterpretedFunction

from kvmm.kernels.attention.backends.triton.call import Step, head_stride, pair_stride, paired
from kvmm.kernels.attention.backends.triton.query_kernels import expand_kernel, transform_kernel
from kvmm.kernels.attention.format import PackedFormat, aligned


def interpreted() -> bool:
    """Whether the kernels run under Triton's interpreter."""
    return isinstance(transform_kernel, InterpretedFunction)


@lru_cache
def multiplies_bf16(device: torch.device) -> bool:
    """Whether matrices of bfloat16 can be multiplied: on GPUs from compute capability 8.0, not in the interpreter."""
    return not interpreted() and torch.cuda.get_device_capability(device) >= (8, 0)


def basis(step: Step, keys: PackedFormat) -> torch.Tensor:
    """Room for the queries in the keys' basis, or the queries."""
    if keys.transform is None:
        return step.query
    return step.empty(step.bh, step.rows, keys.transform.shape[-1])


def transform(step: Step, keys: PackedFormat, z: torch.Tensor, early: bool = False) -> None:
    """The queries in the keys' basis, to what :func:`basis` made. ``early``: the next kernel waits for it itself."""
    if keys.transform is None:
        return
    width = z.shape[-1]
    shared = keys.transform.shape[0] == 1  # then all heads' rows are one matrix product
    heads, rows = (1, step.heads * step.rows) if shared else (step.heads, step.rows)
    batch = step.bh // step.heads
    # rows that share one reading of the matrix, and columns a program
    together, columns = (16, 32) if batch * rows <= 64 else (64, 64)
    transform_kernel[heads, -(-width // columns), -(-batch * rows // together)](
        step.query, keys.transform, z, heads, batch, rows, width, head_stride(keys.transform),
        D=step.dim, DP=max(16, next_power_of_2(step.dim)), RP=together, WC=columns,
        BF16=step.query.dtype == torch.bfloat16 and multiplies_bf16(step.query.device), EARLY=early, num_warps=4,
    )  # fmt: skip


def expand(step: Step, keys: PackedFormat, int8: bool, out: torch.Tensor | None = None) -> dict[str, Any]:
    """The queries in the digits of ``keys``: arguments of ``split_kernel``.

    ``out`` ``[B, H, groups, 2 * rows, Q]`` may have room for the first groups only, where no page uses others.
    """
    groups, columns = keys.groups if out is None else out.shape[2], keys.lanes
    chunks = keys.scale.shape[3] if keys.by_token else 1
    zero = keys.mean if keys.by_token else keys.zero_point
    fold = int8 and not keys.by_token
    if columns == 0:
        columns = aligned(1)
    out = out if out is not None else step.empty(
        step.bh, *((groups if fold else 1,) if int8 else ()), step.rows, *((2,) if int8 else ()), columns,
        dtype=torch.int8 if int8 else torch.float16,
    )  # fmt: skip
    weight = step.empty(step.bh, groups if fold else 1, step.rows)
    bias = None if zero is None else step.empty(step.bh, groups, step.rows)
    sums = step.empty(step.bh, step.rows, chunks) if keys.by_token else None
    scale = paired(keys.scale) if fold and keys.planes else None
    zero = None if zero is None else paired(zero)
    extra_scale, extra_zero = keys.fallback or (None, None)
    index = keys.lane_channel if keys.planes else None
    place = keys.plane_weight if int8 and keys.planes else None  # half precision has it in the codes' scale
    z = basis(step, keys)
    width = z.shape[-1]
    transform(step, keys, z)
    per_program = 1 if groups == 1 else 4
    height = min(4, step.block)
    dz = 1 if zero is None else zero.shape[-1]
    expand_kernel[step.bh, -(-groups // per_program), -(-step.rows // height)](
        z, index, keys.group_channel, place, scale, zero, keys.offset, extra_scale, extra_zero,
        out, weight, bias, sums,
        step.heads, step.rows, groups, keys.scale.shape[2] if keys.fallback and not keys.by_token else groups,
        step.scaling, width, pair_stride(scale), pair_stride(zero), pair_stride(keys.group_channel),
        0 if keys.offset is None or keys.offset.shape[0] == 1 else keys.offset.shape[-1],
        0 if extra_zero is None or extra_zero.shape[1] == 1 else 1,
        columns, aligned(keys.planes[0].width) if keys.planes else 0,
        0 if keys.group_channel is None else keys.group_channel.shape[-1], 0 if scale is None else scale.shape[-1], dz,
        DP=next_power_of_2(dz), JP=next_power_of_2(columns), RP=height, GROUPS=per_program, CHUNKS=chunks,
        HAS_INDEX=index is not None, HAS_GROUP_INDEX=keys.group_channel is not None, HAS_PLACE=place is not None,
        HAS_SCALE=scale is not None, HAS_ZERO=zero is not None, HAS_OFFSET=keys.offset is not None,
        HAS_EXTRA=keys.fallback is not None, QUANTISE=int8, SUMS=sums is not None, num_warps=1,
    )  # fmt: skip
    return {"Q": out, "QW": weight, "QZ": bias, "QS": sums, "kgroups": groups}
