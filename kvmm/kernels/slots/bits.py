"""Where the bits of a slot are for matrix products: in 16-bit words, some of which make the columns of a matrix.

A region is the bits in pairs or the single bits behind them. A chunk of a region is a matrix of 16-bit words, one row a
token. The field (a pair or a bit) at the same place of all words of a chunk is a plane, the operand of one product:
8 planes of pairs, 16 of single bits. A chunk of 2, 4 or 8 words holds them several times in its 16 columns, shifted
right by ``words`` bits, twice that, and so on: then the lowest ``words`` bits of all columns are planes enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from kvmm.kernels.slots.format import SlotSide

LARGEST = 16384.0  # of weights in half precision
PLANE_UNIT = 2.0**24  # the lowest bit of a float16 is 2^-24


class Region(NamedTuple):
    """Where kernels find the fields of a region.

    Attributes:
        bits: of a field, 2 or 1.
        first: the first 16-bit word of a slot with fields.
        width, full: columns of a full chunk, and how many there are.
        rest: words of the chunk behind these, 0 where there is none.
        column, plane: the first of a side's.
    """

    bits: int
    first: int
    width: int
    full: int
    rest: int
    column: int
    plane: int

    @property
    def chunks(self) -> tuple[int, ...]:
        """Words of each chunk."""
        return (self.width,) * self.full + (self.rest,) * (self.rest > 0)

    @property
    def columns(self) -> int:
        """Of all planes of all chunks."""
        return sum(max(16, size) * self.planes(size) for size in self.chunks)

    def planes(self, words: int) -> int:
        """Of a chunk."""
        return min(16, words) // self.bits


class SideLayout(NamedTuple):
    """What kernels know of keys or values at compile time.

    Attributes:
        columns: of both regions.
        start, code_bytes, flag: the first byte of the codes, their bytes, and the bit behind the codes.
        norm: whether a norm follows.
        dim, padded_dim: channels, and the power of two that holds them.
    """

    columns: int
    start: int
    code_bytes: int
    flag: int
    norm: bool
    dim: int
    padded_dim: int


def divided(words: int, bits: int) -> tuple[int, int, int]:
    """``width``, ``full`` and ``rest`` of a number of words: few chunks, and few columns that no word needs."""
    width = 16 if words < 24 * bits else 32 if words < 48 * bits else 64
    full, left = divmod(words, width)
    if left > 16:  # the width is 32 or 64
        return width, full + 1, 0
    return width, full, max(2, 1 << (left - 1).bit_length()) if left else 0


@dataclass(frozen=True, eq=False)
class SideBits:
    """The matrices of keys or values in the columns of both regions.

    Args:
        side: how they are coded.
        start: byte of a slot where its codes begin.
    """

    side: SlotSide
    start: int

    @cached_property
    def regions(self) -> tuple[Region, Region]:
        """Of pairs and of single bits."""
        edges, column, plane, found = (0, self.side.paired, int(self.side.widths.sum()) + 1), 0, 0, []
        for bits, begin, end in zip((2, 1), edges[:-1], edges[1:], strict=True):
            first = (8 * self.start + begin) // 16
            words = -(-(8 * self.start + end) // 16) - first if end > begin else 0
            found.append(Region(bits, first, *divided(words, bits), column, plane))
            column += found[-1].columns
            plane += sum(found[-1].planes(size) for size in found[-1].chunks)
        return found[0], found[1]

    @cached_property
    def layout(self) -> SideLayout:
        """What kernels know at compile time."""
        side = self.side
        padded = max(16, 1 << (side.dim - 1).bit_length())
        columns = sum(region.columns for region in self.regions)
        return SideLayout(columns, self.start, side.code_bytes, int(side.widths.sum()), side.norm, side.dim, padded)

    @cached_property
    def _columns(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of every column the lowest bit of its field, or the number of bits if it has none; its place in a byte."""
        bits, places = [], []
        edges = (0, self.side.paired), (self.side.paired, self.layout.flag + 1)
        for region, (begin, end) in zip(self.regions, edges, strict=True):
            first = region.first
            for words in region.chunks:
                column = torch.arange(max(16, words))
                for plane in range(region.planes(words)):
                    place = region.bits * plane
                    in_word = column // words * words + place  # of columns with all words once, the place
                    bit = 16 * (first + column % words) + in_word - 8 * self.start
                    holds = (bit >= begin) & (bit < end) & (in_word < 16)
                    bits.append(torch.where(holds, bit, self.layout.flag + 1))
                    places.append(torch.full_like(column, place % 8))
                first += words
        return torch.cat(bits), torch.cat(places)

    def _by_column(self, unit: float) -> torch.Tensor:
        """What the lowest bit of every column adds to a vector, float32 ``[H, columns, D]``; a column at place ``k`` of
        a byte has ``2^k / unit`` where that is set."""
        matrix = self.side.values @ self.side.inverse.mT
        bit, place = (x.to(matrix.device) for x in self._columns)
        rows = pad(matrix[:, : self.layout.flag + 1], (0, 0, 0, 1))[:, bit]
        return rows * (unit * 0.5 ** place.float()).unsqueeze(-1)

    @cached_property
    def _constant(self) -> torch.Tensor:
        """What every vector has, float32 ``[H, 1, D]``."""
        return (self.side.zero_point + self.side.offset).unsqueeze(-2) @ self.side.inverse.mT

    def query_matrices(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """For queries of keys: float32 ``[H, D, columns]`` of a query to the weights of columns, ``[H, D]`` of a query
        to what all scores have, and ``[H]`` the largest norm of the first's columns."""
        weights = self._by_column(1.0).mT.contiguous()
        largest = torch.linalg.vector_norm(weights, dim=1).amax(-1).clamp_min(1e-30)
        return weights, self._constant[:, 0].contiguous(), largest

    def output_matrix(self, multiple: int) -> torch.Tensor:
        """For weighted values: float32 ``[H, rows, D]`` of sums of columns, and then of weights, to the output; rows
        are padded with zeros to a multiple."""
        rows = torch.cat((self._by_column(PLANE_UNIT), self._constant), 1)
        return pad(rows, (0, 0, 0, -rows.shape[1] % multiple)).contiguous()

    def vector_matrices(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """To decode vectors: float16 ``[H, columns, D]``, its unit float32 ``[H]``, and a float32 ``[H, D]`` to add."""
        rows = self._by_column(1.0)
        unit = rows.abs().amax((1, 2)).clamp_min(1e-30) / LARGEST
        matrix = (rows / unit[:, None, None]).half().contiguous()
        return matrix, (unit * PLANE_UNIT).contiguous(), self._constant[:, 0].contiguous()


__all__ = ["LARGEST", "PLANE_UNIT", "Region", "SideBits", "SideLayout", "divided"]
