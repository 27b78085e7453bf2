"""Decode attention in Triton, after the pages: merge the splits and apply the values' inverse transform."""

from __future__ import annotations

import triton
import triton.language as tl

from kvmm.kernels.attention.backends.triton.query_kernels import split_bf16x2


@triton.jit
def _inverse_transform(x, matrix, ROWS: tl.constexpr, HALF: tl.constexpr):
    """``x [ROWS, K]`` times ``matrix [K, DC]``; a single row does not use the tensor cores.

    The matrix keeps its two dimensions, so that it is used in the layout it was loaded in. With ``HALF`` (a 16-bit output
    on a GPU that multiplies bfloat16) both factors are two-term bf16 splits.
    """
    if ROWS >= 16 and HALF:
        high, low = split_bf16x2(x)
        matrix_high, matrix_low = split_bf16x2(matrix)
        return tl.dot(high, matrix_high, acc=tl.dot(high, matrix_low, acc=tl.dot(low, matrix_high)))
    elif ROWS >= 16:
        return tl.dot(x, matrix, input_precision="tf32x3")
    else:
        column = tl.reshape(x, (matrix.shape[0],))
        return tl.sum(column[:, None] * matrix, 0)[None, :]


@triton.jit
def _load_lane_sums(
    ACC, CHANNEL_LANES, CHANNEL_WEIGHTS, split, split_mask, e, VQ, D: tl.constexpr, GATHERED: tl.constexpr
):
    """The sums of splits ``[ROWS, SPLITS]`` in lanes ``e``, or in each of the ``GATHERED`` lanes of channels ``e``."""
    lane_sums = ()
    if GATHERED == 0:
        at = split[:, :, None] * VQ + e[None, None, :]
        lane_sums = lane_sums + (tl.load(ACC + at, mask=split_mask[:, :, None] & (e < VQ)[None, None, :], other=0.0),)
    else:
        for k in tl.static_range(GATHERED):
            column = tl.load(CHANNEL_LANES + k * D + e, mask=e < D, other=0)
            channel_weight = tl.load(CHANNEL_WEIGHTS + k * D + e, mask=e < D, other=0.0)
            at = split[:, :, None] * VQ + column[None, None, :]
            lane_sums = lane_sums + (
                tl.load(ACC + at, mask=split_mask[:, :, None] & (channel_weight != 0)[None, None, :], other=0.0),
            )
    return lane_sums


@triton.jit
def _add_lane_sums(sums, lane_sums, w, CHANNEL_WEIGHTS, e, D: tl.constexpr, GATHERED: tl.constexpr):
    """Add what :func:`_load_lane_sums` loaded, times the weights ``w [ROWS, SPLITS]`` of the splits, to ``sums``."""
    if GATHERED == 0:
        sums += tl.sum(lane_sums[0] * w[:, :, None], 1)
    else:
        for k in tl.static_range(GATHERED):
            channel_weight = tl.load(CHANNEL_WEIGHTS + k * D + e, mask=e < D, other=0.0)
            sums += tl.sum(lane_sums[k] * w[:, :, None], 1) * channel_weight[None, :]
    return sums


@triton.jit(do_not_specialize=["rows", "num_kv_splits"])
def calibration_kernel(
    LARGEST, SMALLEST, OUT, rows, num_kv_splits, low_shift, high_shift, SP: tl.constexpr, RB: tl.constexpr
):
    """Slope and shift that map each row's logits from ``[gamma, delta]`` to ``[gamma - low_shift, delta - high_shift]``.

    CalibQuant's calibration (section 3.3) in the units of the logits; rows with a slope of 0 or less stay as they are.
    ``LARGEST`` and ``SMALLEST`` are ``[B * H, num_kv_splits, rows]``, ``OUT`` is ``[B * H, rows, 2]``, slope and shift.
    """
    bh = tl.program_id(0)
    r, s = tl.program_id(1) * RB + tl.arange(0, RB), tl.arange(0, SP)
    split_mask = (s < num_kv_splits)[:, None] & (r < rows)[None, :]
    at = (bh * num_kv_splits + s[:, None]) * rows + r[None, :]
    delta = tl.max(tl.load(LARGEST + at, mask=split_mask, other=float("-inf")), 0)
    gamma = tl.min(tl.load(SMALLEST + at, mask=split_mask, other=float("inf")), 0)
    span = delta - gamma
    proper = (span > 0) & (span < float("inf"))  # else there is no token, or all logits are equal
    slope = 1 + (low_shift - high_shift) / tl.where(proper, span, 1.0)
    rises = proper & (slope > 0)
    to = OUT + (bh * rows + r) * 2
    tl.store(to, tl.where(rises, slope, 1.0), mask=r < rows)
    tl.store(to + 1, tl.where(rises, gamma * (1 - slope) - low_shift, 0.0), mask=r < rows)


