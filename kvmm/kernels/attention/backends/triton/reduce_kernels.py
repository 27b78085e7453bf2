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


@triton.jit(do_not_specialize=["H", "batch", "rows", "splits", "splits0"])
def combine_kernel(
    M, L, ACC, ZERO, SCALE, INDEX, PLACE, COLUMNS, PLACES, ZERO_POINT, OFFSET, MATRIX, DIGIT_MATRIX, M0, L0, ACC0,
    STATE_M, STATE_L, STATE, OUT_M, OUT_L, OUT,
    H, batch, rows, splits, splits0, scale_b, scale_h, zero_b, zero_h, offset_head, matrix_head, digit_head, VQ, C, DZ,
    D: tl.constexpr, DC: tl.constexpr, CP: tl.constexpr, JP: tl.constexpr,
    VDZ: tl.constexpr, SP: tl.constexpr, SP0: tl.constexpr, SC: tl.constexpr, RB: tl.constexpr, DIGITS: tl.constexpr,
    HAS_PART: tl.constexpr, HAS_DIGITS: tl.constexpr, HAS_SCALE: tl.constexpr, ZERO_KIND: tl.constexpr,
    HAS_OFFSET: tl.constexpr, HAS_MATRIX: tl.constexpr, BY_CHANNEL: tl.constexpr, HAS_DENSE: tl.constexpr,
    HAS_STATE: tl.constexpr,
    LAST: tl.constexpr, EARLY: tl.constexpr, WIDE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Join the splits of one part, those of the dense columns and what was joined before, by their log-sum-exp.

    One program a head, ``RB`` rows of whatever sequences and ``DC`` channels of the output. Where a ``MATRIX``
    ``[H or 1, D, D]`` leaves the values' basis, digit ``j`` (of ``JP``) goes through row ``j`` of ``DIGIT_MATRIX``, that
    of its channel ``INDEX[j]``, times ``PLACE[j]``: no digits are moved. Elsewhere, and with ``BY_CHANNEL``, which leaves
    the basis by one product with ``MATRIX``, channel ``c`` is the sum of digits ``COLUMNS[k, c]`` times ``PLACES[k, c]``.
    Without these tables digit ``c`` is channel ``c``. ``SCALE`` ``[B, H, C]`` is what splits did not
    do already. ``ZERO_KIND``: 0 none, 1 one zero point a channel (its weight is ``L``, or ``ZERO`` if ``VDZ`` is 1), 2
    ``ZERO`` holds their sum by channel, 3 by token (the same for every channel). Writes ``OUT [B * H, rows, D]``, or
    the state if more parts follow. With ``EARLY`` it may start before the kernel that wrote the splits has ended, but not
    before all in front of that.
    """
    h = tl.program_id(0)
    if WIDE:
        h = h.to(tl.int64)
    d = tl.program_id(2) * DC + tl.arange(0, DC)
    i = tl.program_id(1) * RB + tl.arange(0, RB)
    live = i < batch * rows
    b, r = i // rows, i % rows
    bh = b * H + h
    dl = d < D
    both = live[:, None] & dl[None, :]
    D0: tl.constexpr = (D + 31) // 32 * 32  # columns of the dense part's sums

    # what does not depend on the splits, all of it asked for at once
    if HAS_PART:
        j = tl.arange(0, JP)
        held = j < VQ
        channel = j
        digit_rows = D  # of the matrix
        if INDEX is not None:
            digit_rows = VQ
        factor = tl.full((RB, JP), 1.0, tl.float32)
        if BY_CHANNEL:
            c = tl.arange(0, CP)
            matrix = tl.load(
                MATRIX + h * matrix_head + c[:, None] * D + d[None, :], mask=(c < D)[:, None] & dl[None, :], other=0.0
            )
            if HAS_SCALE:
                factor = tl.load(
                    SCALE + b[:, None] * scale_b + h * scale_h + c[None, :],
                    mask=live[:, None] & (c < C)[None, :], other=0.0,
                ).to(tl.float32)  # fmt: skip
        elif HAS_MATRIX:
            if HAS_SCALE and INDEX is not None:
                channel = tl.load(INDEX + j, mask=held, other=0)
                factor *= tl.load(PLACE + j, mask=held, other=0.0)[None, :]
            if HAS_DIGITS:
                if HAS_SCALE:
                    factor *= tl.load(
                        SCALE + b[:, None] * scale_b + h * scale_h + channel[None, :],
                        mask=live[:, None] & (held & (channel < C))[None, :], other=0.0,
                    ).to(tl.float32)  # fmt: skip
                lane_transform = tl.load(
                    DIGIT_MATRIX + h * digit_head + j[:, None] * D + d[None, :],
                    mask=(held & (j < digit_rows))[:, None] & dl[None, :], other=0.0,
                )  # fmt: skip
            if ZERO_KIND > 0:
                c = tl.arange(0, CP)
                matrix = tl.load(
                    MATRIX + h * matrix_head + c[:, None] * D + d[None, :],
                    mask=(c < D)[:, None] & dl[None, :],
                    other=0.0,
                )
        else:
            c = d
        if ZERO_KIND == 1:
            point = tl.load(
                ZERO_POINT + b[:, None] * zero_b + h * zero_h + c[None, :],
                mask=live[:, None] & (c < DZ)[None, :], other=0.0,
            ).to(tl.float32)  # fmt: skip
            if HAS_OFFSET:
                point += tl.load(OFFSET + h * offset_head + c, mask=c < DZ, other=0.0)[None, :]
            if HAS_MATRIX and not BY_CHANNEL:
                point = _leave_basis(point, matrix, RB, HALF)
        elif ZERO_KIND == 3:
            if BY_CHANNEL:
                point = tl.full((RB, CP), 1.0, tl.float32)
            elif HAS_MATRIX:
                point = tl.sum(matrix, 0)[None, :] + tl.zeros((RB, DC), tl.float32)
            else:
                point = tl.full((RB, DC), 1.0, tl.float32)

    if EARLY:
        tl.extra.cuda.gdc_wait()
    m = tl.full((RB,), -1e30, tl.float32)
    if HAS_PART:
        s = tl.arange(0, SP)
        at = (bh[:, None] * splits + s[None, :]) * rows + r[:, None]
        known = live[:, None] & (s < splits)[None, :]
        ms = tl.load(M + at, mask=known, other=-1e30)
        ls = tl.load(L + at, mask=known, other=0.0)
        GATHERED: tl.constexpr = 0 if HAS_MATRIX and not BY_CHANNEL else DIGITS  # digits that a channel is the sum of
        e = c if BY_CHANNEL else j if HAS_MATRIX else d
        if HAS_DIGITS and SC == SP:  # asked for before anything waits
            parts = _load_digits(ACC, COLUMNS, PLACES, at, known, e, VQ, D, GATHERED)
        m = tl.maximum(m, tl.max(ms, 1))
    if HAS_DENSE:
        s0 = tl.arange(0, SP0)
        at0 = (bh[:, None] * splits0 + s0[None, :]) * rows + r[:, None]
        known0 = live[:, None] & (s0 < splits0)[None, :]
        ms0 = tl.load(M0 + at0, mask=known0, other=-1e30)
        ls0 = tl.load(L0 + at0, mask=known0, other=0.0)
        part0 = tl.load(
            ACC0 + at0[:, :, None] * D0 + d[None, None, :], mask=known0[:, :, None] & dl[None, None, :], other=0.0
        )
        m = tl.maximum(m, tl.max(ms0, 1))
    if HAS_STATE:
        before = tl.load(STATE_M + bh * rows + r, mask=live, other=-1e30)
        m = tl.maximum(m, before)

    total = tl.zeros((RB,), tl.float32)
    out = tl.zeros((RB, DC), tl.float32)
    if HAS_STATE:
        fade = tl.exp2(before - m)
        total += tl.load(STATE_L + bh * rows + r, mask=live, other=0.0) * fade
        out += tl.load(STATE + (bh * rows + r)[:, None] * D + d[None, :], mask=both, other=0.0) * fade[:, None]
    if HAS_DENSE:
        ws0 = tl.exp2(ms0 - m[:, None])
        total += tl.sum(ls0 * ws0, 1)
        out += tl.sum(part0 * ws0[:, :, None], 1)
    if HAS_PART:
        mine = tl.sum(ls * tl.exp2(ms - m[:, None]), 1)
        total += mine
        digits = tl.zeros((RB, CP if BY_CHANNEL else JP if HAS_MATRIX else DC), tl.float32)
        weight = tl.zeros((RB,), tl.float32)
        zero = tl.zeros((RB, CP if HAS_MATRIX else DC), tl.float32)
        for s1 in range(0, splits, SC):
            if SC == SP:  # all of them at once
                split, there = at, known
                w = tl.where(known, tl.exp2(ms - m[:, None]), 0.0)
            else:
                t = s1 + tl.arange(0, SC)
                split = (bh[:, None] * splits + t[None, :]) * rows + r[:, None]
                there = live[:, None] & (t < splits)[None, :]
                w = tl.where(there, tl.exp2(tl.load(M + split, mask=there, other=-1e30) - m[:, None]), 0.0)
            if HAS_DIGITS:
                if SC < SP:
                    parts = _load_digits(ACC, COLUMNS, PLACES, split, there, e, VQ, D, GATHERED)
                digits = _add_digits(digits, parts, w, PLACES, e, D, GATHERED)
            if VDZ == 1:
                weight += tl.sum(tl.load(ZERO + split, mask=there, other=0.0) * w, 1)
            elif ZERO_KIND == 2:
                points = tl.load(
                    ZERO + split[:, :, None] * VDZ + c[None, None, :], mask=there[:, :, None] & (c < VDZ)[None, None, :],
                    other=0.0,
                )  # fmt: skip
                zero += tl.sum(points * w[:, :, None], 1)
        if BY_CHANNEL:
            if HAS_SCALE:
                digits *= factor
            if ZERO_KIND == 2:
                digits += zero
            elif ZERO_KIND > 0:
                digits += point * (weight if VDZ == 1 else mine)[:, None]
            out += _leave_basis(digits, matrix, RB, HALF)
        elif HAS_DIGITS:
            if HAS_MATRIX:
                out += _leave_basis(digits * factor, lane_transform, RB, HALF)
            else:
                if HAS_SCALE:
                    digits *= tl.load(
                        SCALE + b[:, None] * scale_b + h * scale_h + d[None, :],
                        mask=live[:, None] & (d < C)[None, :], other=0.0,
                    ).to(tl.float32)  # fmt: skip
                out += digits
        if BY_CHANNEL:
            pass
        elif ZERO_KIND == 2:
            if HAS_MATRIX:
                out += _leave_basis(zero, matrix, RB, HALF)
            else:
                out += zero
        elif ZERO_KIND > 0:
            if VDZ == 1:
                out += point * weight[:, None]
            else:
                out += point * mine[:, None]

    to = (bh * rows + r)[:, None] * D + d[None, :]
    if LAST:
        tl.store(OUT + to, (out / total[:, None]).to(OUT.dtype.element_ty), mask=both)
    else:
        tl.store(OUT + to, out, mask=both)
        if tl.program_id(2) == 0:
            tl.store(OUT_M + bh * rows + r, m, mask=live)
            tl.store(OUT_L + bh * rows + r, total, mask=live)
