"""Vectors of several heads side by side, rotated by one Hadamard matrix, in Triton.

The rotated channels of a group of heads are more than a program holds, so it takes some of them, ``CHANNELS``, whose
products run over the channels of all heads. The matrix has its rows in the order of the stored channels: sorting
channels costs nothing but the rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kvmm.kernels.hadamard.triton import OPERAND
from kvmm.kernels.quantize.triton import nearest_codes, range_parameters, store_rows
from kvmm.kernels.quantize.triton_source import token_weight


class JointSource(NamedTuple):
    """What is coded: ``scale * matrix x - offset`` of the ``g`` heads of a group side by side, ``W = g * D`` channels.

    ``x`` ``[B, H, tokens, D]`` with its strides; ``slots = P * N`` as of :class:`Source`; ``heads`` are the groups,
    ``H / g``; ``matrix`` bf16 ``[B or 1, H / g or 1, W, W]`` with strides of 0 where one serves all; ``offset`` float32
    ``[B, H / g, W]``; where ``keep`` uint8 ``[B, H, P, N]`` is 0, ``substitute`` float32 ``[B, H, P, W]`` stands for
    what the head adds to the rotated channels. None is left out.
    """

    x: Any
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
    offset: Any
    keep: Any
    substitute: Any


@triton.jit
def _load_joint_vectors(
    source,
    tokens,
    sequence,
    first,
    slot,
    D: tl.constexpr,
    N: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
):
    """The ``CHANNELS`` rotated channels from ``first`` on of the vectors in slots ``[ROWS]`` (the last one in place of
    those there are not) of group ``sequence``: float32 ``[ROWS, BLOCK_D]``."""
    W: tl.constexpr = HEADS * D
    CHUNKS: tl.constexpr = (D + BLOCK_K - 1) // BLOCK_K
    batch, group = sequence // source.heads, sequence % source.heads
    inside = tl.arange(0, BLOCK_D) < CHANNELS
    channel = first + tl.arange(0, BLOCK_D)
    slot = tl.minimum(slot, source.slots - 1)
    token = tl.minimum(slot, tokens - 1).to(tl.int64)
    rows = source.x + batch * source.x_batch + token * source.x_token
    matrix = source.matrix + batch * source.matrix_batch + group * source.matrix_head
    y = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for part in tl.static_range(PARTS):  # the lowest bits first, as in the rotation of one head
        for step in range(HEADS * CHUNKS):
            head = step // CHUNKS
            k = step % CHUNKS * BLOCK_K + tl.arange(0, BLOCK_K)
            there = (k < D)[None, :]
            if source.keep is not None:
                kept = tl.load(source.keep + (sequence * HEADS + head) * source.slots + slot) != 0
                there = there & kept[:, None]
            at = rows[:, None] + (group * HEADS + head) * source.x_head + k[None, :] * source.x_channel
            x = tl.load(at, mask=there, other=0.0)
            for _ in tl.static_range(PARTS - 1 - part):
                x = x.to(tl.float32) - x.to(tl.bfloat16).to(tl.float32)
            weights = tl.load(
                matrix + channel[None, :] * W + (head * D + k)[:, None],
                mask=inside[None, :] & (k < D)[:, None],
                other=0.0,
            )
            y = tl.dot(x.to(tl.bfloat16).to(OPERAND), weights.to(OPERAND), y)
    y *= source.scale
    if source.keep is not None:
        for head in range(HEADS):
            sequence_head = sequence * HEADS + head
            dropped = tl.load(source.keep + sequence_head * source.slots + slot) == 0
            at = source.substitute + ((sequence_head * source.slots + slot) // N)[:, None] * W + channel[None, :]
            y += tl.load(at, mask=dropped[:, None] & inside[None, :], other=0.0)
    if source.offset is not None:
        y -= tl.load(source.offset + sequence * W + channel, mask=inside, other=0.0)[None, :]
    return y


@triton.jit(do_not_specialize=["tokens", "runs"])
def joint_sums_kernel(
    source,
    tokens,
    valid,
    total,
    squares,
    runs,
    D: tl.constexpr,
    N: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Sums and sums of squares ``[B * H / g, runs, W]`` of every rotated channel over runs of ``CHUNKS * ROWS`` slots;
    ``valid`` as in :func:`token_weight`."""
    W: tl.constexpr = HEADS * D
    BLOCKS: tl.constexpr = W // CHANNELS
    sequence = tl.program_id(1).to(tl.int64)
    run, first = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS * CHANNELS
    sums = tl.zeros([ROWS, BLOCK_D], tl.float32)
    second = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for c in range(CHUNKS):
        slot = (run * CHUNKS + c) * ROWS + tl.arange(0, ROWS)
        y = _load_joint_vectors(
            source, tokens, sequence, first, slot, D, N, HEADS, CHANNELS, ROWS, BLOCK_D, BLOCK_K, PARTS
        )  # fmt: skip
        weighted = y * token_weight(source, tokens, valid, None, sequence, slot)[:, None]
        sums += weighted
        second += weighted * y
    at = (sequence * runs + run) * W + first + tl.arange(0, BLOCK_D)
    inside = tl.arange(0, BLOCK_D) < CHANNELS
    tl.store(total + at, tl.sum(sums, 0), mask=inside)
    tl.store(squares + at, tl.sum(second, 0), mask=inside)