@triton.jit
def _load_matrix(MATRIX, h, matrix_head, i, d, row_mask, D: tl.constexpr):
    """Rows ``i`` ``[I]`` and columns ``d`` ``[DC]`` of a head's matrix of ``D`` columns, 0 outside
    ``row_mask`` ``[I]``.
    """
    return tl.load(
        MATRIX + h * matrix_head + i[:, None] * D + d[None, :], mask=row_mask[:, None] & (d < D)[None, :], other=0.0
    )  # fmt: skip


@triton.jit
def _by_channel(TABLE, b, h, stride_b, stride_h, c, live, channels):
    """Scales or zero points of channels ``c`` ``[C]`` for rows of sequences ``b`` ``[RB]``: float32 ``[RB, C]``.

    ``TABLE`` is ``[B, H, channels]``; 0 for rows that are not ``live`` and channels that there are not.
    """
    return tl.load(
        TABLE + b[:, None] * stride_b + h * stride_h + c[None, :],
        mask=live[:, None] & (c < channels)[None, :], other=0.0,
    ).to(tl.float32)  # fmt: skip


@triton.jit
def _lane_factors(
    SCALE, LANE_CHANNEL, PLANE_WEIGHT, b, h, scale_b, scale_h, j, live, VQ, C, RB: tl.constexpr, JP: tl.constexpr
):  # fmt: skip
    """The step of lanes ``j`` ``[JP]``, float32 ``[RB, JP]``: plane weight times scale."""
    lane_mask, channel = j < VQ, j
    factor = tl.full((RB, JP), 1.0, tl.float32)
    if LANE_CHANNEL is not None:
        channel = tl.load(LANE_CHANNEL + j, mask=lane_mask, other=0)
        factor *= tl.load(PLANE_WEIGHT + j, mask=lane_mask, other=0.0)[None, :]
    scale = tl.load(
        SCALE + b[:, None] * scale_b + h * scale_h + channel[None, :],
        mask=live[:, None] & (lane_mask & (channel < C))[None, :], other=0.0,
    )  # fmt: skip
    return factor * scale.to(tl.float32)


