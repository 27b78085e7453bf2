"""Which bits the channels of :class:`kvmm.codecs.rd.RD` have in stored pages, and how kernels read their lanes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kvmm.codecs.base import Packed
from kvmm.codecs.common.transform import Transform
from kvmm.codecs.spec import Side
from kvmm.kernels.attention.format import lanes_by_channel, plane_layout
from kvmm.kernels.quantize.layout import PlaneLayout, layout_of


def lane_tables(layout: PlaneLayout, transform: Transform, side: Side) -> tuple[torch.Tensor | None, ...]:
    """Fields of :class:`kvmm.kernels.attention.format.PackedFormat` that follow from bits and transform.

    Returns:
        ``lane_channel``, ``plane_weight``, ``channel_lanes``, ``channel_weights``, ``transform`` and
        ``lane_transform``, on the transform's device.
    """
    runs = [tuple((0, n, 4.0**plane) for plane, n in layout.two_bit_planes)] if layout.two_bit_planes else []
    if layout.one_bit:
        runs.append(((layout.one_bit.start, len(layout.one_bit), 1.0),))
    channel, weight = plane_layout(tuple(runs), transform.forward.device)
    matrix, lane_transform = transform.inverse, None
    if side == "value":
        matrix = matrix.transpose(-1, -2)
        lane_transform = matrix.index_select(1, channel) * (weight != 0)[:, None]
    by_channel = lanes_by_channel(channel, weight, transform.forward.shape[-1])
    return channel, weight, *by_channel, matrix.contiguous(), lane_transform


def no_codes(packed: Packed, dim: int) -> torch.Tensor:
    """What :meth:`PlaneLayout.unpack` would return without a coded channel."""
    pages = (*packed["zero_point"].shape[:2], len(packed.page_group), packed.page_size)
    empty = packed["zero_point"].new_zeros(*pages, 0, dtype=torch.float32)
    return empty if dim == -2 else empty.transpose(-1, -2)


def stored_layout(tensors: Mapping[str, torch.Tensor], previous: Packed | None = None) -> PlaneLayout:
    """The bits of channels that were fitted to a prompt, from what is stored with its pages."""
    bits = tensors["bits"] if previous is None else previous["bits"]
    return layout_of(tuple(bits[0, 0, 0].tolist()))


__all__ = ["lane_tables", "no_codes", "stored_layout"]
