"""Statistics of the vectors that are coded, and the levels that follow from them, in Triton.

A program takes ``UNITS`` units of ``CHUNKS * ROWS`` slots. Statistics run over rows of the same thread and are reduced
once, at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvmm.kernels.quantize.triton import nearest_codes, range_parameters
from kvmm.kernels.quantize.triton_source import load_matrix, load_vectors, sampled, token_weight


@triton.jit(do_not_specialize=["tokens", "units"])
def range_kernel(
    source,
    tokens,
    valid,
    low,
    high,
    magnitude,
    scale,
    zero_point,
    limit,
    highest,
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
    """Minimum and maximum, the sum of magnitudes over tokens, and the scale and zero point of that range and codes of 0
    to ``highest``, of every channel and unit: ``[B * H, units, D]``, those that are not None."""
    sequence = tl.program_id(1).to(tl.int64)
    weights = load_matrix(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    channel = tl.arange(0, BLOCK_D)
    for u in range(UNITS):
        unit = tl.program_id(0) * UNITS + u
        smallest = tl.full([ROWS, BLOCK_D], float("inf"), tl.float32)
        largest = tl.full([ROWS, BLOCK_D], float("-inf"), tl.float32)
        total = tl.zeros([ROWS, BLOCK_D], tl.float32)
        for c in range(CHUNKS):
            slot = (unit * CHUNKS + c) * ROWS + tl.arange(0, ROWS)
            y = load_vectors(source, tokens, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
            if low is not None or scale is not None:
                smallest = tl.minimum(smallest, y)
                largest = tl.maximum(largest, y)
            if magnitude is not None:
                total += tl.abs(y) * token_weight(source, tokens, valid, None, sequence, slot)[:, None]
        at = (sequence * units + unit) * D + channel
        inside = (channel < D) & (unit < units)
        if low is not None:
            tl.store(low + at, tl.min(smallest, 0), mask=inside)
            tl.store(high + at, tl.max(largest, 0), mask=inside)
        if scale is not None:
            step, start = range_parameters(tl.min(smallest, 0), tl.max(largest, 0), limit, highest, scale, zero_point)
            tl.store(scale + at, step, mask=inside)
            tl.store(zero_point + at, start, mask=inside)
        if magnitude is not None:
            tl.store(magnitude + at, tl.sum(total, 0), mask=inside)


@triton.jit(do_not_specialize=["tokens", "units", "every"])
def moments_kernel(
    source,
    tokens,
    valid,
    mask,
    count,
    mean,
    squares,
    units,
    every,
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
    ``valid`` and ``mask`` as in :func:`token_weight`. Units are of every ``every``-th page."""
    sequence = tl.program_id(1).to(tl.int64)
    weights = load_matrix(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    channel = tl.arange(0, BLOCK_D)
    for u in range(UNITS):
        unit = tl.program_id(0) * UNITS + u
        # sums about a point among the vectors: keys may have an offset far larger than what varies
        slot = sampled(unit * CHUNKS * ROWS + tl.arange(0, ROWS), every, N)
        weight = token_weight(source, tokens, valid, mask, sequence, slot)
        y = load_vectors(source, tokens, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
        point = tl.sum(y * weight[:, None], 0) / tl.maximum(tl.sum(weight, 0), 1.0)
        counted = tl.zeros([ROWS], tl.float32)
        first = tl.zeros([ROWS, BLOCK_D], tl.float32)
        second = tl.zeros([ROWS, BLOCK_D], tl.float32)
        for c in range(CHUNKS):
            slot = sampled((unit * CHUNKS + c) * ROWS + tl.arange(0, ROWS), every, N)
            weight = token_weight(source, tokens, valid, mask, sequence, slot)
            y = load_vectors(source, tokens, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
            apart = (y - point[None, :]) * weight[:, None]
            counted += weight
            first += apart
            second += apart * apart
        total = tl.sum(counted, 0)
        shift = tl.sum(first, 0) / tl.maximum(total, 1.0)
        at = (sequence * units + unit) * D + channel
        inside = (channel < D) & (unit < units)
        tl.store(count + sequence * units + unit, total, mask=unit < units)
        tl.store(mean + at, point + shift, mask=inside)
        if squares is not None:
            tl.store(squares + at, tl.maximum(tl.sum(second, 0) - shift * shift * total, 0.0), mask=inside)


@triton.jit(do_not_specialize=["tokens", "units", "groups", "every"])
def refit_kernel(
    source,
    tokens,
    valid,
    scale,
    zero_point,
    mean,
    levels,
    sums,
    units,
    groups,
    group_slots,
    every,
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
    the mean, of every channel and unit, in ``sums`` ``[3, B * H, units, D]``. Levels ``[B * H, groups, D]``; units as
    in :func:`moments_kernel`."""
    sequence = tl.program_id(1).to(tl.int64)
    weights = load_matrix(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
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
            slot = sampled((unit * CHUNKS + c) * ROWS + tl.arange(0, ROWS), every, N)
            y = load_vectors(source, tokens, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
            codes = nearest_codes(y, step, start, highest)
            weighted = codes * token_weight(source, tokens, valid, None, sequence, slot)[:, None]
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
def _unit_block(count, sequence, begin, last, units, channel, inside, D: tl.constexpr, BLOCK: tl.constexpr):
    """Units ``begin`` to ``last``, ``BLOCK`` at most: their tokens, float32 ``[BLOCK]``, 0 for those there are not.

    And ``[BLOCK, BLOCK_D]``: where their channels ``channel``, of which ``inside`` exist, are in ``[B * H, units, D]``,
    and which of these to read.
    """
    unit = begin + tl.arange(0, BLOCK)
    there = unit < last
    number = tl.load(count + sequence * units + unit, mask=there, other=0.0)
    at = ((sequence * units + unit) * D)[:, None] + channel[None, :]
    return number, at, there[:, None] & inside[None, :]


@triton.jit
def _squared_distances(
    count, means, squares, centre, sequence, first, last, units, channel, inside,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Sum over the tokens of units ``first`` to ``last`` of the squared distance to ``centre``, float32 ``[BLOCK_D]``.

    A unit adds its squares about its own mean, and that mean's distance for each of its tokens.
    """
    total = tl.zeros([BLOCK, BLOCK_D], tl.float32)
    for begin in range(first, last, BLOCK):
        number, at, mask = _unit_block(count, sequence, begin, last, units, channel, inside, D, BLOCK)
        apart = tl.load(means + at, mask=mask, other=0.0) - centre[None, :]
        total += tl.load(squares + at, mask=mask, other=0.0) + number[:, None] * apart * apart
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["coded", "units", "per_group"])
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
    """Reduce statistics of the ``per_group`` units of a group into its mean and levels, ``[B * H, G, D]``.

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
        number, at, mask = _unit_block(count, sequence, begin, last, units, channel, inside, D, BLOCK)
        tokens += number
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
        code_variance = tl.sum(second, 0) / total - code * code
        # a channel whose tokens share one code has nothing to fit
        step = tl.where(code_variance > 1e-6, tl.sum(third, 0) / total / tl.maximum(code_variance, 1e-12), step)
        start = centre - step * code
    else:
        centre = tl.sum(first, 0) / total
        variance = _squared_distances(
            count, means, squares, centre, sequence, group * per_group, last, units, channel, inside, D, BLOCK, BLOCK_D
        ) / total  # fmt: skip
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
        offset = (sequence * tl.num_programs(0) + group) * coded + channel
        tl.store(stored_scale + offset, step.to(stored_scale.dtype.element_ty), mask=channel < coded)
        tl.store(stored_zero + at, start.to(stored_zero.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def token_excess_kernel(
    source,
    tokens,
    mean,
    limit,
    out,
    D: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """Of every slot, the squares by which channels are further than ``limit`` from ``mean``, both ``[B * H, D]``, added
    up: ``[B * H, P, N]``."""
    sequence = tl.program_id(1).to(tl.int64)
    weights = load_matrix(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    slot = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    y = load_vectors(source, tokens, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
    channel = tl.arange(0, BLOCK_D)
    centre = tl.load(mean + sequence * D + channel, mask=channel < D, other=0.0)
    reach = tl.load(limit + sequence * D + channel, mask=channel < D, other=float("inf"))
    beyond = tl.maximum(tl.abs(y - centre[None, :]) - reach[None, :], 0.0)
    tl.store(out + sequence * source.slots + slot, tl.sum(beyond * beyond, 1), mask=slot < source.slots)


@triton.jit(do_not_specialize=["tokens", "pages"])
def token_range_kernel(
    source,
    tokens,
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
    weights = load_matrix(source, sequence, D, BLOCK_D, PARTS, MATRIX_PARTS)
    BLOCK: tl.constexpr = BLOCK_D // GROUP
    slot = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    y = load_vectors(source, tokens, weights, sequence, slot, D, N, ROWS, BLOCK_D, BLOCK_K, PARTS, MATRIX_PARTS)
    outside = (tl.arange(0, BLOCK_D) >= D)[None, :]
    smallest = tl.min(tl.reshape(tl.where(outside, float("inf"), y), [ROWS, BLOCK, GROUP]), 2)
    largest = tl.max(tl.reshape(tl.where(outside, float("-inf"), y), [ROWS, BLOCK, GROUP]), 2)
    group = tl.arange(0, BLOCK)
    offset = ((sequence * pages + slot // N)[:, None] * GROUPS + group[None, :]) * N + (slot % N)[:, None]
    inside = (slot < source.slots)[:, None] & (group < GROUPS)[None, :]
    tl.store(low + offset, smallest, mask=inside)
    tl.store(high + offset, largest, mask=inside)
