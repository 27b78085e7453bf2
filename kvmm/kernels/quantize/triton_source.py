"""The vectors that are coded, a few rows of one head at a time, in Triton: loaded from the model's tensor and taken
through the chain of :class:`Source`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kvmm.kernels.hadamard.triton import OPERAND, product


class Source(NamedTuple):
    """What is coded: ``scale * matrix x / norm - offset``, or a substitute where ``keep`` is 0.

    ``x`` ``[B, H, tokens, D]`` with its strides; ``slots = P * N``, of which those behind ``tokens`` copy the last one
    (kernels get ``tokens`` beside this: numbers in here are specialised on, and that one is any);
    ``matrix`` bf16 parts ``[B or 1, H or 1, parts, D, D]``; ``norm`` ``[B, H or 1, P, N]``; ``offset`` float32
    ``[B or 1, H or 1, D]``; ``keep`` uint8 ``[B, H, P, N]``; ``page_substitute`` float32 ``[B, H, P, D]``, or one for
    all pages, ``substitute`` ``[B, H, 1, D]``. A stride of 0 serves all; None is left out.
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
    norm: Any
    norm_batch: int
    norm_head: int
    offset: Any
    offset_batch: int
    offset_head: int
    keep: Any
    page_substitute: Any
    substitute: Any


@triton.jit
def load_matrix(
    source, sequence, D: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr, MATRIX_PARTS: tl.constexpr
):
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
def load_vectors(
    source,
    tokens,
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
    token = tl.minimum(slot, tokens - 1).to(tl.int64)
    rows = source.x + batch * source.x_batch + head * source.x_head + token * source.x_token
    # what a row needs beside the product is on its way before the product starts
    factor = source.scale
    if source.norm is not None:
        norm = tl.load(source.norm + batch * source.norm_batch + head * source.norm_head + slot).to(tl.float32)
        factor = tl.div_rn(source.scale, norm)[:, None]
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
        index = sequence * source.slots + slot
        keep = tl.load(source.keep + index)[:, None] != 0
        if source.substitute is not None:  # a vector for the program, not one for each row
            other = tl.load(source.substitute + sequence * D + channel, mask=channel < D, other=0.0)[None, :]
        else:
            at = source.page_substitute + (index // N)[:, None] * D + channel[None, :]
            other = tl.load(at, mask=channel[None, :] < D, other=0.0)
        y = tl.where(keep, y, other)
    return y


@triton.jit
def sampled(slot, every, N: tl.constexpr):
    """The slots of a span that slots of its sample are: those of every ``every``-th page."""
    return (slot // N * every) * N + slot % N


@triton.jit
def token_weight(source, tokens, valid, mask, sequence, slot):
    """1 for slots that count, else 0: float32. Those that hold a token, where ``valid`` uint8 ``[B, tokens]`` or None
    does not say otherwise, or those of ``mask`` uint8 ``[B, H, P, N]``."""
    if mask is not None:
        inside = slot < source.slots
        return (tl.load(mask + sequence * source.slots + slot, mask=inside, other=0) != 0).to(tl.float32)
    weight = slot < tokens
    if valid is not None:
        at = valid + sequence // source.heads * tokens + slot
        weight = weight & (tl.load(at, mask=weight, other=0) != 0)
    return weight.to(tl.float32)
