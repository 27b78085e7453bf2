"""Decode attention in Triton, before the pages: queries in the transform and the lanes of a segment's keys."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def split_bf16x2(x):
    """Two-term bf16 split (bf16x2): ``x ~ high + low`` to a relative error of 2 ** -17."""
    high = x.to(tl.bfloat16)
    return high, (x - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit(do_not_specialize=["H", "batch", "rows", "num_kv_heads", "head_rows"])
def transform_kernel(
    Q, MATRIX, ORDER, OUT, H, batch, rows, width, matrix_head, num_kv_heads, head_rows, order_b, order_h,
    D: tl.constexpr, DP: tl.constexpr, RP: tl.constexpr, WC: tl.constexpr, BF16: tl.constexpr, LAUNCH_DEPENDENTS: tl.constexpr,
):  # fmt: skip
    """``OUT [B * H, rows, width]``: queries ``[B * H, rows, D]`` times ``MATRIX [H or 1, D, width]``, in float32.

    ``ORDER`` int16 ``[B, num_kv_heads, D]``, or None, has the query's channel of each row of the matrix; a head has
    ``head_rows`` rows, whatever ``H`` and ``rows`` say of the product.

    With ``BF16`` queries are bfloat16 and the matrix is a two-term bf16 split, 16 bits of mantissa. Float16 queries are
    exact in TF32, so only the matrix is split, into two TF32 terms. Each program computes ``WC`` columns and ``RP`` rows
    of one head, of any sequences. With ``LAUNCH_DEPENDENTS`` the dependent kernel starts at once and waits for the output
    of this one. All earlier kernels have ended by then, so it reads anything else without waiting: this kernel itself
    must not be launched with PDL.
    """
    if LAUNCH_DEPENDENTS:
        tl.extra.cuda.gdc_launch_dependents()
    h = tl.program_id(0).to(tl.int64)
    k, j, r = tl.arange(0, DP), tl.program_id(1) * WC + tl.arange(0, WC), tl.program_id(2) * RP + tl.arange(0, RP)
    live = r < batch * rows
    at = (r // rows * H + h) * rows + r % rows
    channel = k[None, :]
    if ORDER is not None:
        head = at // head_rows
        of_head = head // num_kv_heads * order_b + head % num_kv_heads * order_h
        channel = tl.load(ORDER + of_head[:, None] + channel, mask=live[:, None] & (k < D)[None, :], other=0).to(
            tl.int32
        )
    q = tl.load(Q + at[:, None] * D + channel, mask=live[:, None] & (k < D)[None, :], other=0.0)
    inside = (k < D)[:, None] & (j < width)[None, :]
    m = tl.load(MATRIX + h * matrix_head + k[:, None] * width + j[None, :], mask=inside, other=0.0)
    if BF16:
        high, low = split_bf16x2(m)
        z = tl.dot(q, high, acc=tl.dot(q, low))
    elif q.dtype != tl.float32:
        coarse = (m.to(tl.uint32, bitcast=True) & 0xFFFFE000).to(tl.float32, bitcast=True)
        z = tl.dot(q.to(tl.float32), m - coarse, input_precision="tf32")
        z = tl.dot(q.to(tl.float32), coarse, acc=z, input_precision="tf32")
    else:
        z = tl.dot(q, m, input_precision="tf32x3")
    tl.store(OUT + at[:, None] * width + j[None, :], z, mask=live[:, None] & (j < width)[None, :])


@triton.jit
def _load_levels(
    STORED,
    FALLBACK,
    bh,
    h,
    g,
    c,
    inside,
    is_stored,
    is_fallback,
    stride,
    fallback_head,
    width,
    HAS_FALLBACK: tl.constexpr,
):
    """Scales or zero points of groups ``g`` ``[GROUPS]`` and channels ``c`` ``[GROUPS or 1, channels]``, as float32.

    Groups where ``is_stored`` read ``STORED`` ``[B * H, groups, width]`` with ``stride`` per head, groups where
    ``is_fallback`` read ``FALLBACK`` ``[H or 1, width]``; others get 0.
    """
    levels = tl.load(
        STORED + bh * stride + g[:, None] * width + c, mask=is_stored[:, None] & inside, other=0.0
    ).to(tl.float32)  # fmt: skip
    if HAS_FALLBACK:
        levels += tl.load(
            FALLBACK + h * fallback_head * width + c + 0 * g[:, None], mask=is_fallback[:, None] & inside, other=0.0
        ).to(tl.float32)  # fmt: skip
    return levels


@triton.jit
def _store_int8(OUT, WEIGHT, x, row, row_mask, j, J):
    """Store float32 ``x`` ``[GROUPS, RP, JP]`` as a high and a low int8 row, and the weight of a step of the low one.

    ``row`` ``[GROUPS, RP]`` are the rows of ``OUT`` ``[..., 2, J]`` and ``WEIGHT``, of which those in ``row_mask`` exist.
    """
    step = tl.maximum(tl.max(tl.abs(x), 2), 1e-30) / 127.0
    x = x / step[:, :, None]
    high = tl.floor(x + 0.5)
    low = tl.floor((x - high) * 254.0 + 0.5)
    to = OUT + row[:, :, None] * 2 * J + j[None, None, :]
    filled = row_mask[:, :, None] & (j < J)[None, None, :]
    tl.store(to, high.to(tl.int8), mask=filled)
    tl.store(to + J, low.to(tl.int8), mask=filled)
    tl.store(WEIGHT + row, step / 254.0, mask=row_mask)


@triton.jit(do_not_specialize=["H", "rows", "groups", "stored_groups", "fallback_head", "J1", "J2"])
def expand_kernel(
    Z, LANE_CHANNEL, GROUP_CHANNEL, PLANE_WEIGHT, SCALE, ZERO, OFFSET, FALLBACK_SCALE, FALLBACK_ZERO,
    OUT, WEIGHT, BIAS, SUM,
    H, rows, groups, stored_groups, scaling, width, scale_stride, zero_stride, group_channel_stride,
    offset_head, fallback_head, J, J1, J2, C, DZ,
    DP: tl.constexpr, JP: tl.constexpr, RP: tl.constexpr, GROUPS: tl.constexpr, CHUNKS: tl.constexpr,
    HAS_LANE_CHANNEL: tl.constexpr, HAS_GROUP_CHANNEL: tl.constexpr, HAS_PLANE_WEIGHT: tl.constexpr, HAS_SCALE: tl.constexpr,
    HAS_ZERO: tl.constexpr, HAS_OFFSET: tl.constexpr, HAS_FALLBACK: tl.constexpr, QUANTISE: tl.constexpr,
    SUMS: tl.constexpr,
):  # fmt: skip
    """Queries in the lanes of one segment's keys.

    ``Z`` ``[B * H, rows, width]`` holds the transformed queries. The query of row ``r`` and group ``g`` in lane ``j`` of
    channel ``c`` is ``z[c] * plane_weight[j] * scale[g, c]``. With ``QUANTISE`` it is written as a high and a low int8 row
    to ``OUT`` ``[B * H, G, rows, 2, J]``, the step of the low row to ``WEIGHT`` ``[B * H, G, rows]``; otherwise without
    the scale to ``OUT`` ``[B * H, rows, J]`` and ``WEIGHT`` ``[B * H, rows]``. ``BIAS`` ``[B * H, G, rows]`` is
    ``z . (zero_g + offset)`` over all channels, ``SUM`` ``[B * H, rows, CHUNKS]`` the sum of ``z`` per group of channels.
    Group ``stored_groups`` has the fallback levels.
    """
    bh, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    r, j, dz = tl.program_id(2) * RP + tl.arange(0, RP), tl.arange(0, JP), tl.arange(0, DP)
    h = bh % H
    live = r < rows
    at = Z + (bh * rows + r[:, None]) * width
    channel = j
    if HAS_LANE_CHANNEL:
        channel = tl.load(LANE_CHANNEL + j, mask=j < J, other=0)
    inside = live[:, None] & ((j < J) & (channel < width))[None, :]
    z = tl.load(at + channel[None, :], mask=inside, other=0.0).to(tl.float32) * scaling
    if HAS_ZERO:
        inside = live[:, None] & (dz < DZ)[None, :]
        zz = tl.load(at + dz[None, :], mask=inside, other=0.0).to(tl.float32) * scaling
    if SUMS:
        for c in tl.static_range(CHUNKS):
            chunk = (j >= c * (J // CHUNKS)) & (j < (c + 1) * (J // CHUNKS))
            tl.store(SUM + (bh * rows + r) * CHUNKS + c, tl.sum(tl.where(chunk[None, :], z, 0.0), 1), mask=live)
    if HAS_PLANE_WEIGHT:
        z *= tl.load(PLANE_WEIGHT + j, mask=j < J, other=0.0)[None, :]
    # from here on GROUPS groups at once
    g = block * GROUPS + tl.arange(0, GROUPS)
    is_stored = (g < groups) & (g != stored_groups)
    is_fallback = (g < groups) & (g == stored_groups)
    row = (bh * groups + g[:, None]) * rows + r[None, :]
    row_mask = (g < groups)[:, None] & live[None, :]
    x = tl.zeros((GROUPS, RP, JP), tl.float32) + z[None, :, :]
    group_channel = channel[None, :]
    if HAS_GROUP_CHANNEL:
        second_plane = tl.load(
            GROUP_CHANNEL + bh * group_channel_stride + g[:, None] * J2 + (j - J1)[None, :],
            mask=(g < groups)[:, None] & ((j >= J1) & (j < J1 + J2))[None, :], other=0,
        ).to(tl.int32)  # fmt: skip
        group_channel = tl.where((j < J1)[None, :], channel[None, :], second_plane)
        mask = row_mask[:, :, None] & ((j < J1 + J2)[None, :] & (group_channel < width))[:, None, :]
        x = tl.load((at[None, :, :] + group_channel[:, None, :]), mask=mask, other=0.0).to(tl.float32) * scaling
        if HAS_PLANE_WEIGHT:
            x *= tl.load(PLANE_WEIGHT + j, mask=j < J, other=0.0)[None, None, :]
    if HAS_SCALE:
        scale = _load_levels(
            SCALE, FALLBACK_SCALE, bh, h, g, group_channel, (j < J)[None, :] & (group_channel < C), is_stored, is_fallback, scale_stride,
            fallback_head, C, HAS_FALLBACK,
        )  # fmt: skip
        x *= scale[:, None, :]
    if HAS_ZERO:
        zero = _load_levels(
            ZERO, FALLBACK_ZERO, bh, h, g, dz[None, :], (dz < DZ)[None, :], is_stored, is_fallback, zero_stride,
            fallback_head, DZ, HAS_FALLBACK,
        )  # fmt: skip
        if HAS_OFFSET:
            zero += tl.load(OFFSET + h * offset_head + dz, mask=dz < DZ, other=0.0)[None, :]
        tl.store(BIAS + row, tl.sum(zz[None, :, :] * zero[:, None, :], 2), mask=row_mask)
    if QUANTISE:
        _store_int8(OUT, WEIGHT, x, row, row_mask, j, J)
    elif block == 0:
        first = tl.max(tl.abs(z), 1)
        step = tl.maximum(first, 1e-30)
        to = OUT + (bh * rows + r[:, None]) * J + j[None, :]
        tl.store(to, (z / step[:, None]).to(OUT.dtype.element_ty), mask=live[:, None] & (j < J)[None, :])
        tl.store(WEIGHT + bh * rows + r, step, mask=live)
