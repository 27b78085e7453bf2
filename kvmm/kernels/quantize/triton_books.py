"""Packed codes of scalar code books and the lengths they are relative to, some rows at a time, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from kvmm.kernels.quantize.triton import store_rows
from kvmm.kernels.quantize.triton_source import load_matrix, load_vectors


@triton.jit
def _length(pointer, squares, limit, at, inside):
    """Store the lengths of ``squares`` ``[ROWS]``, ``limit`` at most, and return what makes vectors of those unit
    vectors, 0 of stored zeros."""
    length = tl.minimum(tl.sqrt_rn(squares), limit).to(pointer.dtype.element_ty)
    tl.store(pointer + at, length, mask=inside)
    stored = length.to(tl.float32)
    return tl.where(stored == 0.0, 0.0, tl.div_rn(1.0, tl.where(stored == 0.0, 1.0, stored)))[:, None]


@triton.jit
def _borders_below(unit, borders, BORDERS: tl.constexpr):
    """How many of ``borders`` ``[BORDERS]`` are below each element, int32."""
    codes = (unit > tl.load(borders)).to(tl.int32)
    for k in tl.static_range(1, BORDERS):
        codes += (unit > tl.load(borders + k)).to(tl.int32)
    return codes


@triton.jit(do_not_specialize=["tokens", "pages", "first", "high_channels"])
def book_kernel(
    source,
    tokens,
    borders,
    other_borders,
    first,
    norm,
    first_norm,
    limit,
    low,
    high,
    high_channels,
    pages,
    D: tl.constexpr,
    N: tl.constexpr,
    BORDERS: tl.constexpr,
    OTHERS: tl.constexpr,
    TURNS: tl.constexpr,
    PAGES: tl.constexpr,
    RUNS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Lengths ``norm`` ``[B * H, P, N]`` and packed codes (:class:`~kvmm.kernels.quantize.books.ScalarBook`): two bits
    of all channels in ``low``, the rest, of the first ``high_channels``, in ``high``.

    Channels from ``first`` on have the borders ``other_borders`` where that is not None, and channels before it
    lengths of their own, ``first_norm``, where that is not None. ``RUNS`` is 2 with a high plane of one bit, whose
    packed pages have half as many rows: the rows of the low plane are then two runs. In the word of a channel byte 0
    and, of the second run, byte 1 are the low plane, byte 2 the high one. A program takes ``TURNS`` times ``PAGES``
    pages, with the same matrix.
    """
    R: tl.constexpr = N // 4 // RUNS
    ROWS: tl.constexpr = PAGES * R
    sequence = tl.program_id(1).to(tl.int64)
    weights = load_matrix(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    early = (tl.arange(0, BLOCK_D) < first)[None, :]
    row = tl.arange(0, ROWS) % R
    for turn in range(TURNS):
        page = (tl.program_id(0) * TURNS + turn) * PAGES + tl.arange(0, ROWS) // R
        packed = tl.zeros([ROWS, BLOCK_D], tl.int32)
        for run in range(4 * RUNS):
            slot = page * N + run * R + row
            y = load_vectors(source, tokens, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
            at, inside = sequence * pages * N + slot, page < pages
            if first_norm is not None:
                begin = tl.sum(tl.where(early, y * y, 0.0), 1)
                rest = tl.sum(tl.where(early, 0.0, y * y), 1)
                factor = _length(first_norm, begin, limit, at, inside)
                unit = y * tl.where(early, factor, _length(norm, rest, limit, at, inside))
            else:
                unit = y * _length(norm, tl.sum(y * y, 1), limit, at, inside)
            codes = _borders_below(unit, borders, BORDERS)
            if other_borders is not None:
                codes = tl.where(early, codes, _borders_below(unit, other_borders, OTHERS))
            if RUNS == 2:
                packed |= (codes & 3) << (run + 7 * (run % 2))
                packed |= (codes >> 2) << (16 + run)
            else:
                packed |= ((codes & 3) | ((codes >> 2) << 16)) << (2 * run)
        store_rows(low, packed, sequence, page, row, pages, D, 0, 0, D, N // 4, BLOCK_D, TRANSPOSED)
        if RUNS == 2:
            store_rows(low, packed >> 8, sequence, page, row + R, pages, D, 0, 0, D, N // 4, BLOCK_D, TRANSPOSED)
        if high is not None:
            store_rows(
                high, packed >> 16, sequence, page, row, pages, high_channels, 0, 0, high_channels, R, BLOCK_D,
                TRANSPOSED,
            )  # fmt: skip
