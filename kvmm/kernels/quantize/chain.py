"""The vectors that are to be coded and the chain they go through, as kernels read them, and how programs share them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Self

import torch
import triton

from kvmm.kernels.hadamard import rotate
from kvmm.kernels.hadamard.triton import PARTS, block_sizes, matrix_parts, signs
from kvmm.kernels.quantize.dense import DensePages, sampled_pages
from kvmm.kernels.quantize.groups import TokenGroups
from kvmm.kernels.quantize.triton_source import Source

_MATRIX_PARTS = 2  # 16 bits of mantissa, all of a stored (fp16) transform's
_PART = 1 << 22  # elements of the runs of pages that do get a float32 copy
_TILE = 64 * 128  # elements that a program holds at once
_PROGRAMS = 512  # that statistics of a long span had better have, for all multiprocessors to work
_RUN = 8  # pages, the longest run that one of them takes
_LARGE_PROGRAMS = 128  # the same of programs that are alone on their multiprocessor
_LONG_RUN, _TURNS = 16, 4  # pages of a run, and turns of 64 rows of all planes of codes


class VectorChain:
    """Vectors ``[B, H, T, D]``, in pages of ``page_size`` tokens, and the chain they go through.

    A description: nothing of it is computed before a kernel reads it. See :class:`DensePages` for the methods.
    """

    def __init__(self, x: torch.Tensor, page_size: int, valid: torch.Tensor | None = None):
        batch, heads, tokens, dim = x.shape
        self.x = x
        self.valid = None if valid is None else valid.to(x.device).contiguous()
        self.page_size = page_size
        self.shape = torch.Size((batch, heads, -(-tokens // page_size), page_size, dim))
        self.device = x.device
        self.every = 1  # of a sample: which pages it has
        self.rotated = False
        self.matrix: torch.Tensor | None = None  # float32 [B or 1, H or 1, D, D]
        self.matrix_parts: torch.Tensor | None = None  # bf16 [B or 1, H or 1, parts, D, D]
        self.norm: torch.Tensor | None = None  # [B, H or 1, P, N]
        self.offset: torch.Tensor | None = None  # float32 [B or 1, H or 1, D]
        self.keep: torch.Tensor | None = None  # bool [B, H, P, N]
        self.substitute: torch.Tensor | None = None  # float32 [B, H, P or 1, D]
        self._described: tuple[Source, dict[str, int]] | None = None  # for the kernels

    def groups(self, group_size: int | None) -> TokenGroups:
        return TokenGroups(self.shape[2], self.page_size, group_size, self.device)

    # -- what is coded ----------------------------------------------------------------------------------------------

    def _with(self, **changes: Any) -> Self:
        twin = copy.copy(self)
        twin._described = None
        for name, value in changes.items():
            if name not in ("substitute", "rotated", "matrix_parts", "every") and getattr(self, name) is not None:
                raise ValueError(f"pages have one {name}")
            setattr(twin, name, value)
        return twin

    def sample(self) -> Self:
        every = sampled_pages(self.shape[2], self.page_size)
        if every == 1:
            return self
        twin = self._with(every=every)
        twin.shape = torch.Size((*self.shape[:2], -(-self.shape[2] // every), *self.shape[3:]))
        return twin

    def rotate(self) -> Self:
        if self.matrix is not None or self.rotated or self.offset is not None:
            raise ValueError("pages are rotated before anything else")
        return self._with(rotated=True, substitute=None if self.substitute is None else rotate(self.substitute))

    def transform(self, matrix: torch.Tensor, cache: dict[str, torch.Tensor] | None = None) -> Self:
        if self.rotated or self.keep is not None or (self.offset is not None and self.norm is not None):
            raise ValueError("pages are transformed before anything else but a norm, or an offset without one")
        cache = {} if cache is None else cache
        if "parts" not in cache:
            cache["parts"] = matrix_parts(matrix.float(), _MATRIX_PARTS)
        twin = self._with(matrix=matrix.float(), matrix_parts=cache["parts"])
        if self.offset is not None:
            if "sum" not in cache:  # what the parts leave out is left out of both, and is small of what stays
                cache["sum"] = cache["parts"].float().sum(-3)
            twin.offset = (cache["sum"] @ self.offset.unsqueeze(-1)).squeeze(-1)
        return twin

    def divide(self, norm: torch.Tensor) -> Self:
        if self.offset is not None or self.keep is not None:
            raise ValueError("pages are divided before they are shifted")
        return self._with(norm=norm)

    def subtract(self, offset: torch.Tensor) -> Self:
        offset = offset.float()
        substitute = None if self.substitute is None else self.substitute - offset.unsqueeze(2)
        return self._with(offset=offset, substitute=substitute)

    def replace(self, keep: torch.Tensor, substitute: torch.Tensor) -> Self:
        return self._with(keep=keep.contiguous(), substitute=substitute)

    def parts(self) -> Iterator[DensePages]:
        batch, heads, count, size, dim = self.shape
        run = max(1, _PART // (batch * heads * size * dim))
        for first in range(0, count, run):
            pages, tokens = slice(first, first + run), slice(first * size, (first + run) * size)
            valid = None if self.valid is None else self.valid[:, tokens]
            part = DensePages.cut(self.x[:, :, tokens], size, valid)
            if self.rotated:
                part = part.rotate()
            if self.matrix is not None:
                part = part.transform(self.matrix)
            if self.norm is not None:
                part = part.divide(self.norm[:, :, pages])
            if self.offset is not None:
                part = part.subtract(self.offset)
            if self.keep is not None:
                substitute = self.substitute if self._one_substitute else self.substitute[:, :, pages]
                part = part.replace(self.keep[:, :, pages], substitute)
            yield part

    # -- launching ----------------------------------------------------------------------------------------------------

    def _source(self) -> tuple[Source, dict[str, int]]:
        """What the kernels read, and their constants."""
        if self._described is None:
            self._described = self._describe()
        return self._described

    def _describe(self) -> tuple[Source, dict[str, int]]:
        batch, heads, _, size, dim = self.shape
        matrix, parts, scale = None, 1, 1.0
        if self.rotated:
            matrix, scale = signs(dim, False, self.device)[None, None], dim**-0.5
        elif self.matrix is not None:
            matrix, parts = self.matrix_parts, _MATRIX_PARTS
        norm = None if self.norm is None else self.norm.contiguous()
        offset = None if self.offset is None else self.offset.contiguous()
        substitute = None if self.substitute is None else self.substitute.float().contiguous()
        source = Source(
            self.x,
            -(-self._tokens // size) * size,
            heads,
            *self.x.stride(),
            matrix,
            *strides(matrix, batch, heads),
            scale,
            norm,
            *strides(norm, batch, heads),
            offset,
            *strides(offset, batch, heads),
            as_bytes(self.keep),
            None if self._one_substitute else substitute,
            substitute if self._one_substitute else None,
        )
        return source, {"D": dim, "N": size, "PARTS": PARTS[self.x.dtype], "MATRIX_PARTS": parts}

    @property
    def _one_substitute(self) -> bool:
        """Whether one vector of a head stands in for what is left out of all its pages, of which there are several."""
        return self.substitute is not None and self.substitute.shape[2] == 1 and self._tokens > self.page_size

    @property
    def _tokens(self) -> int:
        return self.x.shape[2]

    @property
    def _large(self) -> bool:
        """Whether a program keeps a matrix in parts, which leaves no shared memory for a second one."""
        return self.matrix is not None and PARTS[self.x.dtype] == 1 and 64 < self.shape[-1] <= 128

    def _blocks(self, rows: int) -> dict[str, int]:
        """Block sizes for a program with so many vectors at once and as many sums."""
        # alone on a multiprocessor, a program has to hide by itself how long vectors take to come
        return block_sizes(self.shape[-1], rows, 2) | ({"num_stages": 3} if self._large else {})

    @property
    def _rows(self) -> int:
        """Vectors that a program holds at once."""
        return _TILE // max(128, triton.next_power_of_2(self.shape[-1]))

    def _statistics(self, groups: TokenGroups) -> tuple[int, int, dict[str, int], tuple[int, int]]:
        """What is needed to take statistics: number of units, pages a unit (where groups are longer than pages),
        constants and grid.
        """
        batch, heads, count, size, _ = self.shape
        run, units, tokens = 1, size // groups.unit, groups.unit
        if groups.pages_per_group > 1:
            most, programs = (_LONG_RUN, _LARGE_PROGRAMS) if self._large else (_RUN, _PROGRAMS)
            spare = min(most, groups.pages_per_group, batch * heads * count // programs)
            run = 1 << max(0, spare.bit_length() - 1)
            tokens = run * size
        elif self.rotated or self.matrix is not None:  # a program that loads a matrix had better use it for a while
            units *= 4 if batch * heads * count >= 4 * _PROGRAMS else 1
        rows = min(tokens, self._rows)
        constants = {"UNITS": units, "CHUNKS": tokens // rows, "ROWS": rows} | self._blocks(rows)
        num_units = -(-count // run) if run > 1 else count * (size // groups.unit)
        return num_units, run, constants, (-(-num_units // units), batch * heads)

    def _planes(self, rows: int) -> tuple[dict[str, int], tuple[int, int]]:
        """Constants and grid for codes whose planes have so many rows a page."""
        batch, heads, count, *_ = self.shape
        pages = max(1, self._rows // rows)
        return {"PAGES": pages} | self._blocks(pages * rows), (-(-count // pages), batch * heads)

    def _turns(self, programs: int) -> int:
        """Turns that each of so many programs had better take, one after the other."""
        turns = 1  # loading a matrix costs as much as using it once
        while self._large and turns < _TURNS and programs >= 2 * turns * _LARGE_PROGRAMS:
            turns *= 2
        return turns


def strides(x: torch.Tensor | None, batch: int, heads: int) -> tuple[int, int]:
    """Strides of the first two dimensions of ``x`` ``[B or 1, H or 1, ...]``, 0 where one entry serves all."""
    if x is None:
        return 0, 0
    return (x.stride(0) if x.shape[0] == batch and batch > 1 else 0), (x.stride(1) if x.shape[1] == heads else 0)


def as_bytes(mask: torch.Tensor | None) -> torch.Tensor | None:
    """A bool mask as uint8, which kernels can load; the same memory."""
    return None if mask is None else mask.view(torch.uint8)
