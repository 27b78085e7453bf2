"""Levels of :class:`kvmm.codecs.rd.RD`: those that follow from the calibration alone, and those of packed pages."""

from __future__ import annotations

import torch

from kvmm.codecs.base import Packed
from kvmm.kernels.quantize.layout import PlaneLayout
from kvmm.kernels.quantize.reference import gaussian_steps


def gaussian_levels(
    layout: PlaneLayout, deviation: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The levels that suit a Gaussian about zero.

    Args:
        layout: the bits of the channels.
        deviation: float32 ``[H, D]``.
        dtype: of what is returned.

    Returns:
        scale ``[1, H, 1, C]`` of the channels with codes and zero point ``[1, H, 1, D]``.
    """
    half, highest = gaussian_steps(tuple(layout.bits.tolist()), deviation.device)
    scale = 2 * half * deviation
    zero_point = -scale * highest / 2
    scale, zero_point = (p.to(dtype)[None, :, None] for p in (scale, zero_point))
    return scale[..., : layout.coded].contiguous(), zero_point  # kernels want whole rows


def page_levels(
    packed: Packed, offline: tuple[torch.Tensor, torch.Tensor] | None, offset: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The levels of every page.

    Args:
        packed: with ``scale`` and ``zero_point``; negative groups mean the levels of the calibration.
        offline: those, as :func:`gaussian_levels` returns them, or None.
        offset: float32 ``[H or 1, D]``, what the transform adds to all vectors, or None.

    Returns:
        scale and zero point float32 ``[B, H, G, ...]``, the zero point with the offset, and the group of each page, or
        None where all are of one.
    """
    levels, group, one = (packed["scale"], packed["zero_point"]), packed.page_group, packed.only_group
    if one is not None and one >= 0:
        levels, group = tuple(own[:, :, one : one + 1] for own in levels), None
    elif offline is not None:
        expanded = [other.expand(*own.shape[:2], 1, -1) for own, other in zip(levels, offline, strict=True)]
        if one is not None:
            levels, group = tuple(expanded), None
        else:
            levels = tuple(torch.cat(pair, 2) for pair in zip(levels, expanded, strict=True))
            group = torch.where(group < 0, levels[0].shape[2] - 1, group)
    scale, zero_point = (p.float() for p in levels)
    if offset is not None:
        zero_point = zero_point + offset.reshape(1, offset.shape[0], 1, offset.shape[1])
    return scale, zero_point, group


__all__ = ["gaussian_levels", "page_levels"]
