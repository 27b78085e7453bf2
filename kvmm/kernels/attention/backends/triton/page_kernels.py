"""Decode attention in Triton, the pages: each split reads some pages of one segment.

``query_kernels`` transforms the queries and folds in the channels' scales once per group of tokens (CalibQuant's
post-scaling, arXiv 2502.14882, for any group); ``reduce_kernels`` merges the splits by their log-sum-exp. Codes are the
left operand of the tensor cores, so that few query rows waste no work; one shift and one mask unpack bytes to operands.

In int8 mode the query is two int8 numbers (a high and a low part, 15 bits together), and so are the probabilities; the
products are exact integers. In half mode, for many rows of queries (chunked prefill, a second turn, drafts) and for
scales that int8 cannot fold, codes are multiplied by their scale in registers and the products are in half precision.

A byte holds codes of several tokens, so a tile of pages is several sub-tiles, one per row of bytes and bit position. Few rows of queries take all of them at once, from bytes that were loaded once. Many (``ROLLED``) take
one after the other: logits of all of them would not fit the registers, and unrolled code takes seconds to compile.

Logits are in units of log 2 throughout: ``exp2`` is what the hardware has.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvmm.kernels.attention.backends.triton.score_kernels import (
    LOG2E,
    _bias,
    _key_tiles,
    _scores,
    _span_query,
    _tile_query,
)
from kvmm.kernels.attention.backends.triton.store_kernels import _rows, _tiles
from kvmm.kernels.attention.backends.triton.value_kernels import _add_values, _weights


@triton.jit
def _store_split(M, L, ACC, ZERO, V: tl.constexpr, m, l, acc1, acc2, accz, bh, num_kv_splits, rows, r, row_live):
    """Store the result of this program's split, all of it float32.

    Maximum ``m`` and sum ``l`` ``[RP]`` of query rows ``r``, of which those not in ``row_live`` pad the block, the sums
    of either plane's lanes and of zero points ``[block, RP]``.
    """
    VQ1: tl.constexpr = V.padded_lanes1
    VQ: tl.constexpr = VQ1 + V.padded_lanes2
    v1, v2, vd = tl.arange(0, V.block1), tl.arange(0, V.block2), tl.arange(0, V.zero_block)
    at = (bh * num_kv_splits + tl.program_id(1)) * rows + r
    tl.store(M + at, m, mask=row_live)
    tl.store(L + at, l, mask=row_live)
    if VQ > 0:
        tl.store(ACC + at[None, :] * VQ + v1[:, None], acc1, mask=row_live[None, :] & (v1 < VQ1)[:, None])
    if V.bits2 > 0:
        tl.store(ACC + at[None, :] * VQ + VQ1 + v2[:, None], acc2, mask=row_live[None, :] & (v2 < VQ - VQ1)[:, None])
    if V.zeros > 0:
        tl.store(ZERO + at[None, :] * V.zeros + vd[:, None], accz, mask=row_live[None, :] & (vd < V.zeros)[:, None])


@triton.jit(
    do_not_specialize=["H", "rows", "queries", "kgroups", "vgroups", "pages", "num_kv_splits", "bias_b", "bias_q"]
)
def attention_kernel(
    query, keys, K: tl.constexpr, values, V: tl.constexpr, BIAS, HIDDEN, LOGITS, CALIBRATION, USED, M, L, ACC, ZERO,
    H, rows, queries, kgroups, vgroups, pages, num_kv_splits, slots, bias_b, bias_q,
    N: tl.constexpr, UI: tl.constexpr, F: tl.constexpr, RP: tl.constexpr, BIAS_KIND: tl.constexpr,
    IN_TOKENS: tl.constexpr, ROLLED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Attention of ``RP`` query rows over some of the pages of one segment: maximum, sum and weighted lanes.

    Tiles are ``F`` pages times ``UI`` tokens: as many consecutive tokens as every plane of keys and values has in one
    bit position. ``query`` is a :class:`Query`, ``keys`` and ``values`` are :class:`Store`. ``M`` and ``L`` float32
    ``[B * H, num_kv_splits, rows]``, ``ACC`` ``[B * H, num_kv_splits, rows, VQ]`` in lanes of the values, ``ZERO``
    ``[B * H, num_kv_splits, rows, zeros]``, the part of the zero points. ``CALIBRATION`` ``[B * H, rows, 2]`` is the slope
    and shift of each row's logits. ``HIDDEN`` uint8 ``[B * H, slots]`` is 1 for tokens that are read elsewhere.
    """
    TU: tl.constexpr = F * UI
    SPAN: tl.constexpr = UI if ROLLED else N  # tokens of each of its pages that a tile takes at once
    bh, r, row_live = _rows(rows, RP)
    b, h = bh // H, bh % H
    u = tl.arange(0, TU)
    tokens = pages
    if USED is not None:
        tokens = tl.load(USED)
    if not IN_TOKENS:
        tokens = tokens * N
    first, last = _tiles(tokens, num_kv_splits, F * N, N // SPAN)
    q1, q2, w, z = _span_query(query, keys, K, rows, kgroups, RP)
    if CALIBRATION is not None:
        slope = tl.load(CALIBRATION + (bh * rows + r) * 2, mask=row_live, other=1.0)
        shift = tl.load(CALIBRATION + (bh * rows + r) * 2 + 1, mask=row_live, other=0.0)
    m, l = tl.full((RP,), -1e30, tl.float32), tl.zeros((RP,), tl.float32)
    acc1 = tl.zeros((V.block1, RP), tl.float32)
    acc2 = tl.zeros((V.block2, RP), tl.float32)
    accz = tl.zeros((V.zero_block, RP), tl.float32)

    for tile in range(first, last):
        page = bh * 0 + tile // (N // SPAN) * F  # 64 bits wide
        if ROLLED:
            start = tile % (N // SPAN) * SPAN
        else:
            start: tl.constexpr = 0
        pages_left = (tokens + N - 1) // N - page
        page_u = page + u // UI
        tiles1, tiles2 = _key_tiles(keys, K, page, start, pages_left, N, UI, F, ROLLED)
        p1, p2, pw, pz = _tile_query(query, keys, K, q1, q2, w, z, page, rows, kgroups, RP)
        xs = ()
        new_m = m
        for o in tl.static_range(0, SPAN, UI):
            token = start + o + u % UI
            slot = page_u * N + token
            live = slot < tokens
            x = _scores(
                query, keys, K, LOGITS, tiles1, tiles2, p1, p2, pw, pz, start + o, page, page_u, token, slot, live, b, h, rows,
                kgroups, slots, N, UI, TU, RP, ROLLED, ASM,
            )  # fmt: skip
            if CALIBRATION is not None:
                x = x * slope[None, :] + shift[None, :]
            if BIAS_KIND > 0:
                x += _bias(x, BIAS, slot, live, b, rows, queries, bias_b, bias_q, RP, BIAS_KIND) * LOG2E
            if HIDDEN is not None:
                hidden = tl.load(HIDDEN + bh * slots + slot, mask=live, other=0)
                x = tl.where(hidden[:, None] != 0, -1e30, x)
            if F > 1 or IN_TOKENS:
                x = tl.where(live[:, None], x, -1e30)
            new_m = tl.maximum(new_m, tl.max(x, 0))
            xs = xs + (x,)
        rescale = tl.exp2(m - new_m)
        m = new_m
        l *= rescale
        ps, total, zeros, largest = _weights(values, V, xs, m, b, h, page_u, start, tokens, N, UI, TU, SPAN, RP)
        l += total
        acc1, acc2, accz = _add_values(
            query, keys, K, values, V, ps, total, zeros, largest, rescale, acc1, acc2, accz, page, page_u, pages_left, start, tokens,
            vgroups, N, UI, F, SPAN, RP, ROLLED, ASM,
        )  # fmt: skip

    _store_split(M, L, ACC, ZERO, V, m, l, acc1, acc2, accz, bh, num_kv_splits, rows, r, row_live)


@triton.jit(do_not_specialize=["H", "rows", "queries", "kgroups", "pages", "num_kv_splits", "bias_b", "bias_q"])
def logit_kernel(
    query, keys, K: tl.constexpr, BIAS, LOGITS, USED, M, L,
    H, rows, queries, kgroups, pages, num_kv_splits, slots, bias_b, bias_q,
    N: tl.constexpr, UI: tl.constexpr, F: tl.constexpr, RP: tl.constexpr, BIAS_KIND: tl.constexpr,
    ROLLED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Logits of ``RP`` query rows over some of the pages of one segment, before their calibration.

    They go to ``LOGITS`` ``[B * H, rows, slots]`` without bias; their maximum (with it) and minimum to ``M`` and ``L``
    ``[B * H, num_kv_splits, rows]``. The other arguments as of :func:`attention_kernel`.
    """
    TU: tl.constexpr = F * UI
    SPAN: tl.constexpr = UI if ROLLED else N
    bh, r, row_live = _rows(rows, RP)
    b, h = bh // H, bh % H
    u = tl.arange(0, TU)
    tokens = pages
    if USED is not None:
        tokens = tl.load(USED)
    tokens = tokens * N
    first, last = _tiles(tokens, num_kv_splits, F * N, N // SPAN)
    q1, q2, w, z = _span_query(query, keys, K, rows, kgroups, RP)
    highest, lowest = tl.full((RP,), -1e30, tl.float32), tl.full((RP,), float("inf"), tl.float32)

    for tile in range(first, last):
        page = bh * 0 + tile // (N // SPAN) * F
        if ROLLED:
            start = tile % (N // SPAN) * SPAN
        else:
            start: tl.constexpr = 0
        pages_left = (tokens + N - 1) // N - page
        page_u = page + u // UI
        tiles1, tiles2 = _key_tiles(keys, K, page, start, pages_left, N, UI, F, ROLLED)
        p1, p2, pw, pz = _tile_query(query, keys, K, q1, q2, w, z, page, rows, kgroups, RP)
        for o in tl.static_range(0, SPAN, UI):
            token = start + o + u % UI
            slot = page_u * N + token
            live = slot < tokens
            x = _scores(
                query, keys, K, LOGITS, tiles1, tiles2, p1, p2, pw, pz, start + o, page, page_u, token, slot, live, b, h, rows,
                kgroups, slots, N, UI, TU, RP, ROLLED, ASM,
            )  # fmt: skip
            at = LOGITS + (bh * rows + r[None, :]) * slots + slot[:, None]
            tl.store(at, x, mask=live[:, None] & row_live[None, :])
            if BIAS_KIND > 0:
                added = _bias(x, BIAS, slot, live, b, rows, queries, bias_b, bias_q, RP, BIAS_KIND)
                seen = live[:, None] & (added > -1e20)
                lowest = tl.minimum(lowest, tl.min(tl.where(seen, x, float("inf")), 0))
                x += added * LOG2E
            else:
                lowest = tl.minimum(lowest, tl.min(tl.where(live[:, None], x, float("inf")), 0))
            if F > 1:
                x = tl.where(live[:, None], x, -1e30)
            highest = tl.maximum(highest, tl.max(x, 0))

    at = (bh * num_kv_splits + tl.program_id(1)) * rows + r
    tl.store(M + at, highest, mask=row_live)
    tl.store(L + at, lowest, mask=row_live)
