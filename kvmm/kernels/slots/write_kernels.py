"""Slots in Triton, tokens to slots and back."""

from __future__ import annotations

import triton
import triton.language as tl

from kvmm.kernels.slots.format import EPSILON
from kvmm.kernels.slots.plane_kernels import load_norms, products

_EPSILON = tl.constexpr(EPSILON)
_ROUND = tl.constexpr(1.5 * 2.0**23)  # added and subtracted: rounds to the nearest integer, ties to even


@triton.jit
def _codes(channels, zero, step, most):
    """Codes float32 ``[T, DP]`` of channels about zero, and what their squared errors add up to."""
    # "/" is up to two last bits off on a GPU, enough to move what lies halfway between two codes
    above = tl.div_rn(channels - zero[None, :], tl.broadcast_to(step[None, :], channels.shape))
    codes = tl.minimum(tl.maximum(above, -1.0), 256.0)
    codes = tl.minimum(tl.maximum((codes + _ROUND) - _ROUND, 0.0), most[None, :])
    left = (above - codes) * step[None, :]
    return codes, tl.sum(left * left, 1)


@triton.jit
def _write_bytes(rows, codes, is_short, pairs, start, single, live, K: tl.constexpr, B: tl.constexpr):
    """Write codes int32 ``[T, DP]`` to slots ``rows`` uint8: the lowest ``pairs`` bits of a channel from bit ``start`` on,
    its highest to bit ``single``, all int32 ``[DP]``."""
    PARTS: tl.constexpr = (K.code_bytes + B - 1) // B
    at = (codes & ((1 << pairs) - 1)[None, :]) << (start % 8)[None, :]
    # integers that float16 has
    low, high, top = (
        (at & 255).to(tl.float16),
        (at >> 8).to(tl.float16),
        (codes >> pairs[None, :]) << (single % 8)[None, :],
    )
    top = top.to(tl.float16)
    for part in tl.static_range(PARTS):
        j = part * B + tl.arange(0, B)
        found = tl.dot(low, ((start // 8)[:, None] == j[None, :]).to(tl.float16))
        found = tl.dot(high, ((start // 8 + 1)[:, None] == j[None, :]).to(tl.float16), found)
        found = tl.dot(top, ((single // 8)[:, None] == j[None, :]).to(tl.float16), found)
        flag = tl.where(j == K.flag // 8, 1 << K.flag % 8, 0)
        found = found.to(tl.int32) + is_short.to(tl.int32)[:, None] * flag[None, :]
        tl.store(
            rows[:, None] + K.start + j[None, :], found.to(tl.uint8), mask=live[:, None] & (j < K.code_bytes)[None, :]
        )


@triton.jit
def _encode(rows, x_at, x, live, FORWARD, LEVELS, BITS, h, K: tl.constexpr, B: tl.constexpr):
    """Write vectors ``x`` ``[T, DP]``, which begin at ``x_at`` ``[T]``, to slots ``rows``; the last arguments as of
    :func:`write_kernel`."""
    D: tl.constexpr = K.dim
    DP: tl.constexpr = K.padded_dim
    d, i = tl.arange(0, DP), tl.arange(0, 16)
    inside = d < D
    if K.norm:
        x = x.to(tl.float32)
        half = tl.maximum(tl.sqrt(tl.sum(x * x, 1)), _EPSILON).to(tl.float16)
        bits = half.to(tl.int16, bitcast=True).to(tl.int32)
        tl.store(rows + K.start + K.code_bytes, (bits & 255).to(tl.uint8), mask=live)
        tl.store(rows + K.start + K.code_bytes + 1, ((bits >> 8) & 255).to(tl.uint8), mask=live)
        norm = half.to(tl.float32)
    channels = tl.zeros(x.shape, tl.float32)
    for from_ in range(0, D, 16):
        row = from_ + i
        part = tl.load(x_at[:, None] + row[None, :], mask=live[:, None] & (row < D)[None, :], other=0.0).to(tl.float32)
        if K.norm:
            part = tl.div_rn(part, tl.broadcast_to(norm[:, None], part.shape))
        at = FORWARD + (h * D + row)[:, None] * D + d[None, :]
        forward = tl.load(at, mask=(row < D)[:, None] & inside[None, :], other=0.0)
        channels = tl.dot(part, forward, channels, input_precision="tf32x3")
    levels = LEVELS + h * 4 * D + d
    offset, zero = tl.load(levels, mask=inside, other=0.0), tl.load(levels + D, mask=inside, other=0.0)
    step, most = tl.load(levels + 2 * D, mask=inside, other=1.0), tl.load(levels + 3 * D, mask=inside, other=0.0)
    pairs, start = tl.load(BITS + d, mask=inside, other=0), tl.load(BITS + D + d, mask=inside, other=0)
    single = tl.load(BITS + 2 * D + d, mask=inside, other=0)
    codes, error = _codes(channels - offset[None, :], zero, step, most)
    short, short_error = _codes(channels, zero, step, most)
    is_short = short_error < error
    codes = tl.where(is_short[:, None], short, codes).to(tl.int32)
    _write_bytes(rows, codes, is_short, pairs, start, single, live, K, B)


@triton.jit
def _write_side(
    CACHE, EXACT, held, exact, place, x_at, live, FORWARD, LEVELS, BITS, h, K: tl.constexpr, STRIDE: tl.constexpr,
    EXACT_START: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    D: tl.constexpr = K.dim
    DP: tl.constexpr = K.padded_dim
    d = tl.arange(0, DP)
    inside = (d < D)[None, :]
    x = tl.load(x_at[:, None] + d[None, :], mask=live[:, None] & inside, other=0.0)
    first = live & (place == 0)
    tl.store(EXACT + (exact + EXACT_START)[:, None] + d[None, :], x, mask=first[:, None] & inside)
    _encode(CACHE + held + place * STRIDE, x_at, x, live, FORWARD, LEVELS, BITS, h, K, B)


@triton.jit(do_not_specialize=["tokens"])
def write_kernel(
    CACHE, EXACT, SLOTS, KEY, VALUE, K_FORWARD, K_LEVELS, K_BITS, V_FORWARD, V_LEVELS, V_BITS,
    tokens, block_bytes, head_bytes, block_exact, head_exact, key_t, key_h, value_t, value_h,
    K: tl.constexpr, V: tl.constexpr, STRIDE: tl.constexpr, EXACT_START: tl.constexpr, BLOCK: tl.constexpr,
    T: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Write keys (programs 0 of the last axis) or values (1) of ``T`` tokens of one head.

    ``CACHE`` uint8 and ``EXACT`` are the same memory; strides are in elements. ``FORWARD`` float32 ``[H, D, D]`` is
    multiplied from the right; ``LEVELS`` float32 ``[H, 4, D]`` has offset, zero point, step and largest code of every
    channel, ``BITS`` int32 ``[3, D]`` how many bits lie in pairs, the first of them, and where the highest of odd widths
    lies.
    """
    h = tl.program_id(1)
    t = tl.program_id(0) * T + tl.arange(0, T)
    slot = tl.load(SLOTS + t, mask=t < tokens, other=-1).to(tl.int64)
    live = slot >= 0
    slot = tl.where(live, slot, 0)
    block, place = slot // BLOCK, slot % BLOCK
    held, exact = block * block_bytes + h * head_bytes, block * block_exact + h * head_exact
    row = t.to(tl.int64)
    if tl.program_id(2) == 0:
        _write_side(
            CACHE, EXACT, held, exact, place, KEY + row * key_t + h * key_h, live, K_FORWARD, K_LEVELS, K_BITS, h, K, STRIDE,
            EXACT_START, B,
        )  # fmt: skip
    else:
        _write_side(
            CACHE, EXACT, held, exact, place, VALUE + row * value_t + h * value_h, live, V_FORWARD, V_LEVELS, V_BITS, h, V, STRIDE,
            EXACT_START + K.dim, B,
        )  # fmt: skip


@triton.jit
def _decode_side(
    OUT, out_t, out_h, EXACT, rows, exact, t, place, row, live, MATRIX, UNIT, CONSTANT, h,
    K: tl.constexpr, P: tl.constexpr, S: tl.constexpr, T: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    D: tl.constexpr = K.dim
    DP: tl.constexpr = K.padded_dim
    d = tl.arange(0, DP)
    inside = (d < D)[None, :]
    x = tl.zeros((T, DP), tl.float32)
    x = products(x, rows, MATRIX + h * K.columns * D, d, inside, D, P, ASM)
    x = products(x, rows, MATRIX + h * K.columns * D, d, inside, D, S, ASM)
    x = x * tl.load(UNIT + h) + tl.load(CONSTANT + h * D + d, mask=d < D, other=0.0)[None, :]
    if K.norm:
        x *= load_norms(rows, K.start + K.code_bytes, live)[:, None]
    is_first = live & (place == 0)
    known = tl.load(EXACT + exact + d[None, :] + 0 * t[:, None], mask=is_first[:, None] & inside, other=0.0)
    x = tl.where(is_first[:, None], known.to(tl.float32), x)
    out = OUT + row[:, None] * out_t + h * out_h + d[None, :]
    tl.store(out, x.to(OUT.dtype.element_ty), mask=live[:, None] & inside)


# a batch's prompts come after its decoding steps, so their rows of the table begin anywhere
@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=["TABLE"])
def decode_kernel(
    CACHE, EXACT, TABLE, LENGTHS, STARTS, KEY, VALUE, K_MATRIX, K_UNIT, K_CONSTANT, V_MATRIX, V_UNIT, V_CONSTANT,
    block_words, head_words, block_exact, head_exact, table_stride, key_t, key_h, value_t, value_h,
    K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, KS: tl.constexpr, VP: tl.constexpr, VS: tl.constexpr,
    STRIDE: tl.constexpr, EXACT_START: tl.constexpr, BLOCK: tl.constexpr, T: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Keys and values of ``T`` tokens of one head and sequence; matrices are :meth:`SideBits.vector_matrices`."""
    tile, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(LENGTHS + b)
    if tile * T < length:
        block = tl.load(TABLE + b.to(tl.int64) * table_stride + tile // (BLOCK // T)).to(tl.int64)
        t = tl.arange(0, T)
        place = tile % (BLOCK // T) * T + t
        rows = CACHE + block * block_words + h * head_words + place * STRIDE
        exact = block * block_exact + h * head_exact + EXACT_START
        live = tile * T + t < length
        row = tl.load(STARTS + b).to(tl.int64) + tile * T + t
        _decode_side(
            KEY, key_t, key_h, EXACT, rows, exact, t, place, row, live, K_MATRIX, K_UNIT, K_CONSTANT, h, K, KP, KS, T, ASM
        )  # fmt: skip
        _decode_side(
            VALUE, value_t, value_h, EXACT, rows, exact + K.dim, t, place, row, live, V_MATRIX, V_UNIT, V_CONSTANT, h, V, VP,
            VS, T, ASM,
        )  # fmt: skip
