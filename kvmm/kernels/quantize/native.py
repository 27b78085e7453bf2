"""Pages of tokens on their way into codes on a CPU, where the machine has a C compiler.

Float32 pages as of :mod:`kvmm.kernels.quantize.dense`, whose statistics are taken, levels fitted and bit planes packed
in C: one pass over a span for what torch does in a dozen.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from kvmm.kernels import build
from kvmm.kernels.quantize.books import ScalarBook, borders_on
from kvmm.kernels.quantize.dense import DensePages
from kvmm.kernels.quantize.groups import TokenGroups
from kvmm.kernels.quantize.layout import STORED_BITS, PlaneLayout
from kvmm.kernels.quantize.reference import REFITS, gaussian_steps

SOURCE = build.Source("pages", Path(__file__).with_name("pages.c"), build.vectors_header)
_MOST_CHANNELS = 256  # that C has room for
_MOST_BORDERS = 31  # that a coordinate is compared with one by one
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_WEIGHTED = (_POINTER, _POINTER, *[_NUMBER] * 5)  # vectors, their weights, and sizes
_ARGUMENTS = {
    "fit_levels": (*_WEIGHTED, _POINTER, _POINTER, _NUMBER, _POINTER, _POINTER),
    "moments": (*_WEIGHTED, _POINTER, _POINTER),
    "token_excess": (*[_POINTER] * 3, *[_NUMBER] * 3, _POINTER),
    "page_sums": (_POINTER, _POINTER, *[_NUMBER] * 3, _POINTER, _POINTER),
    "book_codes": (*[_POINTER] * 2, *[_NUMBER] * 4, *[_POINTER] * 4, *[_NUMBER] * 4, *[_POINTER] * 2),
    "plane_codes": (*[_POINTER] * 4, *[_NUMBER] * 5, _POINTER, *[_NUMBER] * 2, *[_POINTER, _NUMBER] * 2),
}
_READ = torch.float32, torch.bool, torch.uint8, torch.int64
_NO_MEMORY = "no memory for the codes of a page"


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled library, or None where there is no compiler or it fails."""
    found = build.first_loaded(SOURCE)
    if found is not None:
        for name, types in _ARGUMENTS.items():
            function = getattr(found, f"kvmm_{name}")
            function.argtypes, function.restype = types, ctypes.c_int if name.endswith("_codes") else None
    return found


def compiled() -> bool:
    """Whether this machine can make pages in C."""
    return library() is not None


def readable(x: torch.Tensor) -> bool:
    """Whether there is memory that C can read, and nobody differentiates or traces what is made of it."""
    plain = type(x) is torch.Tensor and x.device.type == "cpu" and not x.requires_grad
    return plain and not torch.compiler.is_compiling()


def _call(name: str, *arguments: torch.Tensor | int | None) -> Any:
    """Tensors are handed over as addresses and live until C returns."""
    values = []
    for x in arguments:
        if isinstance(x, torch.Tensor):
            assert x.is_contiguous() and x.dtype in _READ and x.device.type == "cpu"
            x = x.data_ptr()
        values.append(x)
    return getattr(library(), f"kvmm_{name}")(*values)


def _weighted(x: torch.Tensor, weight: torch.Tensor | None) -> tuple[torch.Tensor | int | None, ...]:
    """The first arguments of a function of vectors ``[B, H, G, n, D]`` with weights ``[B or 1, 1, G, n, 1]``."""
    batch, heads, groups, tokens, dim = x.shape
    vectors = batch * heads * groups
    repeats = vectors if weight is None or weight.shape[0] == 1 else heads * groups
    if weight is not None:
        own = 1 if weight.shape[0] == 1 else batch
        weight = weight.float().expand(own, 1, groups, tokens, 1).contiguous()
    return x.contiguous(), weight, vectors, repeats, groups, tokens, dim


