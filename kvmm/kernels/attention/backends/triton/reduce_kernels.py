"""Decode attention in Triton, what comes after the pages: splits are joined, and the values' basis is left."""

from __future__ import annotations

import triton
import triton.language as tl

from kvmm.kernels.attention.backends.triton.query_kernels import split_in_two


@triton.jit
def _leave_basis(x, matrix, ROWS: tl.constexpr, HALF: tl.constexpr):
    """``x [ROWS, K]`` times ``matrix [K, DC]``; a single row is no work for the tensor cores.

    Two dimensions there, so that the matrix is used where it was loaded. An output of 16 bits (``HALF``, where matrices of
    bfloat16 can be multiplied) needs no more than 16 of both factors.
    """
    if ROWS >= 16 and HALF:
        high, low = split_in_two(x)
        matrix_high, matrix_low = split_in_two(matrix)
        return tl.dot(high, matrix_high, acc=tl.dot(high, matrix_low, acc=tl.dot(low, matrix_high)))
    elif ROWS >= 16:
        return tl.dot(x, matrix, input_precision="tf32x3")
    else:
        column = tl.reshape(x, (matrix.shape[0],))
        return tl.sum(column[:, None] * matrix, 0)[None, :]


@triton.jit
def _load_digits(ACC, COLUMNS, PLACES, split, there, e, VQ, D: tl.constexpr, GATHERED: tl.constexpr):
    """The sums of splits ``[ROWS, SPLITS]`` in digits ``e``, or in the digits that channels ``e`` are the sums of."""
    parts = ()
    if GATHERED == 0:
        at = split[:, :, None] * VQ + e[None, None, :]
        parts = parts + (tl.load(ACC + at, mask=there[:, :, None] & (e < VQ)[None, None, :], other=0.0),)
    else:
        for k in tl.static_range(GATHERED):
            column = tl.load(COLUMNS + k * D + e, mask=e < D, other=0)
            worth = tl.load(PLACES + k * D + e, mask=e < D, other=0.0)
            at = split[:, :, None] * VQ + column[None, None, :]
            parts = parts + (tl.load(ACC + at, mask=there[:, :, None] & (worth != 0)[None, None, :], other=0.0),)
    return parts


@triton.jit
def _add_digits(digits, parts, w, PLACES, e, D: tl.constexpr, GATHERED: tl.constexpr):
    """``digits`` with what :func:`_load_digits` loaded, times the weights ``w [ROWS, SPLITS]`` of the splits."""
    if GATHERED == 0:
        digits += tl.sum(parts[0] * w[:, :, None], 1)
    else:
        for k in tl.static_range(GATHERED):
            worth = tl.load(PLACES + k * D + e, mask=e < D, other=0.0)
            digits += tl.sum(parts[k] * w[:, :, None], 1) * worth[None, :]
    return digits


@triton.jit(do_not_specialize=["rows", "splits"])
def slopes_kernel(LARGEST, SMALLEST, OUT, rows, splits, tau1, tau2, SP: tl.constexpr, RB: tl.constexpr):
    """The line that takes a row's logits of ``[gamma, delta]`` to ``[gamma - tau1, delta - tau2]``.

    CalibQuant's calibration (section 3.3) in the units of the logits; rows where it would not rise are left alone.
    ``LARGEST`` and ``SMALLEST`` ``[B * H, splits, rows]`` are each split's, ``OUT [B * H, rows, 2]`` slope and shift.
    """
    bh = tl.program_id(0)
    r, s = tl.program_id(1) * RB + tl.arange(0, RB), tl.arange(0, SP)
    there = (s < splits)[:, None] & (r < rows)[None, :]
    at = (bh * splits + s[:, None]) * rows + r[None, :]
    delta = tl.max(tl.load(LARGEST + at, mask=there, other=float("-inf")), 0)
    gamma = tl.min(tl.load(SMALLEST + at, mask=there, other=float("inf")), 0)
    span = delta - gamma
    proper = (span > 0) & (span < float("inf"))  # else there are no tokens, or all logits are the same
    slope = 1 + (tau1 - tau2) / tl.where(proper, span, 1.0)
    rises = proper & (slope > 0)
    to = OUT + (bh * rows + r) * 2
    tl.store(to, tl.where(rises, slope, 1.0), mask=r < rows)
    tl.store(to + 1, tl.where(rises, gamma * (1 - slope) - tau1, 0.0), mask=r < rows)


