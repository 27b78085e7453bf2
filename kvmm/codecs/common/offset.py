"""A constant offset a channel, subtracted before codes that scale every token.

Keys of some models carry a huge constant bias (norms of 600 to 900 in Qwen2's). A scale per channel absorbs it in its
zero point; a scale or a norm per token would spend its whole range on it. So per-token codes store the mean of the keys
once a span and code what is left: ``q . k = q . mean + q . (k - mean)``.
"""

from __future__ import annotations

import torch

from kvmm.codecs.base import PAGE_SIZE, EncodeContext, Packed, Stored, StoreShape
from kvmm.fields import Field
from kvmm.kernels.quantize import Pages

OFFSET = {"offset": Stored("group")}  # how it is stored


def subtract_offset(
    pages: Pages,
    tokens: int,
    context: EncodeContext,
    dtype: torch.dtype,
    rotation: torch.Tensor | None = None,
) -> tuple[Pages, torch.Tensor, torch.Tensor]:
    """Subtract the mean over the tokens of a span.

    A span of fewer than a page's 128 tokens that comes behind another one (a page of an answer, a short second
    recording) goes without an offset of its own and takes the last one stored.

    Args:
        pages: with fill, which does not enter the mean.
        tokens: how many of the slots there are without the fill of the last page.
        context: what the codec was told.
        dtype: type of the stored offset.
        rotation: float32 ``[D, D]``, orthogonal, if the offset is stored in another basis, ``rotation x`` of ``x``.

    Returns:
        Centred pages, ``offset`` ``[B, H, 1 or 0, D]`` and ``page_group`` int32 ``[P]``, to be stored: the offset of
        each page counted from the first new one, so -1 is the last one stored before.
    """
    count = pages.shape[2]
    last = None if context.previous is None else context.previous["offset"][:, :, -1:]
    # a sequence that had no such token yet has an offset of zeros
    known = last is not None and bool((last != 0).any(-1).all())
    if known and tokens < PAGE_SIZE:
        group = torch.full((count,), -1, dtype=torch.int32, device=last.device)
        return _subtract(pages, last[:, :, 0], rotation), last[:, :, :0], group
    limit = torch.finfo(dtype).max
    mean = pages.mean() if rotation is None else pages.mean() @ rotation.T
    offset = mean.clamp(-limit, limit).to(dtype)
    group = torch.zeros(count, dtype=torch.int32, device=offset.device)
    return _subtract(pages, offset, rotation), offset.unsqueeze(2), group


def _subtract(pages: Pages, offset: torch.Tensor, rotation: torch.Tensor | None) -> Pages:
    """Pages without a stored offset ``[B, H, D]``."""
    return pages.subtract(offset if rotation is None else offset.float() @ rotation)


def offset_fields(store: StoreShape, dtype: torch.dtype) -> dict[str, Field]:
    """What :func:`subtract_offset` gives to be stored."""
    return {
        "offset": Field(dtype, (store.batch, store.heads, "groups", store.dim)),
        "page_group": Field(torch.int32, (store.pages,), 0, "groups"),
    }


def add_offset(pages: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Add the stored offsets ``[B, H, G, D]`` to decoded pages ``[B, H, P, N, D]``."""
    return pages + packed["offset"].float().index_select(2, packed.page_group).unsqueeze(3)


def offset_scores(query: torch.Tensor, offset: torch.Tensor, packed: Packed) -> torch.Tensor:
    """``q . offset``: queries ``[B, H, Q, D]``, offsets ``[B, H, G, D]`` to ``[B, H, Q, T]``, or ``[..., 1]`` if all
    pages share one."""
    scores = query @ offset.float().transpose(-1, -2)
    if offset.shape[2] == 1:
        return scores
    return scores.index_select(-1, packed.page_group).repeat_interleave(packed.page_size, -1)