class NativePages(DensePages):
    """Pages ``[B, H, P, N, D]`` in float32 on a CPU; see :class:`DensePages` for the methods, and for pages that a step
    makes of another dtype, as autocasting does."""

    @classmethod
    def _of(cls, values: torch.Tensor, weight: torch.Tensor | None) -> DensePages:
        return (cls if values.dtype == torch.float32 and readable(values) else DensePages)(values, weight)

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        weight = None if self.weight is None else self.weight.flatten(2, 3).unsqueeze(2)
        mean, variance = (self.values.new_empty(*self.shape[:2], self.shape[-1]) for _ in range(2))
        _call("moments", *_weighted(self.values.flatten(2, 3).unsqueeze(2), weight), mean, variance)
        return mean, variance

    def token_excess(self, reach: float) -> torch.Tensor:
        mean, variance = self.sample().moments()
        batch, heads, pages, page_size, dim = self.shape
        excess = self.values.new_empty(batch, heads, pages, page_size)
        furthest, x = variance.sqrt() * reach, self.values.contiguous()
        _call("token_excess", x, mean, furthest, batch * heads, pages * page_size, dim, excess)
        return excess

    def _page_sums(self, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.values.contiguous()
        keep = keep[:, :, :: self.every].bool().expand(x.shape[:4]).contiguous()
        batch, heads, pages, page_size, dim = x.shape
        total, number = x.new_empty(batch, heads, pages, dim), x.new_empty(batch, heads, pages, 1)
        _call("page_sums", x, keep, batch * heads * pages, page_size, dim, total, number)
        return total, number

    def fit_levels(
        self,
        bits: torch.Tensor,
        groups: TokenGroups,
        dtype: torch.dtype = torch.float32,
        coded: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = groups.merge_pages(self.values)
        dim = x.shape[-1]
        half_step, highest = (p.expand(dim) for p in gaussian_steps(tuple(bits.tolist()), x.device))
        scale, zero_point = (x.new_empty(*x.shape[:3], dim) for _ in range(2))
        weighted = _weighted(x, self.group_weights(groups))
        _call("fit_levels", *weighted, half_step, highest, REFITS, scale, zero_point)
        return self.stored_levels(scale, zero_point, dtype, coded)

    def plane_codes(
        self,
        scale: torch.Tensor,
        zero_point: torch.Tensor,
        layout: PlaneLayout,
        transposed: bool,
        padded_widths: Mapping[str, int] | None = None,
    ) -> dict[str, torch.Tensor]:
        coded, page_size = layout.coded, self.page_size
        if not 0 < coded <= min(_MOST_CHANNELS, self.shape[-1]) or page_size % 8:
            return super().plane_codes(scale, zero_point, layout, transposed, padded_widths)
        x, (batch, heads, pages) = self.values.contiguous(), self.shape[:3]
        widths = layout.widths if padded_widths is None else padded_widths
        planes: dict[str, torch.Tensor] = {}
        for name, width in layout.widths.items():
            page = (page_size * STORED_BITS[name] // 8, widths[name])
            # lanes that only fill up are zeros
            new = x.new_empty if widths[name] == width else x.new_zeros
            planes[name] = new(batch, heads, pages, *(page[::-1] if transposed else page), dtype=torch.uint8)
        levels = (p[..., :coded].float().expand(batch, heads, 1, coded).contiguous() for p in (scale, zero_point))
        highest, two_bit = layout.levels(x.device), torch.zeros(4, dtype=torch.int64)
        for plane, channels in layout.two_bit_planes:
            two_bit[plane] = channels
        sizes = batch * heads, pages, page_size, x.shape[-1], coded
        out = [value for name in STORED_BITS for value in (planes.get(name), widths.get(name, 0))]
        first = layout.one_bit.start
        if _call("plane_codes", x, *levels, highest, *sizes, two_bit, first, int(transposed), *out):
            raise MemoryError(_NO_MEMORY)
        return planes

    def book_codes(
        self, book: ScalarBook, dtype: torch.dtype, transposed: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[torch.Tensor]]:
        batch, heads, pages, page_size, dim = self.shape
        channels, borders = zip(*book.runs, strict=True)
        if max(map(len, borders)) > _MOST_BORDERS or page_size % 8 or dim > _MOST_CHANNELS or sum(channels) != dim:
            return super().book_codes(book, dtype, transposed)
        lengths = self.lengths(book, dtype)
        inverse = torch.stack([torch.where(length == 0, 0.0, 1 / length.float()) for length in lengths])

        def plane(bits: int, lanes: int) -> torch.Tensor:
            page = (page_size * bits // 8, lanes)
            return torch.empty(batch, heads, pages, *(page[::-1] if transposed else page), dtype=torch.uint8)

        low = plane(book.low_bits, dim)
        high = plane(book.high_bits, book.high_channels) if book.high_bits else None
        length_of = [number if book.split else 0 for number in range(len(channels))]
        runs = torch.tensor([channels, length_of, [*map(len, borders)]])
        levels = borders_on(tuple(border for run in borders for border in run), self.device)
        sizes = batch * heads * pages, page_size, dim, len(channels)
        bits = book.low_bits, book.high_bits, book.high_channels, int(transposed)
        if _call("book_codes", self.values.contiguous(), inverse, *sizes, *runs, levels, *bits, low, high):
            raise MemoryError(_NO_MEMORY)
        return low, high, lengths


__all__ = ["SOURCE", "NativePages", "compiled", "library"]
