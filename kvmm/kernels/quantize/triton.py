"""Statistics and packed codes of pages, some rows at a time, in Triton.

A program holds a few rows of one head in fp32 registers, ``[ROWS, D]``: loaded from the model's tensor, taken through
the chain (:class:`Source`), and reduced to statistics or added to packed bytes. Nothing in full precision is written.

Rows are chosen so that neither needs other threads: statistics run over rows of the same thread and are joined once, at
the end; and codes of one plane after the other (``R = N * bits / 8`` rows of each of a few pages, the rows of the
packed page) are shifted into the same registers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kvmm.kernels.hadamard.triton import OPERAND, product


class Source(NamedTuple):
    """What is coded: ``scale * matrix x / norm - offset``, or ``substitute`` where ``keep`` is 0.

    ``x`` ``[B, H, tokens, D]`` with its strides; ``slots = P * N``, of which those behind ``tokens`` copy the last one;
    ``matrix`` bf16 parts ``[B or 1, H or 1, parts, D, D]``; ``norm`` ``[B, H or 1, P, N]``; ``offset`` float32
    ``[B or 1, H or 1, D]``; ``keep`` uint8 ``[B, H, P, N]``; ``substitute`` float32 ``[B, H, P, D]``; ``valid`` uint8
    ``[B, tokens]``. A stride of 0 serves all; None is left out.
    """

    x: Any
    tokens: int
    slots: int
    heads: int
    x_batch: int
    x_head: int
    x_token: int
    x_channel: int
    matrix: Any
    matrix_batch: int
    matrix_head: int
    scale: float
    norm: Any
    norm_batch: int
    norm_head: int
    offset: Any
    offset_batch: int
    offset_head: int
    keep: Any
    substitute: Any
    valid: Any
    valid_batch: int


@triton.jit
def _weights(source, sequence, D: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr, MATRIX_PARTS: tl.constexpr):
    """The matrix of head ``sequence``, transposed, its parts one below the other: bf16 ``[MATRIX_PARTS * BLOCK_D,
    BLOCK_D]``, to stay in shared memory. 0 if there is none, or if it is too large or the vectors have parts too."""
    weights = 0.0
    if source.matrix is not None and PARTS == 1 and BLOCK_D <= 128:
        batch, head = sequence // source.heads, sequence % source.heads
        matrix = source.matrix + batch * source.matrix_batch + head * source.matrix_head
        row = tl.arange(0, MATRIX_PARTS * BLOCK_D)
        k, channel = row % BLOCK_D, tl.arange(0, BLOCK_D)
        at = matrix + (row // BLOCK_D * D * D + k)[:, None] + channel[None, :] * D
        weights = tl.load(at, mask=(k < D)[:, None] & (channel < D)[None, :], other=0.0)
    return weights


@triton.jit
def _vectors(
    source,
    weights,
    sequence,
    slot,
    D: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """The vectors in slots ``[ROWS]`` (the last one in place of those there are not) of head ``sequence``: float32
    ``[ROWS, BLOCK_D]``."""
    batch, head = sequence // source.heads, sequence % source.heads
    channel = tl.arange(0, BLOCK_D)
    slot = tl.minimum(slot, source.slots - 1)
    token = tl.minimum(slot, source.tokens - 1).to(tl.int64)
    rows = source.x + batch * source.x_batch + head * source.x_head + token * source.x_token
    # what a row needs beside the product is on its way before the product starts
    factor = source.scale
    if source.norm is not None:
        norm = tl.load(source.norm + batch * source.norm_batch + head * source.norm_head + slot).to(tl.float32)
        factor = (source.scale / norm)[:, None]
    if source.offset is not None:
        at = source.offset + batch * source.offset_batch + head * source.offset_head + channel
        offset = tl.load(at, mask=channel < D, other=0.0)[None, :]
    if source.matrix is not None and PARTS == 1 and BLOCK_D <= 128:
        k = tl.arange(0, MATRIX_PARTS * BLOCK_D) % BLOCK_D
        x = tl.load(rows[:, None] + k[None, :] * source.x_channel, mask=(k < D)[None, :], other=0.0)
        y = tl.dot(x.to(OPERAND), weights.to(OPERAND))
    elif source.matrix is not None:
        matrix = source.matrix + batch * source.matrix_batch + head * source.matrix_head
        y = product(rows, source.x_channel, matrix, D, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
    else:
        y = tl.load(rows[:, None] + channel[None, :] * source.x_channel, mask=channel[None, :] < D, other=0.0)
        y = y.to(tl.float32)
    if source.norm is not None or source.matrix is not None:
        y *= factor
    if source.offset is not None:
        y -= offset
    if source.keep is not None:
        place = sequence * source.slots + slot
        keep = tl.load(source.keep + place)[:, None] != 0
        at = source.substitute + (place // N)[:, None] * D + channel[None, :]
        y = tl.where(keep, y, tl.load(at, mask=channel[None, :] < D, other=0.0))
    return y


@triton.jit
def _weight(source, mask, sequence, slot):
    """1 for slots that count, else 0: float32. Those that hold a token, or those of ``mask`` uint8 ``[B, H, P, N]``."""
    if mask is not None:
        inside = slot < source.slots
        return (tl.load(mask + sequence * source.slots + slot, mask=inside, other=0) != 0).to(tl.float32)
    weight = slot < source.tokens
    if source.valid is not None:
        at = source.valid + sequence // source.heads * source.valid_batch + slot
        weight = weight & (tl.load(at, mask=weight, other=0) != 0)
    return weight.to(tl.float32)


@triton.jit
def _nearest(y, scale, zero_point, highest):
    """The nearest code of 0 to ``highest``, ties to even, as float32; 0 where the scale is 0."""
    step = scale.to(tl.float32)
    inverse = tl.where(step == 0.0, 0.0, 1.0 / tl.where(step == 0.0, 1.0, step))
    place = tl.minimum(tl.maximum((y - zero_point.to(tl.float32)) * inverse, 0.0), highest)
    return (place + 12582912.0) - 12582912.0  # 1.5 * 2**23: the sum has no room for a fraction


@triton.jit
def _codes(y, scale, zero_point, highest):
    """:func:`_nearest` as int32."""
    return _nearest(y, scale, zero_point, highest).to(tl.int32)


@triton.jit
def _of_group(pointer, sequence, group, groups, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """What groups ``[S]`` have for each channel in ``[B * H, groups, D]``: ``[S, 1, BLOCK_D]``."""
    channel = tl.arange(0, BLOCK_D)
    at = pointer + (sequence * groups + tl.minimum(group, groups - 1))[:, None] * D + channel[None, :]
    return tl.load(at, mask=(channel < D)[None, :], other=0)[:, None, :]


@triton.jit
def _store_rows(
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
    place = first + column - start
    base = (sequence * pages + page) * R * width
    if TRANSPOSED:
        at = pointer + (base + row)[None, :] + place[:, None] * R
        tl.store(at, tl.trans(packed).to(tl.uint8), mask=inside[:, None] & (page < pages)[None, :])
    else:
        at = pointer + (base + row * width)[:, None] + place[None, :]
        tl.store(at, packed.to(tl.uint8), mask=inside[None, :] & (page < pages)[:, None])


# -- statistics: a program takes UNITS units of CHUNKS * ROWS slots ----------------------------------------------------


@triton.jit
def range_kernel(
    source,
    low,
    high,
    magnitude,
    units,
    D: tl.constexpr,
    N: tl.constexpr,
    UNITS: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Minimum and maximum, or the sum of magnitudes over tokens, of every channel and unit: ``[B * H, units, D]``."""
    sequence = tl.program_id(1).to(tl.int64)
    weights = _weights(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    channel = tl.arange(0, BLOCK_D)
    for u in range(UNITS):
        unit = tl.program_id(0) * UNITS + u
        smallest = tl.full([ROWS, BLOCK_D], float("inf"), tl.float32)
        largest = tl.full([ROWS, BLOCK_D], float("-inf"), tl.float32)
        total = tl.zeros([ROWS, BLOCK_D], tl.float32)
        for c in range(CHUNKS):
            slot = (unit * CHUNKS + c) * ROWS + tl.arange(0, ROWS)
            y = _vectors(source, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
            if low is not None:
                smallest = tl.minimum(smallest, y)
                largest = tl.maximum(largest, y)
            if magnitude is not None:
                total += tl.abs(y) * _weight(source, None, sequence, slot)[:, None]
        at = (sequence * units + unit) * D + channel
        inside = (channel < D) & (unit < units)
        if low is not None:
            tl.store(low + at, tl.min(smallest, 0), mask=inside)
            tl.store(high + at, tl.max(largest, 0), mask=inside)
        if magnitude is not None:
            tl.store(magnitude + at, tl.sum(total, 0), mask=inside)


@triton.jit
def moments_kernel(
    source,
    mask,
    count,
    mean,
    squares,
    units,
    D: tl.constexpr,
    N: tl.constexpr,
    UNITS: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Tokens ``[B * H, units]``, and mean and sum of squares about it ``[B * H, units, D]`` of every channel and unit;
    ``mask`` as in :func:`_weight`."""
    sequence = tl.program_id(1).to(tl.int64)
    weights = _weights(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    channel = tl.arange(0, BLOCK_D)
    for u in range(UNITS):
        unit = tl.program_id(0) * UNITS + u
        # sums about a point among the vectors: keys may have an offset far larger than what varies
        slot = unit * CHUNKS * ROWS + tl.arange(0, ROWS)
        weight = _weight(source, mask, sequence, slot)
        y = _vectors(source, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
        point = tl.sum(y * weight[:, None], 0) / tl.maximum(tl.sum(weight, 0), 1.0)
        tokens = tl.zeros([ROWS], tl.float32)
        first = tl.zeros([ROWS, BLOCK_D], tl.float32)
        second = tl.zeros([ROWS, BLOCK_D], tl.float32)
        for c in range(CHUNKS):
            slot = (unit * CHUNKS + c) * ROWS + tl.arange(0, ROWS)
            weight = _weight(source, mask, sequence, slot)
            y = _vectors(source, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
            apart = (y - point[None, :]) * weight[:, None]
            tokens += weight
            first += apart
            second += apart * apart
        total = tl.sum(tokens, 0)
        shift = tl.sum(first, 0) / tl.maximum(total, 1.0)
        at = (sequence * units + unit) * D + channel
        inside = (channel < D) & (unit < units)
        tl.store(count + sequence * units + unit, total, mask=unit < units)
        tl.store(mean + at, point + shift, mask=inside)
        if squares is not None:
            tl.store(squares + at, tl.maximum(tl.sum(second, 0) - shift * shift * total, 0.0), mask=inside)


@triton.jit
def refit_kernel(
    source,
    scale,
    zero_point,
    mean,
    levels,
    sums,
    units,
    groups,
    group_slots,
    D: tl.constexpr,
    N: tl.constexpr,
    UNITS: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """With the codes of given levels: their sum, that of their squares and that of their products with the distance to
    the mean, of every channel and unit, in ``sums`` ``[3, B * H, units, D]``. Levels ``[B * H, groups, D]``."""
    sequence = tl.program_id(1).to(tl.int64)
    weights = _weights(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    channel = tl.arange(0, BLOCK_D)
    highest = tl.load(levels + channel, mask=channel < D, other=0.0)[None, :]
    for u in range(UNITS):
        unit = tl.program_id(0) * UNITS + u
        group = tl.minimum(unit * CHUNKS * ROWS // group_slots, groups - 1)
        at = (sequence * groups + group) * D + channel
        step = tl.load(scale + at, mask=channel < D, other=0.0)[None, :]
        start = tl.load(zero_point + at, mask=channel < D, other=0.0)[None, :]
        centre = tl.load(mean + at, mask=channel < D, other=0.0)[None, :]
        first = tl.zeros([ROWS, BLOCK_D], tl.float32)
        second = tl.zeros([ROWS, BLOCK_D], tl.float32)
        crossed = tl.zeros([ROWS, BLOCK_D], tl.float32)
        for c in range(CHUNKS):
            slot = (unit * CHUNKS + c) * ROWS + tl.arange(0, ROWS)
            y = _vectors(source, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
            codes = _nearest(y, step, start, highest)
            weighted = codes * _weight(source, None, sequence, slot)[:, None]
            first += weighted
            second += weighted * codes
            crossed += weighted * (y - centre)
        size = tl.num_programs(1).to(tl.int64) * units * D
        at = (sequence * units + unit) * D + channel
        inside = (channel < D) & (unit < units)
        tl.store(sums + at, tl.sum(first, 0), mask=inside)
        tl.store(sums + size + at, tl.sum(second, 0), mask=inside)
        tl.store(sums + 2 * size + at, tl.sum(crossed, 0), mask=inside)


@triton.jit
def levels_kernel(
    count,
    means,
    squares,
    sums,
    half_step,
    levels,
    mean,
    scale,
    zero_point,
    stored_scale,
    stored_zero,
    coded,
    limit,
    units,
    per_group,
    D: tl.constexpr,
    REFIT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Join statistics of the ``per_group`` units of a group into its mean and levels, ``[B * H, G, D]``.

    First from what :func:`moments_kernel` found: the best uniform quantiser of a Gaussian. Then (``REFIT``) from what
    :func:`refit_kernel` found: the least-squares line through the codes. A program takes ``BLOCK_D`` channels.

    The last call stores them as well: ``stored_scale`` ``[B * H, G, coded]`` and ``stored_zero`` ``[B * H, G, D]``, in
    their types and within ``limit``.
    """
    group, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = channel < D
    last = tl.minimum((group + 1) * per_group, units)
    tokens = tl.zeros([BLOCK], tl.float32)
    first = tl.zeros([BLOCK, BLOCK_D], tl.float32)
    second = tl.zeros([BLOCK, BLOCK_D], tl.float32)
    third = tl.zeros([BLOCK, BLOCK_D], tl.float32)
    size = tl.num_programs(1).to(tl.int64) * units * D
    for begin in range(group * per_group, last, BLOCK):
        unit = begin + tl.arange(0, BLOCK)
        there = unit < last
        number = tl.load(count + sequence * units + unit, mask=there, other=0.0)
        tokens += number
        at = ((sequence * units + unit) * D)[:, None] + channel[None, :]
        mask = there[:, None] & inside[None, :]
        if REFIT:
            first += tl.load(sums + at, mask=mask, other=0.0)
            second += tl.load(sums + size + at, mask=mask, other=0.0)
            third += tl.load(sums + 2 * size + at, mask=mask, other=0.0)
        else:
            first += tl.load(means + at, mask=mask, other=0.0) * number[:, None]
    total = tl.maximum(tl.sum(tokens, 0), 1.0)
    at = (sequence * tl.num_programs(0) + group) * D + channel
    if REFIT:
        centre = tl.load(mean + at, mask=inside, other=0.0)
        step = tl.load(scale + at, mask=inside, other=0.0)
        code = tl.sum(first, 0) / total
        spread = tl.sum(second, 0) / total - code * code
        # a channel whose tokens share one code has nothing to fit
        step = tl.where(spread > 1e-6, tl.sum(third, 0) / total / tl.maximum(spread, 1e-12), step)
        start = centre - step * code
    else:
        centre = tl.sum(first, 0) / total
        for begin in range(group * per_group, last, BLOCK):
            unit = begin + tl.arange(0, BLOCK)
            there = unit < last
            number = tl.load(count + sequence * units + unit, mask=there, other=0.0)
            place = ((sequence * units + unit) * D)[:, None] + channel[None, :]
            mask = there[:, None] & inside[None, :]
            apart = tl.load(means + place, mask=mask, other=0.0) - centre[None, :]
            second += tl.load(squares + place, mask=mask, other=0.0) + number[:, None] * apart * apart
        variance = tl.sum(second, 0) / total
        step = 2.0 * tl.load(half_step + channel, mask=inside, other=0.0) * tl.sqrt(variance)
        highest = tl.load(levels + channel, mask=inside, other=0.0)
        start = centre - step * highest / 2.0
        tl.store(mean + at, centre, mask=inside)
    if stored_scale is None:
        tl.store(scale + at, step, mask=inside)
        tl.store(zero_point + at, start, mask=inside)
    else:
        step = tl.where(step > limit, limit, tl.where(step < -limit, -limit, step))
        start = tl.where(start > limit, limit, tl.where(start < -limit, -limit, start))
        place = (sequence * tl.num_programs(0) + group) * coded + channel
        tl.store(stored_scale + place, step.to(stored_scale.dtype.element_ty), mask=channel < coded)
        tl.store(stored_zero + at, start.to(stored_zero.dtype.element_ty), mask=inside)


@triton.jit
def token_range_kernel(
    source,
    low,
    high,
    pages,
    D: tl.constexpr,
    N: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Minimum and maximum of every token and group of ``GROUP`` channels, in ``[B * H, P, GROUPS, N]``."""
    sequence = tl.program_id(1).to(tl.int64)
    weights = _weights(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    BLOCK: tl.constexpr = BLOCK_D // GROUP
    slot = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    y = _vectors(source, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
    outside = (tl.arange(0, BLOCK_D) >= D)[None, :]
    smallest = tl.min(tl.reshape(tl.where(outside, float("inf"), y), [ROWS, BLOCK, GROUP]), 2)
    largest = tl.max(tl.reshape(tl.where(outside, float("-inf"), y), [ROWS, BLOCK, GROUP]), 2)
    group = tl.arange(0, BLOCK)
    place = ((sequence * pages + slot // N)[:, None] * GROUPS + group[None, :]) * N + (slot % N)[:, None]
    inside = (slot < source.slots)[:, None] & (group < GROUPS)[None, :]
    tl.store(low + place, smallest, mask=inside)
    tl.store(high + place, largest, mask=inside)


# -- codes: a program takes PAGES pages, a plane of R rows of each at a time -------------------------------------------


@triton.jit
def channel_kernel(
    source,
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
    weights = _weights(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    row = tl.arange(0, ROWS)
    page = tl.program_id(0) * PAGES + row // R
    head = tl.arange(0, SEGMENTS) * SEGMENT  # the first row of each run
    packed = tl.zeros([ROWS, BLOCK_D], tl.int32)
    for plane in range(8 // BITS):
        slot = page * N + plane * R + row % R
        y = _vectors(source, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
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
    _store_rows(out, packed, sequence, page, row % R, pages, D, 0, 0, D, R, BLOCK_D, TRANSPOSED)


@triton.jit
def high_digits_kernel(
    source,
    scale,
    zero_point,
    boosted,
    out,
    units,
    groups,
    group_slots,
    channels,
    D: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """High digits of the four-bit codes of channels ``boosted`` int64 ``[B * H, groups, channels]``, a unit of tokens a
    program, in ``out`` ``[B * H, units, UNIT / 4, channels]``."""
    R: tl.constexpr = UNIT // 4
    unit, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    group = sequence * groups + unit * UNIT // group_slots
    k = tl.arange(0, BLOCK)
    row = tl.arange(0, R)
    inside = k < channels
    channel = tl.load(boosted + group * channels + k, mask=inside, other=0)
    step = tl.load(scale + group * D + channel, mask=inside, other=0)[None, :]
    start = tl.load(zero_point + group * D + channel, mask=inside, other=0)[None, :]
    x = source.x + sequence // source.heads * source.x_batch + sequence % source.heads * source.x_head
    packed = tl.zeros([R, BLOCK], tl.int32)
    for plane in tl.static_range(4):
        token = tl.minimum(unit * UNIT + plane * R + row, source.tokens - 1).to(tl.int64)
        at = x + (token * source.x_token)[:, None] + (channel * source.x_channel)[None, :]
        y = tl.load(at, mask=inside[None, :], other=0.0).to(tl.float32)
        packed |= (_codes(y, step, start, 15.0) >> 2) << (2 * plane)
    _store_rows(out, packed, sequence, unit + 0 * row, row, units, channels, 0, 0, channels, R, BLOCK, False)


@triton.jit
def token_kernel(
    source,
    scale,
    zero_point,
    out,
    pages,
    D: tl.constexpr,
    N: tl.constexpr,
    PAGES: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Packed codes with a scale and zero point ``[B * H, P, GROUPS, N]`` a token and group of channels."""
    R: tl.constexpr = N * BITS // 8
    ROWS: tl.constexpr = PAGES * R
    BLOCK: tl.constexpr = BLOCK_D // GROUP
    sequence = tl.program_id(1).to(tl.int64)
    weights = _weights(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    row = tl.arange(0, ROWS)
    page = tl.program_id(0) * PAGES + row // R
    group = tl.arange(0, BLOCK)
    inside = (page < pages)[:, None] & (group < GROUPS)[None, :]
    packed = tl.zeros([ROWS, BLOCK_D], tl.int32)
    for plane in range(8 // BITS):
        column = plane * R + row % R
        y = _vectors(source, weights, sequence, page * N + column, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
        place = ((sequence * pages + page)[:, None] * GROUPS + group[None, :]) * N + column[:, None]
        step = tl.load(scale + place, mask=inside, other=0)[:, :, None]
        start = tl.load(zero_point + place, mask=inside, other=0)[:, :, None]
        codes = _codes(tl.reshape(y, [ROWS, BLOCK, GROUP]), step, start, 2.0**BITS - 1.0)
        packed |= tl.reshape(codes, [ROWS, BLOCK_D]) << (plane * BITS)
    _store_rows(out, packed, sequence, page, row % R, pages, D, 0, 0, D, R, BLOCK_D, TRANSPOSED)


@triton.jit
def _spread(codes, PLACES: tl.constexpr):
    """Two-bit digits of codes in the bytes of a word, the lowest first."""
    word = codes & 3
    if PLACES > 1:
        word |= (codes & 12) << 6
    if PLACES > 2:
        word |= (codes & 48) << 12
    if PLACES > 3:
        word |= (codes & 192) << 18
    return word


@triton.jit
def digits_kernel(
    source,
    scale,
    scale_batch,
    scale_head,
    zero_point,
    zero_batch,
    zero_head,
    levels,
    digits,
    digits_width,
    bits,
    bits_width,
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
    PLACES: tl.constexpr,
    RUNS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Packed two-bit digits (place ``p`` of the first ``count<p>`` channels, one place behind the other) and one-bit
    codes (channels ``count0`` to ``coded``).

    ``RUNS`` runs of rows a plane of digits: 1, or 2 where there are one-bit codes too, whose planes have half as many
    rows. The digits of a channel fill the bytes of a word; a one-bit channel fills the first byte, half of it in the
    word of either run. A program takes ``TURNS`` times ``PAGES`` pages, with the same matrix.
    """
    R: tl.constexpr = N // 4 // RUNS
    ROWS: tl.constexpr = PAGES * R
    sequence = tl.program_id(1).to(tl.int64)
    weights = _weights(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
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
            y = _vectors(source, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
            word = _spread(_codes(y, step[None, :], start[None, :], highest[None, :]), PLACES)
            if RUNS == 2:
                word = word << tl.where(single, run, run - run % 2)[None, :]
                even |= tl.where(run % 2 == 0, word, 0)
                odd |= tl.where(run % 2 == 0, 0, word)
            else:
                even |= word << (2 * run)
        first = 0
        for place in tl.static_range(PLACES):
            count = count0 if place == 0 else (count1 if place == 1 else (count2 if place == 2 else count3))
            byte = 8 * place
            _store_rows(
                digits,
                even >> byte,
                sequence,
                page,
                row,
                pages,
                digits_width,
                first,
                0,
                count,
                N // 4,
                BLOCK_D,
                TRANSPOSED,
            )
            if RUNS == 2:
                _store_rows(
                    digits,
                    odd >> byte,
                    sequence,
                    page,
                    row + R,
                    pages,
                    digits_width,
                    first,
                    0,
                    count,
                    N // 4,
                    BLOCK_D,
                    TRANSPOSED,
                )
            first += count
        if bits is not None:
            both = even | odd
            _store_rows(
                bits, both, sequence, page, row, pages, bits_width, 0, count0, coded, N // 8, BLOCK_D, TRANSPOSED
            )
