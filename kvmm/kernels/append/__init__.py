"""Static buffers: what they begin with, and new keys and values appended to them."""

from __future__ import annotations

from collections.abc import Sequence

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


def with_rows(tensors: Sequence[tuple[torch.Tensor, int, int]]) -> list[torch.Tensor]:
    """Copy tensors into ones that have more rows.

    Args:
        tensors: of each ``[B, H, n, ...]``, how many rows it shall have in place of ``n``, at least as many, and the
            number that fills those behind, 0 but for int32.

    Returns:
        contiguous tensors, one for each.
    """
    if tensors and all(x.is_cuda and (not fill or x.dtype == torch.int32) for x, _, fill in tensors):
        from kvmm.kernels.append.grow import with_rows as kernel

        return kernel(tensors)
    return reference.with_rows(tensors)


__all__ = ["append_tokens", "with_rows"]
