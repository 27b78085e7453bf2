"""Append new keys and values to static buffers, in torch."""

from __future__ import annotations

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
