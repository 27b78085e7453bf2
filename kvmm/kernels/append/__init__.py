"""Append new keys and values to static buffers."""

from __future__ import annotations

import torch

from kvmm.kernels.append import reference


def append_tokens(
    key_buffer: torch.Tensor,
    value_buffer: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    position: torch.Tensor,
) -> None:
    """Write one token's keys and values at a position read on the device, in place.

    Args:
        key_buffer, value_buffer: ``[B, H, n, D]``, contiguous.
        key, value: ``[B, H, 1, D]``, cast to the buffers' dtype as :func:`kvmm.kernels.exact.to_exact` does.
        position: int64 ``[1]``, the token index in the buffers.
    """
    if key.is_cuda:
        from kvmm.kernels.append.triton import append_tokens as kernel

        kernel(key_buffer, value_buffer, key, value, position)
    else:
        reference.append_tokens(key_buffer, value_buffer, key, value, position)


__all__ = ["append_tokens"]
