"""Decode attention in Triton, what comes after the pages: splits are joined, and the values' basis is left."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def combine_kernel(
    M, L, ACC, ZERO, SCALE, COLUMNS, PLACES, ZERO_POINT, OFFSET, MATRIX, M0, L0, ACC0, STATE_M, STATE_L, STATE,
    OUT_M, OUT_L, OUT,
    H, rows, splits, splits0, scale_b, scale_h, zero_b, zero_h, offset_head, matrix_head, VQ, C, DZ,
    D: tl.constexpr, DC: tl.constexpr, CP: tl.constexpr, JP: tl.constexpr,
    VDZ: tl.constexpr, SP: tl.constexpr, SP0: tl.constexpr, SC: tl.constexpr, RB: tl.constexpr, DIGITS: tl.constexpr,
    HAS_PART: tl.constexpr, HAS_DIGITS: tl.constexpr, HAS_SCALE: tl.constexpr, ZERO_KIND: tl.constexpr,
    HAS_OFFSET: tl.constexpr, HAS_MATRIX: tl.constexpr, HAS_DENSE: tl.constexpr, HAS_STATE: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Join the splits of one part, those of the dense columns and what was joined before, by their log-sum-exp.

    One program a sequence and head, ``RB`` rows and ``DC`` channels of the output. Channel ``c`` of the values' basis is
    the sum of digits ``COLUMNS[k, c]`` times ``PLACES[k, c]`` (digit ``c`` itself if ``DIGITS`` is 0), times ``SCALE``
    ``[B, H, C]`` where splits did not do it already, plus zero points; ``MATRIX`` ``[H or 1, D, D]`` leaves the basis.
    ``ZERO_KIND``: 0 none, 1 one zero point a channel (its weight is ``L``, or ``ZERO`` if ``VDZ`` is 1), 2 ``ZERO``
    holds their sum by channel, 3 by token (the same for every channel). Writes ``OUT [B * H, rows, D]``, or the state
    if more parts follow.
    """
    bh = tl.program_id(0).to(tl.int64)
    h, b = bh % H, bh // H
    d = tl.program_id(2) * DC + tl.arange(0, DC)
    r = tl.program_id(1) * RB + tl.arange(0, RB)
    dl, live = d < D, r < rows
    D0: tl.constexpr = (D + 31) // 32 * 32  # columns of the dense part's sums
    m = tl.full((RB,), -1e30, tl.float32)
    if HAS_PART:
        s = tl.arange(0, SP)
        at = (bh * splits + s[None, :]) * rows + r[:, None]
        known = live[:, None] & (s < splits)[None, :]
        ms = tl.load(M + at, mask=known, other=-1e30)
        m = tl.maximum(m, tl.max(ms, 1))
        if HAS_MATRIX:  # every program needs all channels of the basis
            c = tl.arange(0, CP)
            inside = (c < D)[:, None] & dl[None, :]
            matrix = tl.load(MATRIX + h * matrix_head + c[:, None] * D + d[None, :], mask=inside, other=0.0)
        else:
            c = d
    if HAS_DENSE:
        s0 = tl.arange(0, SP0)
        at0 = (bh * splits0 + s0[None, :]) * rows + r[:, None]
        known0 = live[:, None] & (s0 < splits0)[None, :]
        ms0 = tl.load(M0 + at0, mask=known0, other=-1e30)
        m = tl.maximum(m, tl.max(ms0, 1))
    if HAS_STATE:
        before = tl.load(STATE_M + bh * rows + r, mask=live, other=-1e30)
        m = tl.maximum(m, before)

    total = tl.zeros((RB,), tl.float32)
    out = tl.zeros((RB, DC), tl.float32)
    both = live[:, None] & dl[None, :]
    if HAS_STATE:
        fade = tl.exp2(before - m)
        total += tl.load(STATE_L + bh * rows + r, mask=live, other=0.0) * fade
        out += tl.load(STATE + (bh * rows + r[:, None]) * D + d[None, :], mask=both, other=0.0) * fade[:, None]
    if HAS_DENSE:
        ws0 = tl.exp2(ms0 - m[:, None])
        total += tl.sum(tl.load(L0 + at0, mask=known0, other=0.0) * ws0, 1)
        part0 = tl.load(
            ACC0 + at0[:, :, None] * D0 + d[None, None, :], mask=known0[:, :, None] & dl[None, None, :], other=0.0
        )
        out += tl.sum(part0 * ws0[:, :, None], 1)
    if HAS_PART:
        mine = tl.sum(tl.load(L + at, mask=known, other=0.0) * tl.exp2(ms - m[:, None]), 1)
        total += mine
        y = tl.zeros((RB, CP if HAS_MATRIX else DC), tl.float32)
        if DIGITS > 0:
            j = tl.arange(0, JP)
            digits = tl.zeros((RB, JP), tl.float32)
        weight = tl.zeros((RB,), tl.float32)
        zero = tl.zeros((RB, CP if HAS_MATRIX else DC), tl.float32)
        for s1 in range(0, splits, SC):
            t = s1 + tl.arange(0, SC)
            split = (bh * splits + t[None, :]) * rows + r[:, None]
            held = live[:, None] & (t < splits)[None, :]
            w = tl.where(held, tl.exp2(tl.load(M + split, mask=held, other=-1e30) - m[:, None]), 0.0)
            if HAS_DIGITS:
                if DIGITS == 0:
                    part = tl.load(
                        ACC + split[:, :, None] * VQ + c[None, None, :], mask=held[:, :, None] & (c < VQ)[None, None, :],
                        other=0.0,
                    )  # fmt: skip
                    y += tl.sum(part * w[:, :, None], 1)
                else:
                    part = tl.load(
                        ACC + split[:, :, None] * VQ + j[None, None, :], mask=held[:, :, None] & (j < VQ)[None, None, :],
                        other=0.0,
                    )  # fmt: skip
                    digits += tl.sum(part * w[:, :, None], 1)
            if VDZ == 1:
                weight += tl.sum(tl.load(ZERO + split, mask=held, other=0.0) * w, 1)
            elif ZERO_KIND == 2:
                points = tl.load(
                    ZERO + split[:, :, None] * VDZ + c[None, None, :], mask=held[:, :, None] & (c < VDZ)[None, None, :],
                    other=0.0,
                )  # fmt: skip
                zero += tl.sum(points * w[:, :, None], 1)
        for k in tl.static_range(DIGITS):
            column = tl.load(COLUMNS + k * D + c, mask=c < D, other=0)
            place = tl.load(PLACES + k * D + c, mask=c < D, other=0.0)
            y += tl.gather(digits, tl.broadcast_to(column[None, :], y.shape), 1) * place[None, :]
        if HAS_SCALE:
            scale = tl.load(SCALE + b * scale_b + h * scale_h + c, mask=c < C, other=0.0).to(tl.float32)
            y *= scale[None, :]
        if ZERO_KIND == 1:
            point = tl.load(ZERO_POINT + b * zero_b + h * zero_h + c, mask=c < DZ, other=0.0).to(tl.float32)
            if HAS_OFFSET:
                point += tl.load(OFFSET + h * offset_head + c, mask=c < DZ, other=0.0)
            if VDZ == 1:
                zero += point[None, :] * weight[:, None]
            else:
                zero += point[None, :] * mine[:, None]
        if ZERO_KIND == 3:
            zero += tl.where((c < D)[None, :], weight[:, None], 0.0)
        y += zero
        if HAS_MATRIX:
            out += tl.dot(y, matrix, input_precision="tf32x3")
        else:
            out += y

    to = (bh * rows + r[:, None]) * D + d[None, :]
    if LAST:
        tl.store(OUT + to, (out / total[:, None]).to(OUT.dtype.element_ty), mask=both)
    else:
        tl.store(OUT + to, out, mask=both)
        if tl.program_id(2) == 0:
            tl.store(OUT_M + bh * rows + r, m, mask=live)
            tl.store(OUT_L + bh * rows + r, total, mask=live)
