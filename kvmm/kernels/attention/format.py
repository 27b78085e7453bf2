"""What decode kernels need to know of a packed store, whatever its codec: one description for all affine codes.

An affine code is a sum of digits: channel ``c`` of a vector in the codec's basis is ``sum over digits j of c: d_j *
place_j * scale_c + zero_point_c``, times the token's norm. A codec that fits returns a :class:`Digits` (one that keeps
the model's own values a :class:`Dense`) from ``Codec.digits`` and is read in place by the same kernels as all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

ALIGNMENT = 32  # columns of one step of the int8 tensor cores


def aligned(width: int) -> int:
    """``width`` rounded up to what the kernels' operands are padded to."""
    return -(-width // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Plane:
    """Digits of equal width.

    Attributes:
        codes: uint8, keys ``[B, H, P, N * bits / 8, J]``, values ``[B, H, P, J, N * bits / 8]``, packed along tokens
            (:func:`kvmm.kernels.quantize.pack_planes`).
        bits: 1, 2, 4 or 8.
        width: ``J``, without columns that only pad.
    """

    codes: torch.Tensor
    bits: int
    width: int


@dataclass(frozen=True)
class Digits:
    """Keys or values as digits.

    Attributes:
        planes: none (nothing varies), one or two.
        pages: ``P``, pages there is room for.
        page_size: ``N`` tokens.
        scale, zero_point: by channel ``[B, H, G, C]`` and ``[B, H, G, D]``, or by token ``[B, H, P, chunks, N]``.
        by_token: which of the two.
        page_group: int32 ``[P]``, the group of each page (-1: the extra one, or the last); None: see ``inside``.
        inside: without ``page_group``, how many groups each page has; 0 if all pages share one.
        norm: ``[B, H or 1, P, N]``, what multiplies a token, or None.
        mean: ``[B, H, G, D]`` by ``page_group``, added to vectors whose scales are by token, or None.
        index: int32 ``[Q]``, the channel of each digit, planes one after the other, each padded to ``ALIGNMENT``; None
            if digit ``j`` is channel ``j``.
        place: float32 ``[Q]``, what a step of each digit is worth in steps of its channel (0 where it pads), or None.
        group_index: uint8 ``[B, H, G, K]``, the channels of the second plane where each group has its own, or None.
        offset: float32 ``[H or 1, D]``, added to every zero point, or None.
        extra: scale ``[1, H, 1, C]`` and zero point ``[1, H, 1, D]`` of the group that no store holds, or None.
        channel_digits: int32 ``[K, D]``, values only: the digits that channel ``c`` is the sum of, or None.
        channel_places: float32 ``[K, D]``, their places; 0 where a channel has fewer than ``K``.
        matrix: float32, what leads into or out of the codec's basis, or None. Keys: ``[H or 1, D, W]`` from queries to
            channels, ``W`` at least ``D``, and without ``index`` at least ``Q``. Values: ``[H or 1, D, D]`` from the
            basis back.
        digit_matrix: float32 ``[H or 1, Q, D]``, values with ``index`` only: the row of ``matrix`` of every digit's
            channel, zeros where a digit only pads.
    """

    planes: tuple[Plane, ...]
    pages: int
    page_size: int
    scale: torch.Tensor
    zero_point: torch.Tensor
    by_token: bool = False
    page_group: torch.Tensor | None = None
    inside: int = 0
    norm: torch.Tensor | None = None
    mean: torch.Tensor | None = None
    index: torch.Tensor | None = None
    place: torch.Tensor | None = None
    group_index: torch.Tensor | None = None
    offset: torch.Tensor | None = None
    extra: tuple[torch.Tensor, torch.Tensor] | None = None
    channel_digits: torch.Tensor | None = None
    channel_places: torch.Tensor | None = None
    matrix: torch.Tensor | None = None
    digit_matrix: torch.Tensor | None = None

    @property
    def columns(self) -> int:
        """``Q``: digits with their padding."""
        return sum(aligned(plane.width) for plane in self.planes)

    @property
    def groups(self) -> int:
        """Groups of tokens with scales of their own, the extra one included."""
        if self.by_token:
            return 1 if self.mean is None else self.mean.shape[2]
        return self.scale.shape[2] + (self.extra is not None)

    def spread(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scales by digit ``[B, H, groups, Q]`` and zero points ``[B, H, groups, D]``, float32, everything folded in.

        For what cannot fold them into a query: one gather, no larger than the parameters themselves.
        """
        scale, zero = self.scale.float(), self.zero_point.float()
        if self.extra is not None:
            batch = scale.shape[0]
            scale = torch.cat((scale, self.extra[0].float().expand(batch, -1, -1, -1)), 2)
            zero = torch.cat((zero, self.extra[1].float().expand(batch, -1, -1, -1)), 2)
        if self.index is not None:
            scale = scale.index_select(-1, self.index.clamp_max(scale.shape[-1] - 1))
        elif self.columns > scale.shape[-1]:
            scale = torch.nn.functional.pad(scale, (0, self.columns - scale.shape[-1]))
        if self.place is not None:
            scale = scale * self.place
        if self.offset is not None:
            zero = zero + self.offset[None, :, None]
        return scale, zero


@dataclass(frozen=True)
class Dense:
    """Keys or values as the model made them: ``values`` ``[B, H, P, N, D]``."""

    values: torch.Tensor
    page_size: int

    @property
    def pages(self) -> int:
        """``P``, pages there is room for."""
        return self.values.shape[2]


@lru_cache(maxsize=256)
def digit_layout(
    planes: tuple[tuple[tuple[int, int, float], ...], ...], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """``index`` and ``place`` of :class:`Digits`.

    Args:
        planes: for every plane its runs ``(first channel, channels, place)`` of consecutive channels.
        device: where to put them.

    Returns:
        int32 and float32 ``[Q]``; columns that pad have place 0.
    """
    index, place = [], []
    for runs in planes:
        columns = [(first + i, worth) for first, count, worth in runs for i in range(count)]
        columns += [(0, 0.0)] * (aligned(len(columns)) - len(columns))
        index += [channel for channel, _ in columns]
        place += [worth for _, worth in columns]
    return torch.tensor(index, dtype=torch.int32, device=device), torch.tensor(place, device=device)


def digits_by_channel(index: torch.Tensor, place: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``channel_digits`` and ``channel_places`` of :class:`Digits`, from ``index`` and ``place`` and ``D``."""
    digits: list[list[tuple[int, float]]] = [[] for _ in range(dim)]
    for digit, (channel, worth) in enumerate(zip(index.tolist(), place.tolist(), strict=True)):
        if worth:
            digits[channel].append((digit, worth))
    most = max(1, max(map(len, digits)))
    filled = [own + [(0, 0.0)] * (most - len(own)) for own in digits]
    columns = torch.tensor([[digit for digit, _ in own] for own in filled], dtype=torch.int32, device=index.device)
    places = torch.tensor([[worth for _, worth in own] for own in filled], device=index.device)
    return columns.T.contiguous(), places.T.contiguous()


def pad_columns(matrix: torch.Tensor) -> torch.Tensor:
    """``matrix`` ``[..., J]`` with its columns padded with zeros to ``ALIGNMENT``, contiguous."""
    missing = aligned(matrix.shape[-1]) - matrix.shape[-1]
    return torch.nn.functional.pad(matrix, (0, missing)).contiguous()
