"""Logits of some tokens of one segment, whatever its keys are, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from kvmm.kernels.attention.backends.triton.store_kernels import (
    CHANNEL,
    DENSE,
    INT8,
    NOTHING,
    SCORES,
    TOKEN,
    _codes,
    _group,
    _norm,
    _packed_tiles,
    _page_group,
    _rows,
)

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _int8_query(query, keys, K: tl.constexpr, group, rows, groups, RP: tl.constexpr):
    """The query rows in one group's lanes, ``[lanes, 2 * RP]`` of both planes, their weights and zeros ``[RP]``."""
    bh, r, row_live = _rows(rows, RP)
    L1: tl.constexpr = K.padded_lanes1
    L: tl.constexpr = L1 + K.padded_lanes2
    c = tl.program_id(2) * 2 * RP + tl.arange(0, 2 * RP)
    k1, k2 = tl.arange(0, K.block1), tl.arange(0, K.block2)
    at = query.rows + bh * groups * rows * 2 * L + c[None, :] * L
    q1 = tl.load(at + k1[:, None] + group * rows * 2 * L, mask=(c < 2 * rows)[None, :] & (k1 < L1)[:, None], other=0)
    q2 = q1
    if K.bits2 > 0:
        q2 = tl.load(
            at + L1 + k2[:, None] + group * rows * 2 * L, mask=(c < 2 * rows)[None, :] & (k2 < L - L1)[:, None], other=0
        )
    w = tl.load(query.weight + (bh * groups + group) * rows + r, mask=row_live, other=0.0)
    z = tl.zeros((RP,), tl.float32)
    if query.zero is not None:
        z = tl.load(query.zero + (bh * groups + group) * rows + r, mask=row_live, other=0.0)
    return q1, q2, w, z


@triton.jit
def _half_query(query, keys, K: tl.constexpr, rows, RP: tl.constexpr):
    """The query rows in half precision or the model's, ``[lanes, RP]`` of both planes, and their weights ``[RP]``."""
    bh, r, row_live = _rows(rows, RP)
    k1, k2 = tl.arange(0, K.block1), tl.arange(0, K.block2)
    L1: tl.constexpr = K.lanes1 if K.mode == DENSE else K.padded_lanes1
    L: tl.constexpr = L1 + K.padded_lanes2
    at = query.rows + (bh * rows + r[None, :]) * L
    q1 = tl.load(at + k1[:, None], mask=row_live[None, :] & (k1 < L1)[:, None], other=0.0)
    q2 = q1
    if K.bits2 > 0:
        q2 = tl.load(at + L1 + k2[:, None], mask=row_live[None, :] & (k2 < L - L1)[:, None], other=0.0)
    return q1, q2, tl.load(query.weight + bh * rows + r, mask=row_live, other=0.0)


@triton.jit
def _dense_scores(keys, K: tl.constexpr, q1, w, slot, live, ASM: tl.constexpr):
    """Logits ``[tokens, RP]`` of tokens as the model made them."""
    k1 = tl.arange(0, K.block1)
    at = keys.plane1 + tl.program_id(0).to(tl.int64) * keys.stride1
    k = tl.load(at + slot[:, None] * K.lanes1 + k1[None, :], mask=live[:, None] & (k1 < K.lanes1)[None, :], other=0.0)
    if not ASM and k.dtype == tl.bfloat16:  # the interpreter knows no bf16
        return tl.dot(k.to(tl.float32), q1.to(tl.float32)) * w[None, :]
    else:
        return tl.dot(k.to(q1.dtype), q1, input_precision="ieee") * w[None, :]


