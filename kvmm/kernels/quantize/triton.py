"""Packed codes of pages, some rows at a time, in Triton.

A program holds a few rows of one head in fp32 registers, ``[ROWS, D]``, as :mod:`~kvmm.kernels.quantize.triton_source`
loads them, and reduces them to statistics (:mod:`~kvmm.kernels.quantize.triton_statistics`) or, here, adds them to
packed bytes. Nothing in full precision is written.

Rows are chosen so that neither needs other threads. Here a program takes ``PAGES`` pages, a plane of ``R`` rows of each
at a time (``R = N * bits / 8``, the rows of the packed page): codes of one plane after the other are shifted into the
same registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvmm.kernels.quantize.triton_source import load_matrix, load_vectors


@triton.jit
def nearest_codes(y, scale, zero_point, highest):
    """The nearest code of 0 to ``highest``, ties to even, as float32; 0 where the scale is 0."""
    step = scale.to(tl.float32)
    # "/" is up to two last bits off on a GPU, enough to move what lies halfway between two codes
    inverse = tl.where(step == 0.0, 0.0, tl.div_rn(1.0, tl.where(step == 0.0, 1.0, step)))
    code = tl.minimum(tl.maximum((y - zero_point.to(tl.float32)) * inverse, 0.0), highest)
    return (code + 12582912.0) - 12582912.0  # 1.5 * 2**23: the sum has no room for a fraction


@triton.jit
def _codes(y, scale, zero_point, highest):
    """:func:`nearest_codes` as int32."""
    return nearest_codes(y, scale, zero_point, highest).to(tl.int32)


@triton.jit
def _of_group(pointer, sequence, group, groups, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """What groups ``[S]`` have for each channel in ``[B * H, groups, D]``: ``[S, 1, BLOCK_D]``."""
    channel = tl.arange(0, BLOCK_D)
    at = pointer + (sequence * groups + tl.minimum(group, groups - 1))[:, None] * D + channel[None, :]
    return tl.load(at, mask=(channel < D)[None, :], other=0)[:, None, :]


@triton.jit
def store_rows(
    pointer,
    packed,
    sequence,
    page,
    row,
    pages,
    width,
    first,
    start,
    stop,
    R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """Store columns ``start`` to ``stop`` of bytes ``[ROWS, BLOCK_D]``, which are rows ``row`` of pages ``page`` (both
    ``[ROWS]``) of ``R`` rows and ``width`` columns, from column ``first`` on."""
    column = tl.arange(0, BLOCK_D)
    inside = (column >= start) & (column < stop)
    offset = first + column - start
    base = (sequence * pages + page) * R * width
    if TRANSPOSED:
        at = pointer + (base + row)[None, :] + offset[:, None] * R
        tl.store(at, tl.trans(packed).to(tl.uint8), mask=inside[:, None] & (page < pages)[None, :])
    else:
        at = pointer + (base + row * width)[:, None] + offset[None, :]
        tl.store(at, packed.to(tl.uint8), mask=inside[None, :] & (page < pages)[:, None])


@triton.jit(do_not_specialize=["tokens", "pages", "groups"])
def channel_kernel(
    source,
    tokens,
    scale,
    zero_point,
    highest,
    out,
    pages,
    groups,
    group_slots,
    D: tl.constexpr,
    N: tl.constexpr,
    PAGES: tl.constexpr,
    SEGMENT: tl.constexpr,
    BITS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Packed codes with a scale and zero point ``[B * H, groups, D]`` a channel and group of ``group_slots``.
    ``highest`` uint8, alike, gives channels codes of more than ``BITS`` bits, of which the low ones are stored. Runs of
    ``SEGMENT`` rows have one group."""
    R: tl.constexpr = N * BITS // 8
    ROWS: tl.constexpr = PAGES * R
    SEGMENTS: tl.constexpr = ROWS // SEGMENT
    sequence = tl.program_id(1).to(tl.int64)
    weights = load_matrix(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    row = tl.arange(0, ROWS)
    page = tl.program_id(0) * PAGES + row // R
    head = tl.arange(0, SEGMENTS) * SEGMENT  # the first row of each run
    packed = tl.zeros([ROWS, BLOCK_D], tl.int32)
    for plane in range(8 // BITS):
        slot = page * N + plane * R + row % R
        y = load_vectors(source, tokens, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
        group = ((tl.program_id(0) * PAGES + head // R) * N + plane * R + head % R) // group_slots
        step = _of_group(scale, sequence, group, groups, D, BLOCK_D)
        start = _of_group(zero_point, sequence, group, groups, D, BLOCK_D)
        split = tl.reshape(y, [SEGMENTS, SEGMENT, BLOCK_D])
        if highest is not None:
            top = _of_group(highest, sequence, group, groups, D, BLOCK_D).to(tl.float32)
            codes = _codes(split, step, start, top) & (2**BITS - 1)
        else:
            codes = _codes(split, step, start, 2.0**BITS - 1.0)
        packed |= tl.reshape(codes, [ROWS, BLOCK_D]) << (plane * BITS)
    store_rows(out, packed, sequence, page, row % R, pages, D, 0, 0, D, R, BLOCK_D, TRANSPOSED)


@triton.jit(do_not_specialize=["tokens", "units", "groups", "channels"])
def high_plane_kernel(
    source,
    tokens,
    scale,
    zero_point,
    wide,
    out,
    units,
    groups,
    group_slots,
    channels,
    D: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The high two-bit plane of the four-bit codes of channels ``wide`` int64 ``[B * H, groups, channels]``, one unit
    of tokens per program, in ``out`` ``[B * H, units, UNIT / 4, channels]``."""
    R: tl.constexpr = UNIT // 4
    unit, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    group = sequence * groups + unit * UNIT // group_slots
    k = tl.arange(0, BLOCK)
    row = tl.arange(0, R)
    inside = k < channels
    channel = tl.load(wide + group * channels + k, mask=inside, other=0)
    step = tl.load(scale + group * D + channel, mask=inside, other=0)[None, :]
    start = tl.load(zero_point + group * D + channel, mask=inside, other=0)[None, :]
    x = source.x + sequence // source.heads * source.x_batch + sequence % source.heads * source.x_head
    packed = tl.zeros([R, BLOCK], tl.int32)
    for plane in tl.static_range(4):
        token = tl.minimum(unit * UNIT + plane * R + row, tokens - 1).to(tl.int64)
        at = x + (token * source.x_token)[:, None] + (channel * source.x_channel)[None, :]
        y = tl.load(at, mask=inside[None, :], other=0.0).to(tl.float32)
        packed |= (_codes(y, step, start, 15.0) >> 2) << (2 * plane)
    store_rows(out, packed, sequence, unit + 0 * row, row, units, channels, 0, 0, channels, R, BLOCK, False)


@triton.jit
def _whole_steps(smallest, largest, limit, highest, scale, zero_point):
    """:func:`range_parameters` with a zero point of a whole number of steps."""
    step = tl.div_rn(largest - smallest, highest).to(scale.dtype.element_ty)
    width = tl.where(step == 0.0, 1.0, step.to(tl.float32))
    steps = tl.div_rn(smallest, width)
    # a sum with 1.5 * 2**23 has no room for a fraction; what is too large for that has none that matters
    steps = tl.where(tl.abs(steps) < 4194304.0, (steps + 12582912.0) - 12582912.0, tl.floor(steps + 0.5))
    start = tl.where(step == 0.0, smallest, steps * width)
    return step, tl.minimum(tl.maximum(start, -limit), limit).to(zero_point.dtype.element_ty)


@triton.jit
def range_parameters(smallest, largest, limit, highest, scale, zero_point, INTEGER: tl.constexpr = False):
    """Scale and zero point of ranges, rounded to the types of what they are stored in, as
    :func:`kvmm.kernels.quantize.reference.affine_parameters` has them, with ``INTEGER`` for ``integer_zero``."""
    if INTEGER:
        step, start = _whole_steps(smallest, largest, limit, highest, scale, zero_point)
    else:
        start = tl.minimum(tl.maximum(smallest, -limit), limit).to(zero_point.dtype.element_ty)
        step = tl.div_rn(tl.maximum(largest - start.to(tl.float32), 0.0), highest)
        step = tl.minimum(step, limit).to(scale.dtype.element_ty)
    return step, start


@triton.jit(do_not_specialize=["tokens", "pages"])
def token_kernel(
    source,
    tokens,
    scale,
    zero_point,
    out,
    pages,
    limit,
    D: tl.constexpr,
    N: tl.constexpr,
    PAGES: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    INTEGER: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Packed codes with a scale and zero point ``[B * H, P, GROUPS, N]`` a token and group of channels. With ``limit``
    (a float, or None) these are those of the vectors' ranges, at most ``limit``, and are stored; ``INTEGER`` as of
    :func:`range_parameters`."""
    R: tl.constexpr = N * BITS // 8
    ROWS: tl.constexpr = PAGES * R
    BLOCK: tl.constexpr = BLOCK_D // GROUP
    sequence = tl.program_id(1).to(tl.int64)
    weights = load_matrix(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    row = tl.arange(0, ROWS)
    page = tl.program_id(0) * PAGES + row // R
    group = tl.arange(0, BLOCK)
    inside = (page < pages)[:, None] & (group < GROUPS)[None, :]
    outside = (tl.arange(0, BLOCK_D) >= D)[None, :]
    packed = tl.zeros([ROWS, BLOCK_D], tl.int32)
    for plane in range(8 // BITS):
        column = plane * R + row % R
        slot = page * N + column
        y = load_vectors(source, tokens, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
        offset = ((sequence * pages + page)[:, None] * GROUPS + group[None, :]) * N + column[:, None]
        if limit is not None:
            smallest = tl.min(tl.reshape(tl.where(outside, float("inf"), y), [ROWS, BLOCK, GROUP]), 2)
            largest = tl.max(tl.reshape(tl.where(outside, float("-inf"), y), [ROWS, BLOCK, GROUP]), 2)
            step, start = range_parameters(smallest, largest, limit, 2.0**BITS - 1.0, scale, zero_point, INTEGER)
            tl.store(scale + offset, step, mask=inside)
            tl.store(zero_point + offset, start, mask=inside)
        else:
            step = tl.load(scale + offset, mask=inside, other=0)
            start = tl.load(zero_point + offset, mask=inside, other=0)
        codes = _codes(tl.reshape(y, [ROWS, BLOCK, GROUP]), step[:, :, None], start[:, :, None], 2.0**BITS - 1.0)
        packed |= tl.reshape(codes, [ROWS, BLOCK_D]) << (plane * BITS)
    store_rows(out, packed, sequence, page, row % R, pages, D, 0, 0, D, R, BLOCK_D, TRANSPOSED)


@triton.jit
def _expand_planes(codes, PLANES: tl.constexpr):
    """Expand the two-bit planes of codes to the bytes of a word, the lowest first."""
    word = codes & 3
    if PLANES > 1:
        word |= (codes & 12) << 6
    if PLANES > 2:
        word |= (codes & 48) << 12
    if PLANES > 3:
        word |= (codes & 192) << 18
    return word


@triton.jit
def _store_planes(
    two_bit, even, odd, sequence, page, row, pages, width, count0, count1, count2, count3,
    N: tl.constexpr, PLANES: tl.constexpr, RUNS: tl.constexpr, BLOCK_D: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Store two-bit planes one after the other, plane ``p`` of the first ``count<p>`` channels.

    ``even`` and ``odd`` int32 ``[ROWS, BLOCK_D]`` have a byte per plane: ``even`` is rows ``row`` of pages
    ``page`` (both ``[ROWS]``), ``odd`` the run of rows behind, where ``RUNS`` is 2.
    """
    R: tl.constexpr = N // 4 // RUNS
    first = 0
    for plane in tl.static_range(PLANES):
        count = count0 if plane == 0 else (count1 if plane == 1 else (count2 if plane == 2 else count3))
        byte = 8 * plane
        store_rows(
            two_bit, even >> byte, sequence, page, row, pages, width, first, 0, count, N // 4, BLOCK_D, TRANSPOSED
        )  # fmt: skip
        if RUNS == 2:
            store_rows(
                two_bit, odd >> byte, sequence, page, row + R, pages, width, first, 0, count, N // 4, BLOCK_D,
                TRANSPOSED,
            )  # fmt: skip
        first += count


@triton.jit(
    do_not_specialize=[
        "tokens", "scale_batch", "scale_head", "zero_batch", "zero_head", "pages", "coded",
        "count0", "count1", "count2", "count3",
    ]
)  # fmt: skip
def planes_kernel(
    source,
    tokens,
    scale,
    scale_batch,
    scale_head,
    zero_point,
    zero_batch,
    zero_head,
    levels,
    two_bit,
    two_bit_width,
    one_bit,
    one_bit_width,
    pages,
    coded,
    count0,
    count1,
    count2,
    count3,
    D: tl.constexpr,
    N: tl.constexpr,
    TURNS: tl.constexpr,
    PAGES: tl.constexpr,
    PLANES: tl.constexpr,
    RUNS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Packed two-bit planes (plane ``p`` of the first ``count<p>`` channels, one after the other) and the one-bit plane
    (channels ``count0`` to ``coded``).

    ``RUNS`` is 1, or 2 with a one-bit plane, whose packed pages have half as many rows: the rows of a two-bit plane are
    then two runs. The two-bit planes of a channel fill the bytes of a word; a one-bit channel fills the first
    byte, half of it in the word of either run. A program takes ``TURNS`` times ``PAGES`` pages, with the same matrix.
    """
    R: tl.constexpr = N // 4 // RUNS
    ROWS: tl.constexpr = PAGES * R
    sequence = tl.program_id(1).to(tl.int64)
    weights = load_matrix(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    batch, head = sequence // source.heads, sequence % source.heads
    channel = tl.arange(0, BLOCK_D)
    row = tl.arange(0, ROWS) % R
    step = tl.load(scale + batch * scale_batch + head * scale_head + channel, mask=channel < coded, other=0)
    start = tl.load(zero_point + batch * zero_batch + head * zero_head + channel, mask=channel < coded, other=0)
    highest = tl.load(levels + channel, mask=channel < coded, other=0)
    single = channel >= count0
    for turn in range(TURNS):
        page = (tl.program_id(0) * TURNS + turn) * PAGES + tl.arange(0, ROWS) // R
        even = tl.zeros([ROWS, BLOCK_D], tl.int32)
        odd = tl.zeros([ROWS, BLOCK_D], tl.int32)
        for run in range(4 * RUNS):
            slot = page * N + run * R + row
            y = load_vectors(source, tokens, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
            word = _expand_planes(_codes(y, step[None, :], start[None, :], highest[None, :]), PLANES)
            if RUNS == 2:
                word = word << tl.where(single, run, run - run % 2)[None, :]
                even |= tl.where(run % 2 == 0, word, 0)
                odd |= tl.where(run % 2 == 0, 0, word)
            else:
                even |= word << (2 * run)
        _store_planes(
            two_bit, even, odd, sequence, page, row, pages, two_bit_width, count0, count1, count2, count3,
            N, PLANES, RUNS, BLOCK_D, TRANSPOSED,
        )  # fmt: skip
        if one_bit is not None:
            both = even | odd
            store_rows(
                one_bit, both, sequence, page, row, pages, one_bit_width, 0, count0, coded, N // 8, BLOCK_D, TRANSPOSED
            )
