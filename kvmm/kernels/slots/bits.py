"""Where the bits of a slot are for matrix products: in 16-bit words, some of which make the columns of a matrix.

A chunk is a matrix of 16-bit words, one row a token. Bit ``k`` of all words of a chunk is a plane, the operand of one
matrix product. A chunk of 16, 32 or 64 words has 16 planes. One of 1, 2, 4 or 8 words holds them several times in its
16 columns, shifted right by 0, ``words``, ``2 * words``, ...: then the first ``words`` planes have all bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from kvmm.kernels.slots.format import SlotSide

LARGEST = 16384.0  # of weights in half precision
PLANE_UNIT = 2.0**24  # a set bit, read as the lowest of a float16, is 2^-24


class SideLayout(NamedTuple):
    """What kernels know of keys or values at compile time.

    Attributes:
        first: the first 16-bit word of a slot with codes.
        width, full: columns of a full chunk, and how many there are.
        rest, last: words of the chunks behind these, 0 where there is none.
        columns: of all planes of all chunks.
        start, code_bytes, flag: the first byte of the codes, their bytes, and the bit behind the codes.
        norm: whether a norm follows.
        dim, padded_dim: channels, and the power of two that holds them.
    """

    first: int
    width: int
    full: int
    rest: int
    last: int
    columns: int
    start: int
    code_bytes: int
    flag: int
    norm: bool
    dim: int
    padded_dim: int


def divided(words: int) -> tuple[int, int, int, int]:
    """``width``, ``full``, ``rest`` and ``last`` of a number of words: few columns that no word needs."""
    width = 16 if words < 32 else 32 if words < 64 else 64
    full, left = divmod(words, width)
    if not left:
        return width, full, 0, 0
    if left > 16:  # the width is 32 or 64
        return width, full + 1, 0, 0
    rest = 1 << (left.bit_length() - 1)  # the largest power of two that is full
    return width, full, rest, 0 if left == rest else 1 << (left - rest - 1).bit_length()


@dataclass(frozen=True, eq=False)
class SideBits:
    """The matrices of keys or values in the columns of :class:`SideLayout`.

    Args:
        side: how they are coded.
        start: byte of a slot where its codes begin.
    """

    side: SlotSide
    start: int

    @cached_property
    def layout(self) -> SideLayout:
        """What kernels know at compile time."""
        side, flag = self.side, int(self.side.widths.sum())
        first = self.start // 2
        width, full, rest, last = divided(-(-(8 * self.start + flag + 1) // 16) - first)
        columns = 16 * (full * width + rest + last)
        padded = max(16, 1 << (side.dim - 1).bit_length())
        return SideLayout(
            first, width, full, rest, last, columns, self.start, side.code_bytes, flag, side.norm, side.dim, padded
        )

    @cached_property
    def _columns(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of every column the bit of the side, or the number of bits if it has none, and the place of its plane."""
        layout, bits, places = self.layout, [], []
        first = layout.first
        for words in (*[layout.width] * layout.full, layout.rest, layout.last):
            column = torch.arange(max(16, words))
            for plane in range(min(16, words)):
                group = column // words * words  # 0 where all words are there once
                bits.append(16 * (first + column % words) + group + plane - 8 * self.start)
                places.append(torch.full_like(column, plane % 8))
            first += words
        bit, count = torch.cat(bits), layout.flag + 1
        return torch.where((bit >= 0) & (bit < count), bit, count), torch.cat(places)

    def _by_column(self, unit: float) -> torch.Tensor:
        """What a set bit of every column adds to a vector, float32 ``[H, columns, D]``; a column of plane ``k`` of 8 has
        ``2^k / unit`` where its bit is set."""
        matrix = self.side.values @ self.side.inverse.mT
        bit, place = (x.to(matrix.device) for x in self._columns)
        rows = pad(matrix[:, : self.layout.flag + 1], (0, 0, 0, 1))[:, bit]
        return rows * (unit * 0.5 ** place.float()).unsqueeze(-1)

    @cached_property
    def _constant(self) -> torch.Tensor:
        """What every vector has, float32 ``[H, 1, D]``."""
        return (self.side.zero_point + self.side.offset).unsqueeze(-2) @ self.side.inverse.mT

    def query_matrices(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """For queries of keys: float32 ``[H, D, columns]`` of a query to the weights of columns, ``[H, D]`` of a query to
        what all scores have, and ``[H]`` the largest norm of the first's columns."""
        weights = self._by_column(1.0).mT.contiguous()
        largest = torch.linalg.vector_norm(weights, dim=1).amax(-1).clamp_min(1e-30)
        return weights, self._constant[:, 0].contiguous(), largest

    def output_matrix(self, multiple: int) -> torch.Tensor:
        """For weighted values: float32 ``[H, rows, D]`` of sums of columns, and then of weights, to the output; rows are
        padded with zeros to a multiple."""
        rows = torch.cat((self._by_column(PLANE_UNIT), self._constant), 1)
        return pad(rows, (0, 0, 0, -rows.shape[1] % multiple)).contiguous()

    def vector_matrices(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """To decode vectors: float16 ``[H, columns, D]``, its unit float32 ``[H]``, and a float32 ``[H, D]`` to add."""
        rows = self._by_column(1.0)
        unit = rows.abs().amax((1, 2)).clamp_min(1e-30) / LARGEST
        matrix = (rows / unit[:, None, None]).half().contiguous()
        return matrix, (unit * PLANE_UNIT).contiguous(), self._constant[:, 0].contiguous()


__all__ = ["LARGEST", "PLANE_UNIT", "SideBits", "SideLayout", "divided"]
