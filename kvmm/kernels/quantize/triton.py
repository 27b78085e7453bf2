"""Statistics and packed codes of pages, a tile at a time, in Triton.

A program holds one page of one head, ``[N, D]`` in fp32 registers: loaded from the model's tensor, taken through the
chain (:class:`Source`), and reduced to statistics or packed into bytes. Nothing in full precision is written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kvmm.kernels.hadamard.triton import product


class Source(NamedTuple):
    """What is coded: ``scale * matrix x / norm - offset``, or ``substitute`` where ``keep`` is 0.

    ``x`` ``[B, H, tokens, D]`` with its strides; ``matrix`` bf16 parts ``[B or 1, H or 1, parts, D, D]``; ``norm``
    ``[B, H or 1, P, N]``; ``offset`` float32 ``[B or 1, H or 1, D]``; ``keep`` uint8 ``[B, H, P, N]``; ``substitute``
    float32 ``[B, H, P, D]``; ``valid`` uint8 ``[B, tokens]``. A stride of 0 serves all; None is left out.
    """

    x: Any
    tokens: int
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
def _vectors(
    source,
    sequence,
    page,
    pages,
    D: tl.constexpr,
    N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Page ``page`` of head ``sequence``: float32 ``[N, BLOCK_D]``."""
    batch, head = sequence // source.heads, sequence % source.heads
    channel = tl.arange(0, BLOCK_D)
    slot = page * N + tl.arange(0, N)
    token = tl.minimum(slot, source.tokens - 1).to(tl.int64)  # fill copies the last token
    rows = source.x + batch * source.x_batch + head * source.x_head + token * source.x_token
    if source.matrix is not None:
        matrix = source.matrix + batch * source.matrix_batch + head * source.matrix_head
        y = product(rows, source.x_channel, matrix, D, N, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS) * source.scale
    else:
        y = tl.load(rows[:, None] + channel[None, :] * source.x_channel, mask=channel[None, :] < D, other=0.0)
        y = y.to(tl.float32)
    if source.norm is not None:
        norm = tl.load(source.norm + batch * source.norm_batch + head * source.norm_head + slot).to(tl.float32)
        y = tl.div_rn(y, tl.broadcast_to(norm[:, None], [N, BLOCK_D]))
    if source.offset is not None:
        at = source.offset + batch * source.offset_batch + head * source.offset_head + channel
        y -= tl.load(at, mask=channel < D, other=0.0)[None, :]
    if source.keep is not None:
        keep = tl.load(source.keep + sequence * pages * N + slot)
        at = source.substitute + (sequence * pages + page) * D + channel
        substitute = tl.load(at, mask=channel < D, other=0.0)
        y = tl.where(keep[:, None] != 0, y, substitute[None, :])
    return y


@triton.jit
def _weight(source, sequence, page, N: tl.constexpr):
    """1 for slots that hold a token, else 0: float32 ``[N]``."""
    slot = page * N + tl.arange(0, N)
    weight = slot < source.tokens
    if source.valid is not None:
        at = source.valid + sequence // source.heads * source.valid_batch + slot
        weight = weight & (tl.load(at, mask=weight, other=0) != 0)
    return weight.to(tl.float32)


@triton.jit
def _of_units(
    pointer, sequence, page, groups, pages_per_group, D: tl.constexpr, UNITS: tl.constexpr, BLOCK_D: tl.constexpr
):
    """What the groups of a page's units have for each channel in ``[B * H, groups, D]``: ``[UNITS, 1, BLOCK_D]``."""
    group = (page * UNITS + tl.arange(0, UNITS)) // pages_per_group
    channel = tl.arange(0, BLOCK_D)
    at = pointer + (sequence * groups + group)[:, None] * D + channel[None, :]
    return tl.load(at, mask=(channel < D)[None, :], other=0)[:, None, :]


