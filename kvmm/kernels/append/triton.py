"""Append new keys and values to static buffers: one launch for both."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _to_exact(x, dtype: tl.constexpr):
    if dtype == tl.float16 and x.dtype != tl.float16:
        x = tl.minimum(tl.maximum(x.to(tl.float32), -65504.0), 65504.0)
    return x.to(dtype)


@triton.jit(do_not_specialize=["capacity"])
def _append_kernel(
    key_buffer,
    value_buffer,
    key,
    value,
    position,
    key_strides_b,
    key_strides_h,
    value_strides_b,
    value_strides_h,
    capacity,
    heads,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # sequence * heads + head
    token = tl.load(position)
    channel = tl.arange(0, block)
    batch, head = row // heads, row % heads
    new = tl.load(key + batch * key_strides_b + head * key_strides_h + channel, mask=channel < key_dim)
    new = _to_exact(new, key_buffer.dtype.element_ty)
    tl.store(key_buffer + (row * capacity + token) * key_dim + channel, new, mask=channel < key_dim)
    new = tl.load(value + batch * value_strides_b + head * value_strides_h + channel, mask=channel < value_dim)
    new = _to_exact(new, value_buffer.dtype.element_ty)
    tl.store(value_buffer + (row * capacity + token) * value_dim + channel, new, mask=channel < value_dim)


def append_tokens(
    key_buffer: torch.Tensor,
    value_buffer: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    position: torch.Tensor,
) -> None:
    """See :func:`kvmm.kernels.append.append_tokens`."""
    batch, heads, capacity, key_dim = key_buffer.shape
    value_dim = value_buffer.shape[3]
    key = key if key.stride(3) == 1 else key.contiguous()
    value = value if value.stride(3) == 1 else value.contiguous()
    _append_kernel[(batch * heads,)](
        key_buffer,
        value_buffer,
        key,
        value,
        position,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        capacity,
        heads,
        key_dim,
        value_dim,
        triton.next_power_of_2(max(key_dim, value_dim)),
        num_warps=1,
    )