@triton.jit(do_not_specialize=["tokens", "pages"])
def joint_token_kernel(
    source,
    tokens,
    scale,
    zero_point,
    out,
    pages,
    limit,
    D: tl.constexpr,
    N: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAGES: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    INTEGER: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Packed codes, and the scale and zero point ``[B * H / g, P, W / CHANNELS * GROUPS, N]`` of the range of every
    token and group of channels, of which a program has ``GROUPS``; see :func:`token_kernel`."""
    R: tl.constexpr = N * BITS // 8
    ROWS: tl.constexpr = PAGES * R
    W: tl.constexpr = HEADS * D
    BLOCKS: tl.constexpr = W // CHANNELS
    BLOCK: tl.constexpr = BLOCK_D // GROUP
    sequence = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0) % BLOCKS
    row = tl.arange(0, ROWS)
    page = tl.program_id(0) // BLOCKS * PAGES + row // R
    group = tl.arange(0, BLOCK)
    inside = (page < pages)[:, None] & (group < GROUPS)[None, :]
    outside = (tl.arange(0, BLOCK_D) >= CHANNELS)[None, :]
    packed = tl.zeros([ROWS, BLOCK_D], tl.int32)
    for plane in range(8 // BITS):
        column = plane * R + row % R
        y = _load_joint_vectors(
            source, tokens, sequence, block * CHANNELS, page * N + column,
            D, N, HEADS, CHANNELS, ROWS, BLOCK_D, BLOCK_K, PARTS,
        )  # fmt: skip
        smallest = tl.min(tl.reshape(tl.where(outside, float("inf"), y), [ROWS, BLOCK, GROUP]), 2)
        largest = tl.max(tl.reshape(tl.where(outside, float("-inf"), y), [ROWS, BLOCK, GROUP]), 2)
        step, start = range_parameters(smallest, largest, limit, 2.0**BITS - 1.0, scale, zero_point, INTEGER)
        stored = (sequence * pages + page)[:, None] * (BLOCKS * GROUPS) + block * GROUPS + group[None, :]
        tl.store(scale + stored * N + column[:, None], step, mask=inside)
        tl.store(zero_point + stored * N + column[:, None], start, mask=inside)
        codes = nearest_codes(
            tl.reshape(y, [ROWS, BLOCK, GROUP]), step[:, :, None], start[:, :, None], 2.0**BITS - 1.0
        ).to(tl.int32)
        packed |= tl.reshape(codes, [ROWS, BLOCK_D]) << (plane * BITS)
    store_rows(
        out, packed, sequence, page, row % R, pages, W, block * CHANNELS, 0, CHANNELS, R, BLOCK_D, TRANSPOSED
    )  # fmt: skip
