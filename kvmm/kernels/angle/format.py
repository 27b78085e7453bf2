"""Angle codes as attention kernels read them in place: what they know of stored keys, whatever their codec."""

from __future__ import annotations

from dataclasses import dataclass

import torch

LENGTHS = 255  # steps of a length


@dataclass(frozen=True)
class AngleFormat:
    """Keys as directions and lengths: group ``j`` of a key's channels is ``radius * scale / 255`` times its direction.

    That is a codeword or, of keys that are one group, ``D - 1`` recursive angles (:mod:`kvmm.kernels.angle.recursive`).

    Attributes:
        codes: uint8 ``[B, H, P, N * index_bits / 8, J or D - 1]``, indices of codewords or of angles' levels, one plane
            of bits a power of two in ``index_bits``, the highest bits first.
        radius: uint8 ``[B, H, P, N, J]``.
        scale: float16 or float32 ``[B, H, P]``, the length that 255 stands for.
        mean: float16 or float32 ``[B, H, G, D]``, added to keys.
        page_group: int32 ``[P]``, the mean of each page, negative numbers from the last one.
        codebook: float32 ``[H or 1, J or 1, 2 ** index_bits, D / J]``, as a query meets it, or of angles
            ``[1, D - 1, 2 ** index_bits, 2]``, the levels' cosines and sines.
        index_bits: 1 to 8.
        page_size: ``N``.
        recursive: whether directions are angles.
        gain: factor of all lengths.
    """

    codes: torch.Tensor
    radius: torch.Tensor
    scale: torch.Tensor
    mean: torch.Tensor
    page_group: torch.Tensor
    codebook: torch.Tensor
    index_bits: int
    page_size: int
    recursive: bool = False
    gain: float = 1.0

    @property
    def pages(self) -> int:
        """``P``, the capacity in pages."""
        return self.codes.shape[2]

    @property
    def groups(self) -> int:
        """``J``, groups of channels."""
        return self.radius.shape[4]

    @property
    def angles(self) -> int:
        """Recursive angles of a key, 0 where directions are codewords."""
        return self.codes.shape[4] if self.recursive else 0

    def fits(self, batch: int, heads: int, dim: int) -> bool:
        """Whether all is as declared for a call of these sizes, from which kernels compute addresses without a look."""
        size, groups, pages = self.page_size, self.groups, (batch, heads, self.pages)
        columns, book = dim - 1 if self.recursive else groups, (groups, 2**self.index_bits, dim // groups)
        if self.recursive:
            book = (columns, book[1], 2)
        return (
            self.codes.dtype == self.radius.dtype == torch.uint8
            and self.page_group.dtype == torch.int32
            and self.codebook.dtype == torch.float32
            and tuple(self.codes.shape) == (*pages, size * self.index_bits // 8, columns)
            and tuple(self.radius.shape) == (*pages, size, groups)
            and tuple(self.scale.shape) == pages
            and tuple(self.page_group.shape) == pages[2:]
            and tuple(self.mean.shape) == (batch, heads, self.mean.shape[2], dim)
            and self.mean.shape[2] > 0
            and dim % groups == 0
            and (groups == 1 or not self.recursive)
            and self.codebook.shape[0] in ((1,) if self.recursive else (1, heads))
            and tuple(self.codebook.shape[1:]) in (book, (1 if not self.recursive else columns, *book[1:]))
        )


__all__ = ["LENGTHS", "AngleFormat"]
