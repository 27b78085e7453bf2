"""Pages of tokens on their way into codes, on a GPU: a description, read a tile at a time by the kernels.

Answers what :class:`~kvmm.kernels.quantize.dense.DensePages` answers, with equal parameters and, but for ties of
rounding, equal codes. Every question reads the model's tensor anew, which costs less than a float32 copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import triton

from kvmm.kernels.hadamard.triton import block_sizes, launch
from kvmm.kernels.quantize import triton as kernels
from kvmm.kernels.quantize import triton_books as books
from kvmm.kernels.quantize import triton_statistics as statistics
from kvmm.kernels.quantize.books import ScalarBook, borders_on
from kvmm.kernels.quantize.chain import VectorChain, as_bytes, strides
from kvmm.kernels.quantize.dense import highest_codes
from kvmm.kernels.quantize.groups import TokenGroups
from kvmm.kernels.quantize.joint import JointPages
from kvmm.kernels.quantize.reference import gaussian_steps
from kvmm.kernels.quantize.triton_means import means_of_units
from kvmm.kernels.quantize.triton_parameters import launch as range_parameters

if TYPE_CHECKING:
    from kvmm.kernels.quantize.layout import PlaneLayout

_UNITS, _FEW_UNITS, _CHANNELS = 64, 8, 32  # whose statistics a reducing program holds at once


class TilePages(VectorChain):
    """Statistics and codes of vectors ``[B, H, T, D]`` behind their chain; see :class:`DensePages` for the methods."""

    def _empty(self, units: int, *first: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """``[*first, B, H, units, D]``."""
        batch, heads, *_, dim = self.shape
        return torch.empty(*first, batch, heads, units, dim, dtype=dtype, device=self.device)

    def _out(self, bits: int, transposed: bool) -> torch.Tensor:
        batch, heads, count, size, dim = self.shape
        page = (dim, size * bits // 8) if transposed else (size * bits // 8, dim)
        return torch.empty(batch, heads, count, *page, dtype=torch.uint8, device=self.device)

    # -- statistics -------------------------------------------------------------------------------------------------

    def token_norms(self, norm: str, shared: bool = False) -> torch.Tensor:
        if self.matrix is not None or self.norm is not None or self.offset is not None or self.keep is not None:
            return torch.cat([part.token_norms(norm, shared) for part in self.parts()], 2)
        return self._in_pages(self._token_norms(norm, shared))

    def _token_norms(self, norm: str, shared: bool) -> torch.Tensor:
        _, found = launch(self.x, rotation=self.rotated, store=False, norm=norm)
        if shared:
            if norm == "l2":
                found = torch.linalg.vector_norm(found, dim=1, keepdim=True)
            else:
                reduction = {"max": torch.amax, "mean": torch.mean, "sum": torch.sum}[norm]
                found = reduction(found, 1, keepdim=True)
        return found

    def divisors(self, dtype: torch.dtype) -> torch.Tensor:
        if self.matrix is not None or self.norm is not None or self.offset is not None or self.keep is not None:
            return torch.cat([part.divisors(dtype) for part in self.parts()], 2)
        return self._in_pages(launch(self.x, rotation=self.rotated, store=False, norm="l2", divisor=dtype)[1])

    def _in_pages(self, found: torch.Tensor) -> torch.Tensor:
        """``[B, H, T]`` to ``[B, H, P, N]``, filled with copies of the last one."""
        missing = -found.shape[2] % self.page_size
        if missing:
            found = torch.cat((found, found[:, :, -1:].expand(-1, -1, missing)), 2)
        return found.unflatten(2, (-1, self.page_size))

    def _moments(
        self, groups: TokenGroups, mask: torch.Tensor | None = None, squares: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, int]:
        """Of every unit: tokens ``[B, H, U, 1]``, mean and, if wanted, squares about it ``[B, H, U, D]``; and pages a
        unit."""
        units, run, constants, grid = self._statistics(groups)
        mean = self._empty(units)
        count = mean.new_empty(*mean.shape[:3], 1)
        apart = self._empty(units) if squares else None
        source, chain = self._source()
        valid = self.valid if mask is None else None
        statistics.moments_kernel[grid](
            source,
            self._tokens,
            as_bytes(valid),
            as_bytes(mask),
            count,
            mean,
            apart,
            units,
            self.every,
            **constants,
            **chain,
        )
        return count, mean, apart, run

    def mean(self) -> torch.Tensor:
        return means_of_units(*self._moments(self.groups(None))[:2], each=False)

    def page_means(self, keep: torch.Tensor) -> torch.Tensor:
        return means_of_units(*self._moments(self.groups(self.page_size), keep.contiguous())[:2], each=True)

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        count, means, squares, _ = self._moments(self.groups(None), squares=True)
        mean, number = means_of_units(count, means, each=False), count.sum(2).clamp_min(1)
        return mean, (squares + (means - mean.unsqueeze(2)).square() * count).sum(2) / number

    def token_excess(self, reach: float) -> torch.Tensor:
        mean, variance = self.sample().moments()
        batch, heads, pages, size, dim = self.shape
        out = torch.empty(batch, heads, pages, size, device=self.device)
        source, chain = self._source()
        constants = {"ROWS": self._rows} | block_sizes(dim, self._rows)
        grid = -(-pages * size // self._rows), batch * heads
        statistics.token_excess_kernel[grid](
            source, self._tokens, mean, variance.sqrt() * reach, out, **constants, **chain
        )
        return out

    def kept_mean(self, keep: torch.Tensor) -> torch.Tensor:
        return means_of_units(*self._moments(self.groups(None), keep.contiguous())[:2], each=False).unsqueeze(2)

    def channel_ranges(self, groups: TokenGroups) -> tuple[torch.Tensor, torch.Tensor]:
        low, high, _ = self._channel_statistics(groups, True, False)
        return low, high

    def channel_magnitudes(self, groups: TokenGroups) -> torch.Tensor:
        return self._channel_statistics(groups, False, True)[2]

    def channel_extent(self, groups: TokenGroups) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self._channel_statistics(groups, True, True)

    def _channel_statistics(
        self, groups: TokenGroups, ranges: bool, magnitudes: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        units, run, constants, grid = self._statistics(groups)
        low, high = (self._empty(units) if ranges else None for _ in range(2))
        total = self._empty(units) if magnitudes else None
        source, chain = self._source()
        statistics.range_kernel[grid](
            source, self._tokens, as_bytes(self.valid) if magnitudes else None, low, high, total,
            None, None, None, None, units, **constants, **chain,
        )  # fmt: skip
        if ranges:
            low, high = groups.minimum(low, run), groups.maximum(high, run)
        return low, high, groups.sum(total, run) if magnitudes else None

    def channel_range_parameters(
        self, groups: TokenGroups, bits: int, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if groups.pages_per_group > 1:
            return range_parameters(*self.channel_ranges(groups), bits, dtype)
        units, _, constants, grid = self._statistics(groups)
        scale, zero_point = (self._empty(units, dtype=dtype) for _ in range(2))
        source, chain = self._source()
        statistics.range_kernel[grid](
            source, self._tokens, None, None, None, None,
            scale, zero_point, torch.finfo(dtype).max, 2.0**bits - 1.0, units, **constants, **chain,
        )  # fmt: skip
        return scale, zero_point

    def token_ranges(self, channel_groups: int) -> tuple[torch.Tensor, torch.Tensor]:
        batch, heads, count, size, dim = self.shape
        low = torch.empty(batch, heads, count, channel_groups, size, device=self.device)
        high = torch.empty_like(low)
        source, chain = self._source()
        constants = {"ROWS": self._rows} | block_sizes(dim, self._rows)
        constants |= self._channel_groups(channel_groups, constants)
        grid = -(-count * size // self._rows), batch * heads
        statistics.token_range_kernel[grid](source, self._tokens, low, high, count, **constants, **chain)
        return low, high

    def join_heads(self, heads: int, channel_groups: int) -> JointPages | None:
        return JointPages(self, heads) if JointPages.takes(heads * self.shape[-1], channel_groups) else None

    def _channel_groups(self, channel_groups: int, constants: dict[str, int]) -> dict[str, int]:
        alone = channel_groups == 1  # then a group may have any number of channels, and padding joins it
        return {
            "GROUPS": channel_groups,
            "GROUP": constants["BLOCK_D"] if alone else self.shape[-1] // channel_groups,
        }

    def fit_levels(
        self,
        bits: torch.Tensor,
        groups: TokenGroups,
        dtype: torch.dtype = torch.float32,
        coded: int | None = None,
        refits: int = 2,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        half_step, levels = gaussian_steps(tuple(bits.tolist()), self.device)
        count, means, squares, run = self._moments(groups, squares=True)
        batch, heads, units, dim = means.shape
        per_group = -(-groups.pages_per_group // run)
        found = -(-units // per_group)
        mean, scale, zero_point = (self._empty(found) for _ in range(3))
        sums = self._empty(units, 3)
        coded = dim if coded is None else coded
        stored = (
            torch.empty(batch, heads, found, coded, dtype=dtype, device=self.device),
            torch.empty(batch, heads, found, dim, dtype=dtype, device=self.device),
            coded,
            torch.finfo(dtype).max,
        )
        source, chain = self._source()
        _, _, constants, grid = self._statistics(groups)
        block = _FEW_UNITS if per_group <= _FEW_UNITS else _UNITS  # a size more is a kernel more to compile
        channels = min(_CHANNELS, triton.next_power_of_2(dim))
        for refit in range(refits + 1):
            if refit:
                statistics.refit_kernel[grid](
                    source,
                    self._tokens,
                    as_bytes(self.valid),
                    scale,
                    zero_point,
                    mean,
                    levels,
                    sums,
                    units,
                    found,
                    groups.unit * groups.pages_per_group,
                    self.every,
                    **constants,
                    **chain,
                )
            statistics.levels_kernel[found, batch * heads, -(-dim // channels)](
                count,
                means,
                squares,
                sums,
                half_step,
                levels,
                mean,
                scale,
                zero_point,
                *(stored if refit == refits else (None, None, 0, 0.0)),
                units,
                per_group,
                D=dim,
                REFIT=refit > 0,
                BLOCK=block,
                BLOCK_D=channels,
            )
        return stored[0], stored[1]

    # -- codes ------------------------------------------------------------------------------------------------------

    def channel_codes(
        self, scale: torch.Tensor, zero_point: torch.Tensor, groups: TokenGroups, bits: int, transposed: bool
    ) -> torch.Tensor:
        return self._channel_codes(scale, zero_point, None, groups, bits, transposed)

    def _channel_codes(
        self,
        scale: torch.Tensor,
        zero_point: torch.Tensor,
        highest: torch.Tensor | None,
        groups: TokenGroups,
        bits: int,
        transposed: bool,
    ) -> torch.Tensor:
        out = self._out(bits, transposed)
        rows = self.page_size * bits // 8
        constants, grid = self._planes(rows)
        # rows of the program's pages that follow each other and share a group
        segment = constants["PAGES"] * rows if scale.shape[2] == 1 else min(rows, groups.unit)
        source, chain = self._source()
        kernels.channel_kernel[grid](
            source,
            self._tokens,
            scale.contiguous(),
            zero_point.contiguous(),
            highest,
            out,
            self.shape[2],
            scale.shape[2],
            groups.unit * groups.pages_per_group,
            SEGMENT=segment,
            BITS=bits,
            TRANSPOSED=transposed,
            **constants,
            **chain,
        )
        return out

    def two_plane_codes(
        self, scale: torch.Tensor, zero_point: torch.Tensor, groups: TokenGroups, wide: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scale, zero_point = scale.contiguous(), zero_point.contiguous()
        low = self._channel_codes(scale, zero_point, highest_codes(scale, wide), groups, 2, False)
        batch, heads, count, size, dim = self.shape
        units, channels = count * (size // groups.unit), wide.shape[-1]
        high = torch.empty(batch, heads, units, groups.unit // 4, channels, dtype=torch.uint8, device=self.device)
        if channels:
            source, _ = self._source()
            kernels.high_plane_kernel[units, batch * heads](
                source,
                self._tokens,
                scale,
                zero_point,
                wide.contiguous(),
                high,
                units,
                scale.shape[2],
                groups.unit * groups.pages_per_group,
                channels,
                D=dim,
                UNIT=groups.unit,
                BLOCK=triton.next_power_of_2(channels),
            )
        return low, high

    def token_codes(self, scale: torch.Tensor, zero_point: torch.Tensor, bits: int, transposed: bool) -> torch.Tensor:
        return self._token_codes(scale.contiguous(), zero_point.contiguous(), None, False, bits, transposed)

    def token_range_codes(
        self, channel_groups: int, bits: int, dtype: torch.dtype, transposed: bool, integer_zero: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        batch, heads, count, size, _ = self.shape
        shape = batch, heads, count, channel_groups, size
        scale, zero_point = (torch.empty(shape, dtype=dtype, device=self.device) for _ in range(2))
        codes = self._token_codes(scale, zero_point, torch.finfo(dtype).max, integer_zero, bits, transposed)
        return codes, scale, zero_point

    def _token_codes(
        self,
        scale: torch.Tensor,
        zero_point: torch.Tensor,
        limit: float | None,
        integer_zero: bool,
        bits: int,
        transposed: bool,
    ) -> torch.Tensor:
        out = self._out(bits, transposed)
        constants, grid = self._planes(self.page_size * bits // 8)
        source, chain = self._source()
        kernels.token_kernel[grid](
            source,
            self._tokens,
            scale,
            zero_point,
            out,
            self.shape[2],
            limit,
            BITS=bits,
            INTEGER=integer_zero,
            TRANSPOSED=transposed,
            **self._channel_groups(scale.shape[3], constants),
            **constants,
            **chain,
        )
        return out

    def plane_codes(
        self,
        scale: torch.Tensor,
        zero_point: torch.Tensor,
        layout: PlaneLayout,
        transposed: bool,
        padded_widths: Mapping[str, int] | None = None,
    ) -> dict[str, torch.Tensor]:
        batch, heads, count, size, _ = self.shape
        if not layout.coded:
            return {}
        stored = {}
        for name, bits in (("codes", 2), ("codes_1bit", 1)):
            if name in layout.widths:
                width = (padded_widths or layout.widths)[name]
                page = (width, size * bits // 8) if transposed else (size * bits // 8, width)
                new = torch.empty if width == layout.widths[name] else torch.zeros
                stored[name] = new(batch, heads, count, *page, dtype=torch.uint8, device=self.device)
        counts = [n for _, n in layout.two_bit_planes]
        two_bit, one_bit = stored.get("codes"), stored.get("codes_1bit")
        runs = 1 if one_bit is None else 2
        constants, (programs, sequences) = self._planes(size // 4 // runs)
        turns = self._turns(programs * sequences)
        source, chain = self._source()
        kernels.planes_kernel[-(-programs // turns), sequences](
            source,
            self._tokens,
            scale,
            *strides(scale, batch, heads),
            zero_point,
            *strides(zero_point, batch, heads),
            layout.levels(self.device),
            two_bit,
            0 if two_bit is None else two_bit.shape[3 if transposed else 4],
            one_bit,
            0 if one_bit is None else one_bit.shape[3 if transposed else 4],
            count,
            layout.coded,
            *counts,
            *[0] * (4 - len(counts)),
            TURNS=turns,
            PLANES=triton.next_power_of_2(len(counts)),  # an empty fourth plane costs less than another variant
            RUNS=runs,
            TRANSPOSED=transposed,
            **constants,
            **chain,
        )
        return stored

    def book_codes(
        self, book: ScalarBook, dtype: torch.dtype, transposed: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[torch.Tensor]]:
        batch, heads, count, size, _ = self.shape
        if book.low_bits != 2 or len(book.runs) > 2:
            low, high, lengths = zip(*(part.book_codes(book, dtype, transposed) for part in self.parts()), strict=True)
            lengths = [torch.cat(run, 2) for run in zip(*lengths, strict=True)]
            return torch.cat(low, 2), None if high[0] is None else torch.cat(high, 2), lengths
        lengths = [torch.empty(batch, heads, count, size, dtype=dtype, device=self.device) for _ in book.parts]
        low, high = self._out(2, transposed), None
        if book.high_bits:
            page = (size * book.high_bits // 8, book.high_channels)
            page = page[::-1] if transposed else page
            high = torch.empty(batch, heads, count, *page, dtype=torch.uint8, device=self.device)
        (first, borders), (_, others) = book.runs[0], book.runs[1] if len(book.runs) > 1 else (0, ())
        runs = 2 if book.high_bits == 1 else 1
        constants, (programs, sequences) = self._planes(size // 4 // runs)
        turns = self._turns(programs * sequences)
        source, chain = self._source()
        books.book_kernel[-(-programs // turns), sequences](
            source,
            self._tokens,
            borders_on(borders, self.device),
            borders_on(others, self.device) if others else None,
            first,
            lengths[-1],
            lengths[0] if book.split else None,
            torch.finfo(dtype).max,
            low,
            high,
            book.high_channels,
            count,
            BORDERS=len(borders),
            OTHERS=len(others),
            TURNS=turns,
            RUNS=runs,
            TRANSPOSED=transposed,
            **constants,
            **chain,
        )
        return low, high, lengths
