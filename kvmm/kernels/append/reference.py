"""Static buffers and what is appended to them, in torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvmm.kernels.exact import to_exact


def append_tokens(
    key_buffer: torch.Tensor,
    value_buffer: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    position: torch.Tensor,
) -> None:
    """See :func:`kvmm.kernels.append.append_tokens`."""
    key_buffer.index_copy_(2, position, to_exact(key, key_buffer.dtype))
    value_buffer.index_copy_(2, position, to_exact(value, value_buffer.dtype))


def with_rows(tensors: Sequence[tuple[torch.Tensor, int, int]]) -> list[torch.Tensor]:
    """See :func:`kvmm.kernels.append.with_rows`."""
    grown = []
    for x, rows, fill in tensors:
        grown.append(x.new_full((*x.shape[:2], rows, *x.shape[3:]), fill))
        grown[-1][:, :, : x.shape[2]] = x
    return grown
