"""Tokens of tensors ``[B, H, T, D]``: more space for them, some of them, all of them in the order of the sequence."""

from __future__ import annotations

import torch

from kvmm.modality import TEXT
from kvmm.policy import KVPolicy


def stored_as(modality: torch.Tensor, policy: KVPolicy) -> torch.Tensor:
    """Whose pages tokens of the modality codes ``[B, n]`` go to: their own, or text's under ``mixed_modalities``."""
    return torch.full_like(modality, TEXT) if policy.mixed_modalities else modality


def growth(used: int) -> int:
    """How many tokens a buffer of ``used`` tokens makes space for when it grows: an eighth, between 8 and 128.

    Copying 128 tokens' worth a step is less than what attention reads in it, so that a long prompt need not pay with an
    eighth of its memory.
    """
    return min(max(8, used // 8), 128)


def with_capacity(buffer: torch.Tensor, used: int, capacity: int) -> torch.Tensor:
    """A buffer of ``capacity`` tokens with the first ``used`` of this one."""
    shape = list(buffer.shape)
    shape[2] = capacity
    grown = buffer.new_empty(shape)
    grown[:, :, :used] = buffer[:, :, :used]
    return grown


def take_tokens(x: torch.Tensor, index: torch.Tensor, start: int | None = None) -> torch.Tensor:
    """The tokens ``index`` ``[B, n]`` of ``x`` ``[B, H, T, D]``: a view where they are those from ``start`` on."""
    if start is not None:
        return x.narrow(2, start, index.shape[1])
    if index.shape[0] == 1:
        return x.index_select(2, index[0])
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def in_order(pieces: list[torch.Tensor], slots: torch.Tensor, length: int) -> torch.Tensor:
    """``length`` tokens, put together from several tensors in the dtype of the last.

    ``slots`` int ``[B, 1, n, 1]`` are the places of their tokens, -1 for what is left out; a place without one holds
    zeros.
    """
    dtype = pieces[-1].dtype
    joined = torch.cat([piece.to(dtype) for piece in pieces], 2)
    batch, heads, _, dim = joined.shape
    # one spare row takes the slots that hold no token
    ordered = joined.new_zeros(batch, heads, length + 1, dim)
    index = torch.where(slots < 0, length, slots).long().expand(-1, heads, -1, dim)
    return ordered.scatter_(2, index, joined)[:, :, :length]