@triton.jit
def _int8_scores(
    query, keys, K: tl.constexpr, tiles1, tiles2, q1, q2, w, z, at, N: tl.constexpr, UI: tl.constexpr, TU: tl.constexpr,
    RP: tl.constexpr, ROLLED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Logits ``[TU, RP]`` of the sub-tile whose pages begin at token ``at``, by products of integers."""
    codes = _codes(tiles1, at, N * K.bits1 // 8, UI, K.bits1, ROLLED, ASM)
    dots = tl.dot(codes, q1, out_dtype=tl.int32)
    if K.bits2 > 0:
        codes = _codes(tiles2, at, N * K.bits2 // 8, UI, K.bits2, ROLLED, ASM)
        dots = tl.dot(codes, q2, acc=dots, out_dtype=tl.int32)
    high, low = tl.split(tl.reshape(dots, (TU, RP, 2)))
    x = (high * 254 + low).to(tl.float32) * w[None, :]
    if query.zero is not None:
        x += z[None, :]
    return x


@triton.jit
def _half_scores(
    query, keys, K: tl.constexpr, tiles1, tiles2, q1, q2, w, at, page, page_u, token, live, rows, groups, N: tl.constexpr,
    UI: tl.constexpr, RP: tl.constexpr, ROLLED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Logits ``[tokens, RP]`` of codes times their scales, in half precision; scales by channel or by token."""
    bh, r, row_live = _rows(rows, RP)
    k1, k2 = tl.arange(0, K.block1), tl.arange(0, K.block2)
    L1: tl.constexpr = K.padded_lanes1
    L: tl.constexpr = L1 + K.padded_lanes2
    CHUNKS: tl.constexpr = K.channel_groups
    scales = keys.scale + bh * keys.scale_stride
    codes = _codes(tiles1, at, N * K.bits1 // 8, UI, K.bits1, ROLLED, ASM)
    g = _group(keys, K, groups, page_u, token, live, N)
    in_bounds = live[:, None] & (k1 < K.lanes1)[None, :]
    if K.mode == CHANNEL:
        scale = tl.load(scales + g[:, None] * L + k1[None, :], mask=in_bounds, other=0.0)
    else:
        chunk = (k1 // (K.lanes1 // CHUNKS))[None, :]
        scale = tl.load(scales + (page_u[:, None] * CHUNKS + chunk) * N + token[:, None], mask=in_bounds, other=0.0)
    half = (codes.to(tl.float32) * scale.to(tl.float32)).to(q1.dtype)
    dots = tl.dot(half, q1, input_precision="ieee")
    if K.bits2 > 0:
        codes = _codes(tiles2, at, N * K.bits2 // 8, UI, K.bits2, ROLLED, ASM)
        scale = tl.load(
            scales + g[:, None] * L + L1 + k2[None, :], mask=live[:, None] & (k2 < K.lanes2)[None, :], other=0.0
        )
        half = (codes.to(tl.float32) * scale.to(tl.float32)).to(q1.dtype)
        dots += tl.dot(half, q2, input_precision="ieee")
    x = dots * w[None, :]
    if K.mode == TOKEN:
        for c in tl.static_range(CHUNKS):
            zero = tl.load(
                keys.zero + bh * keys.scale_stride + (page_u * CHUNKS + c) * N + token, mask=live, other=0.0
            ).to(tl.float32)
            total = tl.load(query.sums + (bh * rows + r) * CHUNKS + c, mask=row_live, other=0.0)
            x += zero[:, None] * total[None, :]
    if query.zero is not None:
        x += tl.load(
            query.zero + (bh * groups + g[:, None]) * rows + r[None, :],
            mask=live[:, None] & row_live[None, :],
            other=0.0,
        )
    return x


@triton.jit
def _key_tiles(
    keys,
    K: tl.constexpr,
    page,
    start,
    pages_left,
    N: tl.constexpr,
    UI: tl.constexpr,
    F: tl.constexpr,
    ROLLED: tl.constexpr,
):
    """The packed sub-tiles of the keys, where they have any."""
    if K.mode == INT8 or K.mode == CHANNEL or K.mode == TOKEN:
        return _packed_tiles(keys, K, page, start, pages_left, N, UI, F, ROLLED, False)
    else:
        return (), ()


@triton.jit
def _span_query(query, keys, K: tl.constexpr, rows, groups, RP: tl.constexpr):
    """What of the query does not change from page to page: rows of both planes, weights and zeros."""
    w, z = tl.full((RP,), 0.0, tl.float32), tl.full((RP,), 0.0, tl.float32)
    q1, q2 = w, w
    if K.mode == INT8:
        if K.grouped == 0:
            q1, q2, w, z = _int8_query(query, keys, K, 0, rows, groups, RP)
    elif K.mode != SCORES and K.mode != NOTHING:
        q1, q2, w = _half_query(query, keys, K, rows, RP)
    return q1, q2, w, z


@triton.jit
def _tile_query(query, keys, K: tl.constexpr, q1, q2, w, z, page, rows, groups, RP: tl.constexpr):
    """The query for the pages of a tile: its group's, where pages have groups."""
    if K.mode == INT8 and (K.grouped == 1 or K.grouped == 2):
        return _int8_query(query, keys, K, _page_group(keys, K, groups, page), rows, groups, RP)
    else:
        return q1, q2, w, z


@triton.jit
def _scores(
    query, keys, K: tl.constexpr, LOGITS, tiles1, tiles2, q1, q2, w, z, at, page, page_u, token, slot, live, b, h, rows, groups, slots,
    N: tl.constexpr, UI: tl.constexpr, TU: tl.constexpr, RP: tl.constexpr, ROLLED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Logits ``[TU, RP]`` of the sub-tile whose pages begin at token ``at``, without calibration and bias."""
    bh, r, row_live = _rows(rows, RP)
    if K.mode == SCORES:
        x = tl.load(
            LOGITS + (bh * rows + r[None, :]) * slots + slot[:, None], mask=live[:, None] & row_live[None, :],
            other=-1e30,
        )  # fmt: skip
    elif K.mode == DENSE:
        x = _dense_scores(keys, K, q1, w, slot, live, ASM)
    elif K.mode == NOTHING:  # every token of a group has its zero point
        g = _group(keys, K, groups, page_u, token, live, N)
        x = tl.load(
            query.zero + (bh * groups + g[:, None]) * rows + r[None, :],
            mask=live[:, None] & row_live[None, :],
            other=0.0,
        )
    elif K.mode == INT8:
        if K.grouped == 3:  # several groups in a page
            g = page * K.groups_per_page + at // (N // K.groups_per_page)
            q1, q2, w, z = _int8_query(query, keys, K, g, rows, groups, RP)
        x = _int8_scores(query, keys, K, tiles1, tiles2, q1, q2, w, z, at, N, UI, TU, RP, ROLLED, ASM)
    else:
        x = _half_scores(
            query,
            keys,
            K,
            tiles1,
            tiles2,
            q1,
            q2,
            w,
            at,
            page,
            page_u,
            token,
            live,
            rows,
            groups,
            N,
            UI,
            RP,
            ROLLED,
            ASM,
        )
    if keys.norm is not None:
        x *= _norm(keys, b, h, slot, live)[:, None]
    return x


@triton.jit
def _bias(x, BIAS, slot, live, b, rows, queries, bias_b, bias_q, RP: tl.constexpr, BIAS_KIND: tl.constexpr):
    """What is added to logits ``x`` ``[tokens, RP]``, in units of e: 1 the same for all queries, 2 by query."""
    _, r, row_live = _rows(rows, RP)
    if BIAS_KIND == 1:
        return tl.load(BIAS + b * bias_b + slot, mask=live, other=-1e30)[:, None] + tl.zeros_like(x)
    else:
        return tl.load(
            BIAS + b * bias_b + (r % queries)[None, :] * bias_q + slot[:, None],
            mask=live[:, None] & row_live[None, :], other=-1e30,
        )  # fmt: skip