@triton.jit
def _store_units(
    pointer, found, sequence, page, pages, D: tl.constexpr, UNITS: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Store ``[UNITS, BLOCK_D]`` in ``[B * H, U, D]``."""
    unit = (sequence * pages + page) * UNITS + tl.arange(0, UNITS)
    channel = tl.arange(0, BLOCK_D)
    tl.store(pointer + unit[:, None] * D + channel[None, :], found, mask=(channel < D)[None, :])


@triton.jit
def _codes(y, scale, zero_point, highest):
    """The nearest code of 0 to ``highest``, ties to even, as int32; 0 where the scale is 0."""
    step = scale.to(tl.float32)
    inverse = tl.div_rn(tl.where(step == 0.0, 0.0, 1.0), tl.where(step == 0.0, 1.0, step))
    place = tl.minimum(tl.maximum((y - zero_point.to(tl.float32)) * inverse, 0.0), highest)
    return ((place + 12582912.0) - 12582912.0).to(tl.int32)  # 1.5 * 2**23: the sum has no room for a fraction


@triton.jit
def _pack(codes, BITS: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr):
    """Planes of ``[N, BLOCK_D]`` in bytes ``[N * BITS / 8, BLOCK_D]``."""
    PLANES: tl.constexpr = 8 // BITS
    split = tl.reshape(codes, [PLANES, N // PLANES, BLOCK_D])
    shift = tl.arange(0, PLANES) * BITS
    return tl.sum(split << shift[:, None, None], 0).to(tl.uint8)


@triton.jit
def _store_page(
    pointer,
    packed,
    sequence,
    page,
    pages,
    width,
    first,
    start,
    stop,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """Store columns ``start`` to ``stop`` of packed bytes ``[ROWS, BLOCK_D]`` in a page of ``width`` columns, from
    column ``first`` on."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_D)
    mask = (column >= start) & (column < stop)
    base = pointer + (sequence * pages + page) * ROWS * width
    place = first + column - start
    if TRANSPOSED:
        tl.store(base + place[:, None] * ROWS + row[None, :], tl.trans(packed), mask=mask[:, None])
    else:
        tl.store(base + row[:, None] * width + place[None, :], packed, mask=mask[None, :])


@triton.jit
def range_kernel(
    source,
    low,
    high,
    magnitude,
    pages,
    D: tl.constexpr,
    N: tl.constexpr,
    UNITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Minimum and maximum, or the sum of magnitudes over tokens, of every channel and unit."""
    page, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    y = _vectors(source, sequence, page, pages, D, N, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
    if low is not None:
        split = tl.reshape(y, [UNITS, N // UNITS, BLOCK_D])
        _store_units(low, tl.min(split, 1), sequence, page, pages, D, UNITS, BLOCK_D)
        _store_units(high, tl.max(split, 1), sequence, page, pages, D, UNITS, BLOCK_D)
    if magnitude is not None:
        weighted = tl.abs(y) * _weight(source, sequence, page, N)[:, None]
        found = tl.sum(tl.reshape(weighted, [UNITS, N // UNITS, BLOCK_D]), 1)
        _store_units(magnitude, found, sequence, page, pages, D, UNITS, BLOCK_D)


@triton.jit
def moments_kernel(
    source,
    mask,
    count,
    mean,
    squares,
    pages,
    D: tl.constexpr,
    N: tl.constexpr,
    UNITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Tokens, mean and sum of squares about the mean of every channel and unit. ``mask`` uint8 ``[B, H, P, N]`` says
    which slots count, if it is given."""
    page, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    UNIT: tl.constexpr = N // UNITS
    y = _vectors(source, sequence, page, pages, D, N, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
    if mask is not None:
        at = mask + (sequence * pages + page) * N + tl.arange(0, N)
        weight = (tl.load(at) != 0).to(tl.float32)
    else:
        weight = _weight(source, sequence, page, N)
    weight = tl.reshape(weight, [UNITS, UNIT])
    split = tl.reshape(y, [UNITS, UNIT, BLOCK_D])
    tokens = tl.sum(weight, 1)
    centre = tl.sum(split * weight[:, :, None], 1) / tl.maximum(tokens, 1.0)[:, None]
    tl.store(count + (sequence * pages + page) * UNITS + tl.arange(0, UNITS), tokens)
    _store_units(mean, centre, sequence, page, pages, D, UNITS, BLOCK_D)
    if squares is not None:
        apart = (split - centre[:, None, :]) * weight[:, :, None]
        _store_units(squares, tl.sum(apart * apart, 1), sequence, page, pages, D, UNITS, BLOCK_D)


@triton.jit
def refit_kernel(
    source,
    scale,
    zero_point,
    mean,
    levels,
    sums,
    pages,
    groups,
    pages_per_group,
    D: tl.constexpr,
    N: tl.constexpr,
    UNITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """With the codes of given levels: their sum, that of their squares and that of their products with the distance to
    the mean, of every channel and unit, in ``sums`` ``[3, B * H, U, D]``."""
    page, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    UNIT: tl.constexpr = N // UNITS
    channel = tl.arange(0, BLOCK_D)
    y = _vectors(source, sequence, page, pages, D, N, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
    split = tl.reshape(y, [UNITS, UNIT, BLOCK_D])
    step = _of_units(scale, sequence, page, groups, pages_per_group, D, UNITS, BLOCK_D)
    start = _of_units(zero_point, sequence, page, groups, pages_per_group, D, UNITS, BLOCK_D)
    centre = _of_units(mean, sequence, page, groups, pages_per_group, D, UNITS, BLOCK_D)
    highest = tl.load(levels + channel, mask=channel < D, other=0.0)[None, None, :]
    codes = _codes(split, step, start, highest).to(tl.float32)
    weighted = codes * tl.reshape(_weight(source, sequence, page, N), [UNITS, UNIT])[:, :, None]
    size = tl.num_programs(1).to(tl.int64) * pages * UNITS * D
    _store_units(sums, tl.sum(weighted, 1), sequence, page, pages, D, UNITS, BLOCK_D)
    _store_units(sums + size, tl.sum(weighted * codes, 1), sequence, page, pages, D, UNITS, BLOCK_D)
    _store_units(sums + 2 * size, tl.sum(weighted * (split - centre), 1), sequence, page, pages, D, UNITS, BLOCK_D)


@triton.jit
def channel_kernel(
    source,
    scale,
    zero_point,
    highest,
    out,
    pages,
    groups,
    pages_per_group,
    D: tl.constexpr,
    N: tl.constexpr,
    UNITS: tl.constexpr,
    BITS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Packed codes with a scale and zero point a channel and group. ``highest`` uint8 ``[B * H, groups, D]`` gives
    channels codes of more than ``BITS`` bits, of which the low ones are stored."""
    page, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    y = _vectors(source, sequence, page, pages, D, N, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
    split = tl.reshape(y, [UNITS, N // UNITS, BLOCK_D])
    step = _of_units(scale, sequence, page, groups, pages_per_group, D, UNITS, BLOCK_D)
    start = _of_units(zero_point, sequence, page, groups, pages_per_group, D, UNITS, BLOCK_D)
    if highest is not None:
        top = _of_units(highest, sequence, page, groups, pages_per_group, D, UNITS, BLOCK_D).to(tl.float32)
        codes = _codes(split, step, start, top) & (2**BITS - 1)
    else:
        codes = _codes(split, step, start, 2.0**BITS - 1.0)
    packed = _pack(tl.reshape(codes, [N, BLOCK_D]), BITS, N, BLOCK_D)
    _store_page(out, packed, sequence, page, pages, D, 0, 0, D, N * BITS // 8, BLOCK_D, TRANSPOSED)


@triton.jit
def high_digits_kernel(
    source,
    scale,
    zero_point,
    boosted,
    out,
    units,
    groups,
    pages_per_group,
    channels,
    D: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """High digits of the four-bit codes of channels ``boosted`` int64 ``[B * H, groups, channels]``, a unit of tokens a
    program, in ``out`` ``[B * H, units, UNIT / 4, channels]``."""
    unit, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    group = sequence * groups + unit // pages_per_group
    k = tl.arange(0, BLOCK)
    inside = k < channels
    channel = tl.load(boosted + group * channels + k, mask=inside, other=0)
    token = tl.minimum(unit * UNIT + tl.arange(0, UNIT), source.tokens - 1).to(tl.int64)
    rows = source.x + sequence // source.heads * source.x_batch + sequence % source.heads * source.x_head
    rows += token * source.x_token
    y = tl.load(rows[:, None] + channel[None, :] * source.x_channel, mask=inside[None, :], other=0.0).to(tl.float32)
    step = tl.load(scale + group * D + channel, mask=inside, other=0)[None, :]
    start = tl.load(zero_point + group * D + channel, mask=inside, other=0)[None, :]
    packed = _pack(_codes(y, step, start, 15.0) >> 2, 2, UNIT, BLOCK)
    _store_page(out, packed, sequence, unit, units, channels, 0, 0, channels, UNIT // 4, BLOCK, False)


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
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Minimum and maximum of every token and group of ``GROUP`` channels, in ``[B * H, P, GROUPS, N]``."""
    page, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    BLOCK: tl.constexpr = BLOCK_D // GROUP
    y = _vectors(source, sequence, page, pages, D, N, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
    outside = (tl.arange(0, BLOCK_D) >= D)[None, :]
    smallest = tl.min(tl.reshape(tl.where(outside, float("inf"), y), [N, BLOCK, GROUP]), 2)
    largest = tl.max(tl.reshape(tl.where(outside, float("-inf"), y), [N, BLOCK, GROUP]), 2)
    group = tl.arange(0, BLOCK)
    place = ((sequence * pages + page) * GROUPS + group)[None, :] * N + tl.arange(0, N)[:, None]
    tl.store(low + place, smallest, mask=(group < GROUPS)[None, :])
    tl.store(high + place, largest, mask=(group < GROUPS)[None, :])


@triton.jit
def token_kernel(
    source,
    scale,
    zero_point,
    out,
    pages,
    D: tl.constexpr,
    N: tl.constexpr,
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
    page, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    BLOCK: tl.constexpr = BLOCK_D // GROUP
    y = _vectors(source, sequence, page, pages, D, N, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
    group = tl.arange(0, BLOCK)
    place = ((sequence * pages + page) * GROUPS + group)[None, :] * N + tl.arange(0, N)[:, None]
    step = tl.load(scale + place, mask=(group < GROUPS)[None, :], other=0)[:, :, None]
    start = tl.load(zero_point + place, mask=(group < GROUPS)[None, :], other=0)[:, :, None]
    codes = _codes(tl.reshape(y, [N, BLOCK, GROUP]), step, start, 2.0**BITS - 1.0)
    packed = _pack(tl.reshape(codes, [N, BLOCK_D]), BITS, N, BLOCK_D)
    _store_page(out, packed, sequence, page, pages, D, 0, 0, D, N * BITS // 8, BLOCK_D, TRANSPOSED)


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
    PLACES: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Packed two-bit digits (place ``p`` of the first ``count<p>`` channels, one place behind the other) and one-bit
    codes (channels ``count0`` to ``coded``)."""
    page, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = sequence // source.heads, sequence % source.heads
    channel = tl.arange(0, BLOCK_D)
    y = _vectors(source, sequence, page, pages, D, N, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
    step = tl.load(scale + batch * scale_batch + head * scale_head + channel, mask=channel < coded, other=0)
    start = tl.load(zero_point + batch * zero_batch + head * zero_head + channel, mask=channel < coded, other=0)
    highest = tl.load(levels + channel, mask=channel < coded, other=0)
    codes = _codes(y, step[None, :], start[None, :], highest[None, :])
    if PLACES > 0:
        packed = _pack(codes & 3, 2, N, BLOCK_D)
        _store_page(digits, packed, sequence, page, pages, digits_width, 0, 0, count0, N // 4, BLOCK_D, TRANSPOSED)
    if PLACES > 1:
        packed = _pack((codes >> 2) & 3, 2, N, BLOCK_D)
        _store_page(
            digits, packed, sequence, page, pages, digits_width, count0, 0, count1, N // 4, BLOCK_D, TRANSPOSED
        )
    if PLACES > 2:
        packed = _pack((codes >> 4) & 3, 2, N, BLOCK_D)
        first = count0 + count1
        _store_page(digits, packed, sequence, page, pages, digits_width, first, 0, count2, N // 4, BLOCK_D, TRANSPOSED)
    if PLACES > 3:
        packed = _pack((codes >> 6) & 3, 2, N, BLOCK_D)
        first = count0 + count1 + count2
        _store_page(digits, packed, sequence, page, pages, digits_width, first, 0, count3, N // 4, BLOCK_D, TRANSPOSED)
    if bits is not None:
        packed = _pack(codes & 1, 1, N, BLOCK_D)
        _store_page(bits, packed, sequence, page, pages, bits_width, 0, count0, coded, N // 8, BLOCK_D, TRANSPOSED)