@triton.jit
def _load_matrix(MATRIX, h, matrix_head, i, d, known, D: tl.constexpr):
    """Rows ``i`` ``[I]`` and columns ``d`` ``[DC]`` of a head's matrix of ``D`` columns, 0 where there are none.

    Rows are there where ``known`` ``[I]`` says so.
    """
    return tl.load(
        MATRIX + h * matrix_head + i[:, None] * D + d[None, :], mask=known[:, None] & (d < D)[None, :], other=0.0
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
def _digit_factors(
    SCALE, INDEX, PLACE, b, h, scale_b, scale_h, j, live, VQ, C, RB: tl.constexpr, JP: tl.constexpr
):  # fmt: skip
    """What a step of digits ``j`` ``[JP]`` is worth, float32 ``[RB, JP]``: the place in its channel times the scale."""
    held, channel = j < VQ, j
    factor = tl.full((RB, JP), 1.0, tl.float32)
    if INDEX is not None:
        channel = tl.load(INDEX + j, mask=held, other=0)
        factor *= tl.load(PLACE + j, mask=held, other=0.0)[None, :]
    scale = tl.load(
        SCALE + b[:, None] * scale_b + h * scale_h + channel[None, :],
        mask=live[:, None] & (held & (channel < C))[None, :], other=0.0,
    )  # fmt: skip
    return factor * scale.to(tl.float32)


@triton.jit
def _zero_points(
    ZERO_POINT, OFFSET, matrix, b, h, zero_b, zero_h, offset_head, c, live, DZ,
    RB: tl.constexpr, DC: tl.constexpr, CP: tl.constexpr, ZERO_KIND: tl.constexpr, HAS_OFFSET: tl.constexpr,
    HAS_MATRIX: tl.constexpr, BY_CHANNEL: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """What a weight of 1 adds to each row by its zero points (``ZERO_KIND`` 1 or 3), float32.

    ``[RB, DC]`` out of the values' basis or, with ``BY_CHANNEL``, ``[RB or 1, CP]`` in it: the product comes later.
    """
    if ZERO_KIND == 1:
        point = _by_channel(ZERO_POINT, b, h, zero_b, zero_h, c, live, DZ)
        if HAS_OFFSET:
            point += tl.load(OFFSET + h * offset_head + c, mask=c < DZ, other=0.0)[None, :]
        if HAS_MATRIX and not BY_CHANNEL:
            point = _leave_basis(point, matrix, RB, HALF)
    elif BY_CHANNEL:
        point = tl.full((RB, CP), 1.0, tl.float32)
    elif HAS_MATRIX:
        point = tl.sum(matrix, 0)[None, :] + tl.zeros((RB, DC), tl.float32)
    else:
        point = tl.full((RB, DC), 1.0, tl.float32)
    return point


@triton.jit
def _load_basis(
    SCALE, INDEX, PLACE, ZERO_POINT, OFFSET, MATRIX, DIGIT_MATRIX, b, h, c, d, live,
    scale_b, scale_h, zero_b, zero_h, offset_head, matrix_head, digit_head, VQ, C, DZ,
    D: tl.constexpr, DC: tl.constexpr, CP: tl.constexpr, JP: tl.constexpr, RB: tl.constexpr, HAS_DIGITS: tl.constexpr,
    HAS_SCALE: tl.constexpr, ZERO_KIND: tl.constexpr, HAS_OFFSET: tl.constexpr, HAS_MATRIX: tl.constexpr,
    BY_CHANNEL: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """What takes a part's sums to channels ``d`` ``[DC]`` of the output and does not depend on them, all in float32.

    Scales ``[RB, CP or JP]``, the matrix of digits ``[JP, DC]``, that of channels ``[CP, DC]`` (in their type) and
    :func:`_zero_points`; 0 for those that the case has not, or that have no matrix to wait for (scales).
    """
    factor, digit_matrix, matrix, point = 0.0, 0.0, 0.0, 0.0
    if BY_CHANNEL:
        matrix = _load_matrix(MATRIX, h, matrix_head, c, d, c < D, D)
        if HAS_SCALE:
            factor = _by_channel(SCALE, b, h, scale_b, scale_h, c, live, C)
    elif HAS_MATRIX:
        if HAS_DIGITS:
            j = tl.arange(0, JP)
            digit_rows = D if INDEX is None else VQ  # without it digits are channels, and the matrix is theirs
            if HAS_SCALE:
                factor = _digit_factors(SCALE, INDEX, PLACE, b, h, scale_b, scale_h, j, live, VQ, C, RB, JP)
            digit_matrix = _load_matrix(DIGIT_MATRIX, h, digit_head, j, d, (j < VQ) & (j < digit_rows), D)
        if ZERO_KIND > 0:
            matrix = _load_matrix(MATRIX, h, matrix_head, c, d, c < D, D)
    if ZERO_KIND == 1 or ZERO_KIND == 3:
        point = _zero_points(
            ZERO_POINT, OFFSET, matrix, b, h, zero_b, zero_h, offset_head, c, live, DZ, RB, DC, CP, ZERO_KIND,
            HAS_OFFSET, HAS_MATRIX, BY_CHANNEL, HALF,
        )  # fmt: skip
    return factor, digit_matrix, matrix, point


@triton.jit
def _rows_of_splits(bh, r, s, live, splits, rows):
    """Where splits ``s`` ``[S]`` of query rows ``r`` ``[RB]`` are in ``[B * H, splits, rows]``, and whether: ``[RB, S]``."""
    at = (bh[:, None] * splits + s[None, :]) * rows + r[:, None]
    return at, live[:, None] & (s < splits)[None, :]


@triton.jit
def _load_splits(M, L, at, known):
    """Largest logits and sums of splits ``at``, float32 ``[RB, S]``."""
    return tl.load(M + at, mask=known, other=-1e30), tl.load(L + at, mask=known, other=0.0)


@triton.jit
def _load_dense(M0, L0, ACC0, bh, r, d, live, splits, rows, D: tl.constexpr, SP0: tl.constexpr):
    """Of the dense columns' splits: largest logits and sums ``[RB, SP0]``, values ``[RB, SP0, DC]``, float32."""
    D0: tl.constexpr = (D + 31) // 32 * 32  # columns of ``ACC0``
    at, known = _rows_of_splits(bh, r, tl.arange(0, SP0), live, splits, rows)
    ms, ls = _load_splits(M0, L0, at, known)
    acc = tl.load(
        ACC0 + at[:, :, None] * D0 + d[None, None, :], mask=known[:, :, None] & (d < D)[None, None, :], other=0.0
    )  # fmt: skip
    return ms, ls, acc


@triton.jit
def _join_splits(
    M, ACC, ZERO, COLUMNS, PLACES, parts, ms, at, known, m, bh, r, live, splits, rows, c, e, VQ,
    D: tl.constexpr, DC: tl.constexpr, CP: tl.constexpr, JP: tl.constexpr, RB: tl.constexpr, VDZ: tl.constexpr,
    SP: tl.constexpr, SC: tl.constexpr, HAS_DIGITS: tl.constexpr, ZERO_KIND: tl.constexpr, GATHERED: tl.constexpr,
    HAS_MATRIX: tl.constexpr, BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """The sums of all splits, ``SC`` at a time, each times ``2 ** (its largest logit - m)``, all in float32.

    In digits or channels ``e`` (``[RB, CP]``, ``[RB, JP]`` or ``[RB, DC]``), of one zero point's weights ``[RB]``, and of
    what zero points add to channels ``c`` (``[RB, CP]`` or ``[RB, DC]``); 0 for those that the case has not.
    ``parts``, ``ms``, ``at`` and ``known`` are those of all splits, where ``SC == SP`` takes them at once.
    """
    digits = tl.zeros((RB, CP if BY_CHANNEL else JP if HAS_MATRIX else DC), tl.float32)
    weight = tl.zeros((RB,), tl.float32)
    zero = tl.zeros((RB, CP if HAS_MATRIX else DC), tl.float32)
    for s1 in range(0, splits, SC):
        if SC == SP:  # all of them at once
            split, there = at, known
            w = tl.where(known, tl.exp2(ms - m[:, None]), 0.0)
        else:
            split, there = _rows_of_splits(bh, r, s1 + tl.arange(0, SC), live, splits, rows)
            w = tl.where(there, tl.exp2(tl.load(M + split, mask=there, other=-1e30) - m[:, None]), 0.0)
        if HAS_DIGITS:
            loaded = parts if SC == SP else _load_digits(ACC, COLUMNS, PLACES, split, there, e, VQ, D, GATHERED)
            digits = _add_digits(digits, loaded, w, PLACES, e, D, GATHERED)
        if VDZ == 1:
            weight += tl.sum(tl.load(ZERO + split, mask=there, other=0.0) * w, 1)
        elif ZERO_KIND == 2:
            points = tl.load(
                ZERO + split[:, :, None] * VDZ + c[None, None, :], mask=there[:, :, None] & (c < VDZ)[None, None, :],
                other=0.0,
            )  # fmt: skip
            zero += tl.sum(points * w[:, :, None], 1)
    return digits, weight, zero


@triton.jit
def _add_part(
    out, digits, weight, zero, factor, digit_matrix, matrix, point, RB: tl.constexpr, HAS_DIGITS: tl.constexpr,
    HAS_SCALE: tl.constexpr, ZERO_KIND: tl.constexpr, HAS_MATRIX: tl.constexpr, BY_CHANNEL: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """``out`` ``[RB, DC]`` with the sums of one part, out of the values' basis: those of :func:`_join_splits`, taken
    there by what :func:`_load_basis` loaded. ``weight`` ``[RB]`` is that of ``point``."""
    if HAS_DIGITS and HAS_SCALE:
        digits *= factor
    if BY_CHANNEL:
        if ZERO_KIND == 2:
            digits += zero
        elif ZERO_KIND > 0:
            digits += point * weight[:, None]
        out += _leave_basis(digits, matrix, RB, HALF)
    else:
        if HAS_DIGITS:
            out += _leave_basis(digits, digit_matrix, RB, HALF) if HAS_MATRIX else digits
        if ZERO_KIND == 2:
            out += _leave_basis(zero, matrix, RB, HALF) if HAS_MATRIX else zero
        elif ZERO_KIND > 0:
            out += point * weight[:, None]
    return out


@triton.jit
def _store_joined(
    OUT_M, OUT_L, OUT, m, total, out, bh, r, d, rows, live, both, D: tl.constexpr, LAST: tl.constexpr
):  # fmt: skip
    """Store the attention of rows ``r`` ``[RB]`` and channels ``d`` ``[DC]``, or the state if more parts follow."""
    to = (bh * rows + r)[:, None] * D + d[None, :]
    if LAST:
        tl.store(OUT + to, (out / total[:, None]).to(OUT.dtype.element_ty), mask=both)
    else:
        tl.store(OUT + to, out, mask=both)
        if tl.program_id(2) == 0:
            tl.store(OUT_M + bh * rows + r, m, mask=live)
            tl.store(OUT_L + bh * rows + r, total, mask=live)


@triton.jit(do_not_specialize=["H", "batch", "rows", "splits", "splits0"])
def combine_kernel(
    M, L, ACC, ZERO, SCALE, INDEX, PLACE, COLUMNS, PLACES, ZERO_POINT, OFFSET, MATRIX, DIGIT_MATRIX, M0, L0, ACC0,
    STATE_M, STATE_L, STATE, OUT_M, OUT_L, OUT,
    H, batch, rows, splits, splits0, scale_b, scale_h, zero_b, zero_h, offset_head, matrix_head, digit_head, VQ, C, DZ,
    D: tl.constexpr, DC: tl.constexpr, CP: tl.constexpr, JP: tl.constexpr,
    VDZ: tl.constexpr, SP: tl.constexpr, SP0: tl.constexpr, SC: tl.constexpr, RB: tl.constexpr, DIGITS: tl.constexpr,
    HAS_PART: tl.constexpr, HAS_DIGITS: tl.constexpr, HAS_SCALE: tl.constexpr, ZERO_KIND: tl.constexpr,
    HAS_OFFSET: tl.constexpr, HAS_MATRIX: tl.constexpr, BY_CHANNEL: tl.constexpr, HAS_DENSE: tl.constexpr,
    HAS_STATE: tl.constexpr, LAST: tl.constexpr, EARLY: tl.constexpr, WIDE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Join the splits of one part, those of the dense columns and what was joined before, by their log-sum-exp.

    One program a head, ``RB`` rows of whatever sequences and ``DC`` channels of the output. Where a ``MATRIX``
    ``[H or 1, D, D]`` leaves the values' basis, digit ``j`` (of ``JP``) goes through row ``j`` of ``DIGIT_MATRIX``, that
    of its channel ``INDEX[j]``, times ``PLACE[j]``: no digits are moved. Elsewhere, and with ``BY_CHANNEL``, which leaves
    the basis by one product with ``MATRIX``, channel ``c`` is the sum of digits ``COLUMNS[k, c]`` times ``PLACES[k, c]``.
    Without these tables digit ``c`` is channel ``c``. ``SCALE`` ``[B, H, C]`` is what splits did not do already.
    ``ZERO_KIND``: 0 none, 1 one zero point a channel (its weight is ``L``, or ``ZERO`` if ``VDZ`` is 1), 2 ``ZERO`` holds
    their sum by channel, 3 by token (the same for every channel). Writes ``OUT [B * H, rows, D]``, or the state if more
    parts follow. With ``EARLY`` it may start before the last kernel in front of it, which wrote the splits, has ended.
    """
    h = tl.program_id(0)
    if WIDE:
        h = h.to(tl.int64)
    d = tl.program_id(2) * DC + tl.arange(0, DC)
    i = tl.program_id(1) * RB + tl.arange(0, RB)
    live = i < batch * rows
    b, r = i // rows, i % rows
    bh = b * H + h
    both = live[:, None] & (d < D)[None, :]
    c = tl.arange(0, CP) if HAS_MATRIX else d
    e = c if BY_CHANNEL else tl.arange(0, JP) if HAS_MATRIX else d
    GATHERED: tl.constexpr = 0 if HAS_MATRIX and not BY_CHANNEL else DIGITS  # digits that a channel is the sum of
    if HAS_PART:  # what does not depend on the splits, all of it asked for at once
        factor, digit_matrix, matrix, point = _load_basis(
            SCALE, INDEX, PLACE, ZERO_POINT, OFFSET, MATRIX, DIGIT_MATRIX, b, h, c, d, live,
            scale_b, scale_h, zero_b, zero_h, offset_head, matrix_head, digit_head, VQ, C, DZ,
            D, DC, CP, JP, RB, HAS_DIGITS, HAS_SCALE, ZERO_KIND, HAS_OFFSET, HAS_MATRIX, BY_CHANNEL, HALF,
        )  # fmt: skip

    if EARLY:
        tl.extra.cuda.gdc_wait()
    m = tl.full((RB,), -1e30, tl.float32)
    if HAS_PART:
        at, known = _rows_of_splits(bh, r, tl.arange(0, SP), live, splits, rows)
        ms, ls = _load_splits(M, L, at, known)
        parts = ()
        if HAS_DIGITS and SC == SP:  # asked for before anything waits
            parts = _load_digits(ACC, COLUMNS, PLACES, at, known, e, VQ, D, GATHERED)
        m = tl.maximum(m, tl.max(ms, 1))
    if HAS_DENSE:
        ms0, ls0, acc0 = _load_dense(M0, L0, ACC0, bh, r, d, live, splits0, rows, D, SP0)
        m = tl.maximum(m, tl.max(ms0, 1))
    if HAS_STATE:
        before = tl.load(STATE_M + bh * rows + r, mask=live, other=-1e30)
        m = tl.maximum(m, before)

    total, out = tl.zeros((RB,), tl.float32), tl.zeros((RB, DC), tl.float32)
    if HAS_STATE:
        fade = tl.exp2(before - m)
        total += tl.load(STATE_L + bh * rows + r, mask=live, other=0.0) * fade
        out += tl.load(STATE + (bh * rows + r)[:, None] * D + d[None, :], mask=both, other=0.0) * fade[:, None]
    if HAS_DENSE:
        fade0 = tl.exp2(ms0 - m[:, None])
        total += tl.sum(ls0 * fade0, 1)
        out += tl.sum(acc0 * fade0[:, :, None], 1)
    if HAS_PART:
        mine = tl.sum(ls * tl.exp2(ms - m[:, None]), 1)
        total += mine
        digits, weight, zero = _join_splits(
            M, ACC, ZERO, COLUMNS, PLACES, parts, ms, at, known, m, bh, r, live, splits, rows, c, e, VQ,
            D, DC, CP, JP, RB, VDZ, SP, SC, HAS_DIGITS, ZERO_KIND, GATHERED, HAS_MATRIX, BY_CHANNEL,
        )  # fmt: skip
        if HAS_SCALE and HAS_DIGITS and not HAS_MATRIX:
            factor = _by_channel(SCALE, b, h, scale_b, scale_h, d, live, C)
        out = _add_part(
            out, digits, weight if VDZ == 1 else mine, zero, factor, digit_matrix, matrix, point,
            RB, HAS_DIGITS, HAS_SCALE, ZERO_KIND, HAS_MATRIX, BY_CHANNEL, HALF,
        )  # fmt: skip
    _store_joined(OUT_M, OUT_L, OUT, m, total, out, bh, r, d, rows, live, both, D, LAST)
