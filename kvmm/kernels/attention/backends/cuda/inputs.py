"""What the CUDA split kernel reads: keys, values, queries and residual tokens as it has them in memory.

:mod:`kvmm.kernels.attention.format` describes a store for all kernels; these are the operands of one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvmm.kernels.attention.format import aligned

Plane = tuple[torch.Tensor, int]  # packed codes and their bits


@dataclass(frozen=True)
class KeyPlanes:
    """Keys of one segment as the kernel reads them.

    Attributes:
        planes: one or two of ``(codes, bits)``: uint8 ``[B, H, P, N * bits / 8, J_i]``, packed along tokens
            (:func:`kvmm.kernels.quantize.pack_planes`), the last two dimensions contiguous.
        page_size: ``N``, tokens a page.
        group: the query's group a page uses: ``"span"`` (group 0), ``"page"`` (its own) or int32 ``[P]``, where
            negative numbers count from the last group.
        norm: float16 or float32 ``[B, H or 1, P, N]``, multiplied into the logits, or None.
        high_norm: of the same type and shape as ``norm``, multiplied into what the second plane's channels add
            instead; or None.
        point: of the same type and shape as ``norm``, zero points by token, added to all channels behind the norms, or
            None.
        bit_lanes: whether each bit of a code is a lane of its own, all codes' lowest bits first, each bit's lanes
            padded to 32. Of codes with a bit in the second plane that bit and the parity of all bits follow; a lane of
            the first plane's bit ``i`` counts ``2 ** i``, one of these counts 1.
        kept_slot: int32 ``[B, H, E]``, slots to leave out, ascending, or None.
        chunks: with ``point``, groups of neighbouring lanes that have scales and zero points of their own: ``norm`` and
            ``point`` are ``[B, H, P, chunks * N]``.
        channels: where lanes are the digits of channels' codes, powers of two apart, how many channels; or None where
            every lane is a channel or part of one of its own.
        heads_together: heads that one of a store's serves; ``H`` of what it has by token counts these.
        groups_in_page: with a group of its own, or several, for every page: how many, of equally many tokens.
    """

    planes: tuple[Plane, ...]
    page_size: int
    group: str | torch.Tensor = "span"
    norm: torch.Tensor | None = None
    groups_in_page: int = 1
    point: torch.Tensor | None = None
    bit_lanes: bool = False
    kept_slot: torch.Tensor | None = None
    chunks: int = 1
    heads_together: int = 1
    high_norm: torch.Tensor | None = None
    channels: int | None = None

    @property
    def width(self) -> int:
        """Lanes of the expanded query."""
        if not self.bit_lanes:
            return padded_lanes(self.planes, -1)
        first, *more = (aligned(codes.shape[-1]) for codes, _ in self.planes)
        return first * self.planes[0][1] + 2 * sum(more)


@dataclass(frozen=True)
class ValuePlanes:
    """Values of one segment as the kernel reads them.

    Attributes:
        planes: one or two of ``(codes, bits)``: uint8 ``[B, H, P, J_i, N * bits / 8]``, packed along tokens, the last
            two dimensions contiguous.
        axis: ``"channel"`` or ``"token"``, what has a scale of its own.
        scale: axis ``"channel"``: float32 ``[B, H, G, JV]``, contiguous, already expanded to lanes; with one group
            the caller applies it and the kernel ignores it. Axis ``"token"``: float16 or float32 ``[B, H, P, S, N]``
            for ``S`` groups of neighbouring channels, not negative.
        zero_point: axis ``"token"``: like ``scale``. Axis ``"channel"``: float32 ``[B, H, G, Dz]``, contiguous, ``Dz``
            a multiple of 8; with one group the caller applies it (to ``l`` or the sums of norms).
        group: as in :class:`KeyPlanes`, axis ``"channel"`` only.
        norm: float16 or float32 ``[B, H or 1, P, N]``, not negative, multiplied into the probabilities (axis
            ``"channel"``), or None.
        high_norm: with ``bit_weights``, of the same type and shape as ``norm``, that of the second plane's channels; or
            None. With it ``scale`` and ``zero_point`` are float32 ``[B, H, 1, D]``, without padding, which the sums
            then have in them.
        channels: int32 and float32 ``[K, D_v]``, contiguous: channel ``c`` is the sum of lanes ``channels[0][k, c]``
            times ``channels[1][k, c]``, which is what is written then; or None for sums by lane.
        bit_weights: what each bit of a code is worth, as :attr:`kvmm.kernels.attention.format.PackedFormat.bit_weights`
            has it, so that sums are by channel; or None.
        has_plane_weights: whether channels have several lanes of different plane weights.
    """

    planes: tuple[Plane, ...]
    axis: str = "channel"
    scale: torch.Tensor | None = None
    zero_point: torch.Tensor | None = None
    group: str | torch.Tensor = "span"
    norm: torch.Tensor | None = None
    channels: tuple[torch.Tensor, torch.Tensor] | None = None
    has_plane_weights: bool = False
    bit_weights: tuple[tuple[float, ...], ...] | None = None
    high_norm: torch.Tensor | None = None

    @property
    def scaled(self) -> bool:
        """Whether the sums have scales and zero points in them, of channels."""
        by_channel = self.axis == "channel" and self.scale is not None
        return by_channel and (self.high_norm is not None or self.scale.shape[2] > 1)

    @property
    def width(self) -> int:
        """Lanes or channels of the sums, rounded up to 32 but for :attr:`channels`."""
        if self.bit_weights is not None:
            return padded_lanes(self.planes[:1], -2)
        return padded_lanes(self.planes, -2) if self.channels is None else self.channels[0].shape[-1]


@dataclass(frozen=True)
class Query:
    """A query that the kernel multiplies by the keys' scales and splits into two int8 parts itself.

    Attributes:
        rows: float16, bfloat16 or float32 ``[B * H, R, W]``, contiguous, the transformed query.
        scaling: what multiplies every logit.
        scale: float16 or float32 ``[B, H, G, C]``, a channel's in every group that :class:`KeyPlanes` names; where a
            page has several groups, ``G`` pages with the scales of these one behind the other. None where keys have
            scales by token.
        zero_point: of the same type ``[B, H, G, D]``, with several groups alike.
        lane_channel: int32 ``[J]``, the channel of each lane, or None if lane ``j`` is channel ``j``.
        plane_weight: float32 ``[J]``, what a step of each lane is worth in steps of its channel, or None.
        offset: float32 ``[H or 1, D]``, added to every zero point, or None.
        mean: float16 or float32 ``[B, H, G, D]``, added to vectors behind their norms, or None. With it all pages share
            a scale, and what :class:`KeyPlanes` names is the group of the mean.
        group_channel: uint8 ``[B, H, G, K]``, the channels of the second plane's lanes, whose codes are the higher bits
            of theirs, or None. The first plane then has all channels.
        lane_order: int16 ``[B, H, 1, D]``, the channel of each lane of a store, with several heads a store those of all
            of them side by side; or None if lane ``j`` is channel ``j``.
    """

    rows: torch.Tensor
    scaling: float
    scale: torch.Tensor | None
    zero_point: torch.Tensor | None
    lane_channel: torch.Tensor | None = None
    plane_weight: torch.Tensor | None = None
    offset: torch.Tensor | None = None
    mean: torch.Tensor | None = None
    group_channel: torch.Tensor | None = None
    lane_order: torch.Tensor | None = None


@dataclass(frozen=True)
class ResidualInputs:
    """Residual tokens in the model's dtype, which the kernel reads before the pages, while it waits for the query.

    Attributes:
        query: float16 or bfloat16 ``[B * H, R, D]``, contiguous, as the model has it.
        key, value: ``[B, H, n, D]`` and ``[B, H, n, D_v]`` of the same dtype, the last dimension contiguous and
            tokens aligned to 16 bytes.
        scaling: what multiplies every logit.
        bias: float32 ``[B, n]``, -1e30 at slots without a token, or None.
        length: int32 ``[1]`` on the device, tokens in use, or None for all.
        kept_key, kept_value: ``[B, H, E, D]`` and ``[B, H, E, D_v]``, the tokens of :attr:`KeyPlanes.kept_slot`, read
            behind the others; or None.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaling: float
    bias: torch.Tensor | None = None
    length: torch.Tensor | None = None
    kept_key: torch.Tensor | None = None
    kept_value: torch.Tensor | None = None

    @property
    def columns(self) -> int:
        """All that is to be read, in tiles of 16 tokens of one kind."""
        tokens = self.key.shape[2]
        return tokens if self.kept_key is None else -(-tokens // 16) * 16 + self.kept_key.shape[2]


@dataclass(frozen=True)
class ResidualSplits:
    """Where the splits of :class:`ResidualInputs` go.

    Attributes:
        m, l: float32 ``[B * H, S, R]``, as of the pages' splits.
        acc: float32 ``[B * H, S, R, ceil32(D_v)]``, sums of ``2 ** (x - m)`` times the values, without what pads.
        apart: whether blocks without pages take them, instead of the first of those with pages.
    """

    m: torch.Tensor
    l: torch.Tensor
    acc: torch.Tensor
    apart: bool = False


def padded_lanes(planes: Sequence[Plane], dim: int) -> int:
    """``sum ceil32(J_i)`` of the planes' dimension ``dim``: width of the expanded query (-1) or of the sums (-2)."""
    return sum(aligned(codes.shape[dim]) for codes, _ in planes)


def rows_of(query: torch.Tensor | Query) -> int:
    """``R``, query rows a sequence and KV head."""
    return query.rows.shape[1] if isinstance(query, Query) else query.shape[3] // 2


def device_of(query: torch.Tensor | Query) -> torch.device:
    """Where the query is."""
    return query.rows.device if isinstance(query, Query) else query.device