@triton.jit
def _zero_points(
    ZERO_POINT, OFFSET, matrix, b, h, zero_b, zero_h, offset_head, c, live, DZ,
    RB: tl.constexpr, DC: tl.constexpr, CP: tl.constexpr, ZERO_KIND: tl.constexpr, HAS_OFFSET: tl.constexpr,
    HAS_MATRIX: tl.constexpr, BY_CHANNEL: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """The zero points that each row adds per unit of weight (``ZERO_KIND`` 1 or 3), float32.

    ``[RB, DC]`` after the inverse transform or, with ``BY_CHANNEL``, ``[RB or 1, CP]`` before it.
    """
    if ZERO_KIND == 1:
        point = _by_channel(ZERO_POINT, b, h, zero_b, zero_h, c, live, DZ)
        if HAS_OFFSET:
            point += tl.load(OFFSET + h * offset_head + c, mask=c < DZ, other=0.0)[None, :]
        if HAS_MATRIX and not BY_CHANNEL:
            point = _inverse_transform(point, matrix, RB, HALF)
    elif BY_CHANNEL:
        point = tl.full((RB, CP), 1.0, tl.float32)
    elif HAS_MATRIX:
        point = tl.sum(matrix, 0)[None, :] + tl.zeros((RB, DC), tl.float32)
    else:
        point = tl.full((RB, DC), 1.0, tl.float32)
    return point


@triton.jit
def _load_transform(
    SCALE, LANE_CHANNEL, PLANE_WEIGHT, ZERO_POINT, OFFSET, MATRIX, LANE_MATRIX, b, h, c, d, live,
    scale_b, scale_h, zero_b, zero_h, offset_head, matrix_head, lane_matrix_head, VQ, C, DZ,
    D: tl.constexpr, DC: tl.constexpr, CP: tl.constexpr, JP: tl.constexpr, RB: tl.constexpr, HAS_LANES: tl.constexpr,
    HAS_SCALE: tl.constexpr, ZERO_KIND: tl.constexpr, HAS_OFFSET: tl.constexpr, HAS_MATRIX: tl.constexpr,
    BY_CHANNEL: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Load the tables that map a segment's sums to output channels ``d`` ``[DC]``, float32, independent of the splits.

    Scales ``[RB, CP or JP]``, the matrix of lanes ``[JP, DC]``, that of channels ``[CP, DC]`` (in their type) and
    :func:`_zero_points`; 0 for those that the case does not use, and for scales without a matrix.
    """
    factor, lane_matrix, matrix, point = 0.0, 0.0, 0.0, 0.0
    if BY_CHANNEL:
        matrix = _load_matrix(MATRIX, h, matrix_head, c, d, c < D, D)
        if HAS_SCALE:
            factor = _by_channel(SCALE, b, h, scale_b, scale_h, c, live, C)
    elif HAS_MATRIX:
        if HAS_LANES:
            j = tl.arange(0, JP)
            lane_matrix_rows = D if LANE_CHANNEL is None else VQ  # without it lanes are channels
            if HAS_SCALE:
                factor = _lane_factors(
                    SCALE, LANE_CHANNEL, PLANE_WEIGHT, b, h, scale_b, scale_h, j, live, VQ, C, RB, JP
                )
            lane_matrix = _load_matrix(LANE_MATRIX, h, lane_matrix_head, j, d, (j < VQ) & (j < lane_matrix_rows), D)
        if ZERO_KIND > 0:
            matrix = _load_matrix(MATRIX, h, matrix_head, c, d, c < D, D)
    if ZERO_KIND == 1 or ZERO_KIND == 3:
        point = _zero_points(
            ZERO_POINT, OFFSET, matrix, b, h, zero_b, zero_h, offset_head, c, live, DZ, RB, DC, CP, ZERO_KIND,
            HAS_OFFSET, HAS_MATRIX, BY_CHANNEL, HALF,
        )  # fmt: skip
    return factor, lane_matrix, matrix, point


@triton.jit
def _rows_of_splits(bh, r, s, live, num_kv_splits, rows):
    """Offsets and mask ``[RB, S]`` of splits ``s`` and query rows ``r`` in ``[B * H, num_kv_splits, rows]``."""
    at = (bh[:, None] * num_kv_splits + s[None, :]) * rows + r[:, None]
    return at, live[:, None] & (s < num_kv_splits)[None, :]


@triton.jit
def _load_splits(M, L, at, split_mask):
    """Largest logits and sums of exponentials of splits ``at``, float32 ``[RB, S]``."""
    return tl.load(M + at, mask=split_mask, other=-1e30), tl.load(L + at, mask=split_mask, other=0.0)


@triton.jit
def _load_residual(
    RESIDUAL_M, RESIDUAL_L, RESIDUAL_ACC, bh, r, channel, live, num_kv_splits, rows, D: tl.constexpr, SP0: tl.constexpr
):
    """The splits of the residual tokens: largest logits and sums ``[RB, SP0]``, values ``[RB, SP0, DC]`` of channels
    ``channel`` ``[RB or 1, DC]``, float32."""
    D0: tl.constexpr = (D + 31) // 32 * 32  # columns of ``RESIDUAL_ACC``
    at, split_mask = _rows_of_splits(bh, r, tl.arange(0, SP0), live, num_kv_splits, rows)
    ms, ls = _load_splits(RESIDUAL_M, RESIDUAL_L, at, split_mask)
    acc = tl.load(
        RESIDUAL_ACC + at[:, :, None] * D0 + channel[:, None, :], mask=split_mask[:, :, None] & (channel < D)[:, None, :], other=0.0
    )  # fmt: skip
    return ms, ls, acc


@triton.jit
def _merge_splits(
    M, ACC, ZERO, CHANNEL_LANES, CHANNEL_WEIGHTS, lane_sums, ms, at, split_mask, m, bh, r, live, num_kv_splits, rows, c, e, VQ,
    D: tl.constexpr, DC: tl.constexpr, CP: tl.constexpr, JP: tl.constexpr, RB: tl.constexpr, VDZ: tl.constexpr,
    SP: tl.constexpr, SC: tl.constexpr, HAS_LANES: tl.constexpr, ZERO_KIND: tl.constexpr, GATHERED: tl.constexpr,
    HAS_MATRIX: tl.constexpr, BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """The sums of all splits, ``SC`` at a time, each times ``2 ** (its largest logit - m)``, all in float32.

    Returns the sums of lanes or channels ``e`` (``[RB, CP]``, ``[RB, JP]`` or ``[RB, DC]``), the weights of a single zero
    point ``[RB]``, and the part of the zero points in channels ``c`` (``[RB, CP]`` or ``[RB, DC]``); 0 for those that the
    case does not use. ``lane_sums``, ``ms``, ``at`` and ``split_mask`` cover all splits, which ``SC == SP`` takes at once.
    """
    sums = tl.zeros((RB, CP if BY_CHANNEL else JP if HAS_MATRIX else DC), tl.float32)
    weight = tl.zeros((RB,), tl.float32)
    zero = tl.zeros((RB, CP if HAS_MATRIX else DC), tl.float32)
    for s1 in range(0, num_kv_splits, SC):
        if SC == SP:  # all of them at once
            split, chunk_mask = at, split_mask
            w = tl.where(split_mask, tl.exp2(ms - m[:, None]), 0.0)
        else:
            split, chunk_mask = _rows_of_splits(bh, r, s1 + tl.arange(0, SC), live, num_kv_splits, rows)
            w = tl.where(chunk_mask, tl.exp2(tl.load(M + split, mask=chunk_mask, other=-1e30) - m[:, None]), 0.0)
        if HAS_LANES:
            loaded = (
                lane_sums
                if SC == SP
                else _load_lane_sums(ACC, CHANNEL_LANES, CHANNEL_WEIGHTS, split, chunk_mask, e, VQ, D, GATHERED)
            )
            sums = _add_lane_sums(sums, loaded, w, CHANNEL_WEIGHTS, e, D, GATHERED)
        if VDZ == 1:
            weight += tl.sum(tl.load(ZERO + split, mask=chunk_mask, other=0.0) * w, 1)
        elif ZERO_KIND == 2:
            points = tl.load(
                ZERO + split[:, :, None] * VDZ + c[None, None, :], mask=chunk_mask[:, :, None] & (c < VDZ)[None, None, :],
                other=0.0,
            )  # fmt: skip
            zero += tl.sum(points * w[:, :, None], 1)
    return sums, weight, zero


@triton.jit
def _add_segment(
    out, sums, weight, zero, factor, lane_matrix, matrix, point, RB: tl.constexpr, HAS_LANES: tl.constexpr,
    HAS_SCALE: tl.constexpr, ZERO_KIND: tl.constexpr, HAS_MATRIX: tl.constexpr, BY_CHANNEL: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """Add the sums of one segment (:func:`_merge_splits`), mapped to output channels by the tables of
    :func:`_load_transform`, to ``out`` ``[RB, DC]``. ``weight`` ``[RB]`` is that of ``point``."""
    if HAS_LANES and HAS_SCALE:
        sums *= factor
    if BY_CHANNEL:
        if ZERO_KIND == 2:
            sums += zero
        elif ZERO_KIND > 0:
            sums += point * weight[:, None]
        out += _inverse_transform(sums, matrix, RB, HALF)
    else:
        if HAS_LANES:
            out += _inverse_transform(sums, lane_matrix, RB, HALF) if HAS_MATRIX else sums
        if ZERO_KIND == 2:
            out += _inverse_transform(zero, matrix, RB, HALF) if HAS_MATRIX else zero
        elif ZERO_KIND > 0:
            out += point * weight[:, None]
    return out


@triton.jit
def _store_merged(
    OUT_M, OUT_L, OUT, m, total, out, bh, r, channel, rows, live, output_mask, D: tl.constexpr, LAST: tl.constexpr
):  # fmt: skip
    """Store the attention of rows ``r`` ``[RB]`` and channels ``channel`` ``[RB or 1, DC]``, or the state if more segments
    follow."""
    to = (bh * rows + r)[:, None] * D + channel
    if LAST:
        tl.store(OUT + to, (out / total[:, None]).to(OUT.dtype.element_ty), mask=output_mask)
    else:
        tl.store(OUT + to, out, mask=output_mask)
        if tl.program_id(2) == 0:
            tl.store(OUT_M + bh * rows + r, m, mask=live)
            tl.store(OUT_L + bh * rows + r, total, mask=live)


@triton.jit
def _channels(ORDER, begin, d, mask, D: tl.constexpr):
    """The model's channels of output columns ``d`` ``[DC]``: themselves ``[1, DC]``, or of every row ``[RB, DC]`` those that
    ``ORDER`` names from ``begin`` ``[RB]`` on; ``D`` outside ``mask`` ``[RB, DC]``.
    """
    channel = d[None, :]
    if ORDER is not None:
        channel = tl.load(ORDER + begin[:, None] + channel, mask=mask, other=D).to(tl.int32)
    return channel


@triton.jit(do_not_specialize=["H", "batch", "rows", "num_kv_splits", "num_residual_splits"])
def reduce_kernel(
    M, L, ACC, ZERO, SCALE, LANE_CHANNEL, PLANE_WEIGHT, CHANNEL_LANES, CHANNEL_WEIGHTS, ZERO_POINT, OFFSET, MATRIX, LANE_MATRIX, ORDER, RESIDUAL_M, RESIDUAL_L, RESIDUAL_ACC,
    STATE_M, STATE_L, STATE, OUT_M, OUT_L, OUT,
    H, batch, rows, num_kv_splits, num_residual_splits, scale_b, scale_h, zero_b, zero_h, offset_head, matrix_head, lane_matrix_head, order_b, order_h, VQ, C, DZ,
    D: tl.constexpr, DC: tl.constexpr, CP: tl.constexpr, JP: tl.constexpr,
    VDZ: tl.constexpr, SP: tl.constexpr, SP0: tl.constexpr, SC: tl.constexpr, RB: tl.constexpr, LANES_PER_CHANNEL: tl.constexpr,
    HAS_SEGMENT: tl.constexpr, HAS_LANES: tl.constexpr, HAS_SCALE: tl.constexpr, ZERO_KIND: tl.constexpr,
    HAS_OFFSET: tl.constexpr, HAS_MATRIX: tl.constexpr, BY_CHANNEL: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    HAS_STATE: tl.constexpr, LAST: tl.constexpr, LAUNCH_PDL: tl.constexpr, WIDE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one segment, those of the residual tokens and the state so far by their log-sum-exp.

    Each program reduces ``RB`` rows of any sequences and ``DC`` output channels of one head. Where values have an inverse
    transform ``MATRIX`` ``[H or 1, D, D]``, lane ``j`` (of ``JP``) is multiplied by row ``j`` of ``LANE_MATRIX``, the row of
    its channel ``LANE_CHANNEL[j]``, and by ``PLANE_WEIGHT[j]``. Otherwise, and with ``BY_CHANNEL`` (one product with
    ``MATRIX`` follows), channel ``c`` is the sum of lanes ``CHANNEL_LANES[k, c]`` times ``CHANNEL_WEIGHTS[k, c]``, or lane
    ``c`` without these tables. ``SCALE`` ``[B, H, C]`` is for splits without it. ``ZERO_KIND``: 0 none, 1 one zero point
    per channel (its weight is ``L``, or ``ZERO`` if ``VDZ`` is 1), 2 ``ZERO`` holds their sum per channel, 3 per token.
    Writes ``OUT`` ``[B * H, rows, D]``, or the state unless ``LAST``. With ``LAUNCH_PDL`` it waits for the split kernel.
    """
    h = tl.program_id(0)
    if WIDE:
        h = h.to(tl.int64)
    d, i = tl.program_id(2) * DC + tl.arange(0, DC), tl.program_id(1) * RB + tl.arange(0, RB)
    live = i < batch * rows
    b, r = i // rows, i % rows
    bh = b * H + h
    output_mask = live[:, None] & (d < D)[None, :]
    channel = _channels(ORDER, b * order_b + h * order_h, d, output_mask, D)
    c = tl.arange(0, CP) if HAS_MATRIX else d
    e = c if BY_CHANNEL else tl.arange(0, JP) if HAS_MATRIX else d
    GATHERED: tl.constexpr = 0 if HAS_MATRIX and not BY_CHANNEL else LANES_PER_CHANNEL  # 0: nothing is gathered
    if HAS_SEGMENT:  # issue all loads that do not depend on the splits
        factor, lane_matrix, matrix, point = _load_transform(
            SCALE, LANE_CHANNEL, PLANE_WEIGHT, ZERO_POINT, OFFSET, MATRIX, LANE_MATRIX, b, h, c, d, live,
            scale_b, scale_h, zero_b, zero_h, offset_head, matrix_head, lane_matrix_head, VQ, C, DZ,
            D, DC, CP, JP, RB, HAS_LANES, HAS_SCALE, ZERO_KIND, HAS_OFFSET, HAS_MATRIX, BY_CHANNEL, HALF,
        )  # fmt: skip

    if LAUNCH_PDL:
        tl.extra.cuda.gdc_wait()
    m = tl.full((RB,), -1e30, tl.float32)
    if HAS_SEGMENT:
        at, split_mask = _rows_of_splits(bh, r, tl.arange(0, SP), live, num_kv_splits, rows)
        ms, ls = _load_splits(M, L, at, split_mask)
        lane_sums = ()
        if HAS_LANES and SC == SP:  # issue these loads before the first use of any
            lane_sums = _load_lane_sums(ACC, CHANNEL_LANES, CHANNEL_WEIGHTS, at, split_mask, e, VQ, D, GATHERED)
        m = tl.maximum(m, tl.max(ms, 1))
    if HAS_RESIDUAL:
        residual_m, residual_l, residual_acc = _load_residual(
            RESIDUAL_M, RESIDUAL_L, RESIDUAL_ACC, bh, r, channel, live, num_residual_splits, rows, D, SP0)  # fmt: skip
        m = tl.maximum(m, tl.max(residual_m, 1))
    if HAS_STATE:
        state_m = tl.load(STATE_M + bh * rows + r, mask=live, other=-1e30)
        m = tl.maximum(m, state_m)

    total, out = tl.zeros((RB,), tl.float32), tl.zeros((RB, DC), tl.float32)
    if HAS_STATE:
        alpha = tl.exp2(state_m - m)
        total += tl.load(STATE_L + bh * rows + r, mask=live, other=0.0) * alpha
        out += tl.load(STATE + (bh * rows + r)[:, None] * D + channel, mask=output_mask, other=0.0) * alpha[:, None]
    if HAS_RESIDUAL:
        residual_alpha = tl.exp2(residual_m - m[:, None])
        total += tl.sum(residual_l * residual_alpha, 1)
        out += tl.sum(residual_acc * residual_alpha[:, :, None], 1)
    if HAS_SEGMENT:
        segment_l = tl.sum(ls * tl.exp2(ms - m[:, None]), 1)
        total += segment_l
        sums, weight, zero = _merge_splits(
            M, ACC, ZERO, CHANNEL_LANES, CHANNEL_WEIGHTS, lane_sums, ms, at, split_mask, m, bh, r, live, num_kv_splits, rows, c, e, VQ,
            D, DC, CP, JP, RB, VDZ, SP, SC, HAS_LANES, ZERO_KIND, GATHERED, HAS_MATRIX, BY_CHANNEL,
        )  # fmt: skip
        if HAS_SCALE and HAS_LANES and not HAS_MATRIX:
            factor = _by_channel(SCALE, b, h, scale_b, scale_h, d, live, C)
        out = _add_segment(
            out, sums, weight if VDZ == 1 else segment_l, zero, factor, lane_matrix, matrix, point,
            RB, HAS_LANES, HAS_SCALE, ZERO_KIND, HAS_MATRIX, BY_CHANNEL, HALF,
        )  # fmt: skip
    _store_merged(OUT_M, OUT_L, OUT, m, total, out, bh, r, channel, rows, live, output_mask, D, LAST)
