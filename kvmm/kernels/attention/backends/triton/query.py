"""Queries in the transform and the lanes of a segment's keys: launches of ``query_kernels``."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from triton import next_power_of_2
from triton.runtime.interpreter import InterpretedFunction

from kvmm.kernels.attention.backends.triton.call import DecodeCall, head_stride, pair_stride, paired, strides_of
from kvmm.kernels.attention.backends.triton.query_kernels import expand_kernel, transform_kernel
from kvmm.kernels.attention.format import PackedFormat, aligned


def interpreted() -> bool:
    """Whether the kernels run under Triton's interpreter."""
    return isinstance(transform_kernel, InterpretedFunction)


@lru_cache
def multiplies_bf16(device: torch.device) -> bool:
    """Whether matrices of bfloat16 can be multiplied: on GPUs from compute capability 8.0, not in the interpreter."""
    return not interpreted() and torch.cuda.get_device_capability(device) >= (8, 0)


def transformed_query_buffer(call: DecodeCall, keys: PackedFormat) -> torch.Tensor:
    """A buffer for the transformed queries, or the queries themselves if keys have no transform."""
    if keys.transform is None:
        return call.query
    return call.empty(call.bh, call.rows, keys.transform.shape[-1])


def transform_query(call: DecodeCall, keys: PackedFormat, out: torch.Tensor, launch_dependents: bool = False) -> None:
    """Write the transformed queries to ``out`` (:func:`transformed_query_buffer`).

    ``launch_dependents``: start the next kernel at once; it waits for ``out`` itself (PDL).
    """
    if keys.transform is None:
        return
    width = out.shape[-1]
    shared = keys.transform.shape[0] == 1  # then all heads' rows are one matrix product
    heads, rows = (1, call.num_kv_heads * call.rows) if shared else (call.num_kv_heads, call.rows)
    batch = call.bh // call.num_kv_heads
    row_block, column_block = (16, 32) if batch * rows <= 64 else (64, 64)  # of a program
    transform_kernel[heads, -(-width // column_block), -(-batch * rows // row_block)](
        call.query, keys.transform, keys.channel_order, out, heads, batch, rows, width, head_stride(keys.transform),
        call.num_kv_heads, call.rows, *strides_of(keys.channel_order),
        D=call.dim, DP=max(16, next_power_of_2(call.dim)), RP=row_block, WC=column_block,
        BF16=call.query.dtype == torch.bfloat16 and multiplies_bf16(call.query.device),
        LAUNCH_DEPENDENTS=launch_dependents, num_warps=4,
    )  # fmt: skip


def expand_query(call: DecodeCall, keys: PackedFormat, int8: bool, out: torch.Tensor | None = None) -> dict[str, Any]:
    """The queries in the lanes of ``keys``, as ``attention_kernel`` reads them.

    ``out`` ``[B, H, groups, 2 * rows, L]`` may hold the first groups only, if no page uses the others.
    """
    groups, lanes = keys.groups if out is None else out.shape[2], keys.lanes
    chunks = keys.scale.shape[3] if keys.by_token else 1
    zero = keys.mean if keys.by_token else keys.zero_point
    fold = int8 and not keys.by_token
    if lanes == 0:
        lanes = aligned(1)
    out = out if out is not None else call.empty(
        call.bh, *((groups if fold else 1,) if int8 else ()), call.rows, *((2,) if int8 else ()), lanes,
        dtype=torch.int8 if int8 else torch.float16,
    )  # fmt: skip
    weight = call.empty(call.bh, groups if fold else 1, call.rows)
    bias = None if zero is None else call.empty(call.bh, groups, call.rows)
    sums = call.empty(call.bh, call.rows, chunks) if keys.by_token else None
    scale = paired(keys.scale) if fold and keys.planes else None
    zero = None if zero is None else paired(zero)
    fallback_scale, fallback_zero = keys.fallback or (None, None)
    lane_channel = keys.lane_channel if keys.planes else None
    plane_weight = keys.plane_weight if int8 and keys.planes else None  # half precision has it in the codes' scale
    z = transformed_query_buffer(call, keys)
    width = z.shape[-1]
    transform_query(call, keys, z)
    group_block = 1 if groups == 1 else 4
    row_block = min(4, call.row_block)
    dz = 1 if zero is None else zero.shape[-1]
    expand_kernel[call.bh, -(-groups // group_block), -(-call.rows // row_block)](
        z, lane_channel, keys.group_channel, plane_weight, scale, zero, keys.offset, fallback_scale, fallback_zero,
        out, weight, bias, sums,
        call.num_kv_heads, call.rows, groups, keys.scale.shape[2] if keys.fallback and not keys.by_token else groups,
        call.scaling, width, pair_stride(scale), pair_stride(zero), pair_stride(keys.group_channel),
        0 if keys.offset is None or keys.offset.shape[0] == 1 else keys.offset.shape[-1],
        0 if fallback_zero is None or fallback_zero.shape[1] == 1 else 1,
        lanes, aligned(keys.planes[0].width) if keys.planes else 0,
        0 if keys.group_channel is None else keys.group_channel.shape[-1], 0 if scale is None else scale.shape[-1], dz,
        DP=next_power_of_2(dz), JP=next_power_of_2(lanes), RP=row_block, GROUPS=group_block, CHUNKS=chunks,
        HAS_LANE_CHANNEL=lane_channel is not None, HAS_GROUP_CHANNEL=keys.group_channel is not None,
        HAS_PLANE_WEIGHT=plane_weight is not None,
        HAS_SCALE=scale is not None, HAS_ZERO=zero is not None, HAS_OFFSET=keys.offset is not None,
        HAS_FALLBACK=keys.fallback is not None, QUANTISE=int8, SUMS=sums is not None, num_warps=1,
    )  # fmt: skip
    return {"Q": out, "QW": weight, "QZ": bias, "QS": sums, "kgroups": groups}
