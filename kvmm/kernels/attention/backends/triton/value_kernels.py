"""Weighted values of some tokens of one segment, whatever its values are, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from kvmm.kernels.attention.backends.triton.store_kernels import (
    CHANNEL,
    DENSE,
    INT8,
    NOTHING,
    _codes,
    _group,
    _norm,
    _packed_tiles,
    _page_group,
)


@triton.jit
def _weights(
    values, V: tl.constexpr, xs, m, b, h, page_u, start, tokens, N: tl.constexpr, UI: tl.constexpr, TU: tl.constexpr, SPAN: tl.constexpr,
    RP: tl.constexpr,
):  # fmt: skip
    """Of a tile's logits the probabilities times the tokens' factors (a tuple, by sub-tile), the sum of the bare
    probabilities, what the tokens' zero points add, and the largest of the products."""
    bh, u = tl.program_id(0).to(tl.int64), tl.arange(0, TU)
    ps = ()
    largest, total, zeros = tl.zeros((RP,), tl.float32), tl.zeros((RP,), tl.float32), tl.zeros((RP,), tl.float32)
    for o in tl.static_range(0, SPAN, UI):
        p = tl.exp2(xs[o // UI] - m[None, :])
        total += tl.sum(p, 0)
        if V.by_token or values.norm is not None:
            slot = page_u * N + start + o + u % UI
            live = slot < tokens
            if V.by_token:
                zero = tl.load(values.zero + bh * values.zero_stride + slot, mask=live, other=0.0).to(tl.float32)
                added = tl.sum(p * zero[:, None], 0)
                if o == 0:
                    zeros = added
                else:
                    zeros += added
                factor = tl.load(values.scale + bh * values.scale_stride + slot, mask=live, other=0.0).to(tl.float32)
            else:
                factor = _norm(values, b, h, slot, live)
            p *= factor[:, None]
            largest = tl.maximum(largest, tl.max(p, 0))
        ps = ps + (p,)
    if not V.by_token and values.norm is None:
        largest = tl.full((RP,), 1.0, tl.float32)
    return ps, total, zeros, tl.maximum(largest, 1e-30)


@triton.jit
def _int8_sums(
    values, V: tl.constexpr, ps, tiles1, tiles2, inverse, largest, start, N: tl.constexpr, UI: tl.constexpr, TU: tl.constexpr,
    SPAN: tl.constexpr, RP: tl.constexpr, ROLLED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Weighted codes of both planes, float32 ``[lanes, RP]``, by products of integers."""
    sum1 = tl.zeros((V.block1, 2 * RP), tl.int32)
    sum2 = tl.zeros((V.block2, 2 * RP), tl.int32)
    if V.mode == INT8:
        for o in tl.static_range(0, SPAN, UI):
            p = ps[o // UI] * (127.0 * inverse)[None, :]
            high = tl.floor(p + 0.5)
            low = tl.floor((p - high) * 254.0 + 0.5)
            pq = tl.reshape(tl.join(high, low), (TU, 2 * RP)).to(tl.int8)
            codes = _codes(tiles1, start + o, N * V.bits1 // 8, UI, V.bits1, ROLLED, ASM)
            sum1 = tl.dot(codes, pq, acc=sum1, out_dtype=tl.int32)
            if V.bits2 > 0:
                codes = _codes(tiles2, start + o, N * V.bits2 // 8, UI, V.bits2, ROLLED, ASM)
                sum2 = tl.dot(codes, pq, acc=sum2, out_dtype=tl.int32)
    factor = largest * (1.0 / (127.0 * 254.0))
    high, low = tl.split(tl.reshape(sum1, (V.block1, RP, 2)))
    product1 = (high * 254 + low).to(tl.float32) * factor[None, :]
    high, low = tl.split(tl.reshape(sum2, (V.block2, RP, 2)))
    return product1, (high * 254 + low).to(tl.float32) * factor[None, :]


@triton.jit
def _dense_sums(
    query, keys, K: tl.constexpr, values, V: tl.constexpr, ps, page_u, start, tokens, N: tl.constexpr, UI: tl.constexpr, TU: tl.constexpr,
    SPAN: tl.constexpr, RP: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Weighted values as the model made them, float32 ``[D, RP]``."""
    u, v1 = tl.arange(0, TU), tl.arange(0, V.block1)
    at = values.plane1 + tl.program_id(0).to(tl.int64) * values.stride1
    total = tl.zeros((V.block1, RP), tl.float32)
    for o in tl.static_range(0, SPAN, UI):
        slot = page_u * N + start + o + u % UI
        v = tl.load(
            at + slot[:, None] * V.lanes1 + v1[None, :],
            mask=(slot < tokens)[:, None] & (v1 < V.lanes1)[None, :], other=0.0,
        )  # fmt: skip
        if not ASM:
            total = tl.dot(tl.trans(v).to(tl.float32), ps[o // UI], acc=total)
        elif K.mode == DENSE and query.rows.dtype.element_ty == tl.float32:
            total = tl.dot(tl.trans(v).to(tl.float32), ps[o // UI], acc=total, input_precision="ieee")
        else:
            total = tl.dot(tl.trans(v), ps[o // UI].to(v.dtype), acc=total, input_precision="ieee")
    return total


@triton.jit
def _half_sums(
    values, V: tl.constexpr, ps, tiles1, tiles2, inverse, page, page_u, start, tokens, groups, N: tl.constexpr, UI: tl.constexpr,
    TU: tl.constexpr, SPAN: tl.constexpr, RP: tl.constexpr, ROLLED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Weighted values of both planes and zero points, float32 ``[lanes or zeros, RP]``, of codes times their scales in
    half precision."""
    bh, u = tl.program_id(0).to(tl.int64), tl.arange(0, TU)
    v1, v2, vd = tl.arange(0, V.block1), tl.arange(0, V.block2), tl.arange(0, V.zero_block)
    L1: tl.constexpr = V.padded_lanes1
    L: tl.constexpr = L1 + V.padded_lanes2
    CHUNKS: tl.constexpr = V.channel_groups
    scales, zeros = values.scale + bh * values.scale_stride, values.zero + bh * values.zero_stride
    sum1 = tl.zeros((V.block1, RP), tl.float32)
    sum2 = tl.zeros((V.block2, RP), tl.float32)
    sumz = tl.zeros((V.zero_block, RP), tl.float32)
    for o in tl.static_range(0, SPAN, UI):
        token = start + o + u % UI
        live = page_u * N + token < tokens
        pq = (ps[o // UI] * inverse[None, :]).to(tl.float16)
        codes = _codes(tiles1, start + o, N * V.bits1 // 8, UI, V.bits1, ROLLED, ASM).to(tl.float32)
        in_bounds = live[None, :] & (v1 < V.lanes1)[:, None]
        if V.mode == CHANNEL:
            g = _group(values, V, groups, page_u, token, live, N)
            scale = tl.load(scales + g[None, :] * L + v1[:, None], mask=in_bounds, other=0.0)
            sum1 = tl.dot((codes * scale.to(tl.float32)).to(tl.float16), pq, acc=sum1)
            zero = tl.load(
                zeros + g[None, :] * V.zeros + vd[:, None], mask=live[None, :] & (vd < V.zeros)[:, None],
                other=0.0,
            )  # fmt: skip
            sumz = tl.dot(zero.to(tl.float16), pq, acc=sumz)
            if V.bits2 > 0:
                codes = _codes(tiles2, start + o, N * V.bits2 // 8, UI, V.bits2, ROLLED, ASM).to(tl.float32)
                scale = tl.load(
                    scales + g[None, :] * L + L1 + v2[:, None],
                    mask=live[None, :] & (v2 < V.lanes2)[:, None], other=0.0,
                )  # fmt: skip
                sum2 = tl.dot((codes * scale.to(tl.float32)).to(tl.float16), pq, acc=sum2)
        else:
            at = (page_u[None, :] * CHUNKS + (v1 // (V.lanes1 // CHUNKS))[:, None]) * N + token[None, :]
            scale = tl.load(scales + at, mask=in_bounds, other=0.0).to(tl.float32)
            zero = tl.load(zeros + at, mask=in_bounds, other=0.0).to(tl.float32)
            sum1 = tl.dot((codes * scale + zero).to(tl.float16), pq, acc=sum1)
    return sum1, sum2, sumz


@triton.jit
def _group_levels(values, V: tl.constexpr, product1, product2, page, groups):
    """Weighted codes times the scales of the page's group, and its zero point."""
    bh = tl.program_id(0).to(tl.int64)
    v1, v2, vd = tl.arange(0, V.block1), tl.arange(0, V.block2), tl.arange(0, V.zero_block)
    L1: tl.constexpr = V.padded_lanes1
    g = _page_group(values, V, groups, page)
    at = values.scale + bh * values.scale_stride + g * (L1 + V.padded_lanes2)
    product1 *= tl.load(at + v1, mask=v1 < V.lanes1, other=0.0).to(tl.float32)[:, None]
    if V.bits2 > 0:
        product2 *= tl.load(at + L1 + v2, mask=v2 < V.lanes2, other=0.0).to(tl.float32)[:, None]
    at = values.zero + bh * values.zero_stride + g * V.zeros
    return product1, product2, tl.load(at + vd, mask=vd < V.zeros, other=0.0).to(tl.float32)


@triton.jit
def _sum_of(ps, COUNT: tl.constexpr, RP: tl.constexpr):
    """The sum ``[RP]`` of a tuple's elements over tokens."""
    weight = tl.zeros((RP,), tl.float32)
    for i in tl.static_range(COUNT):
        weight += tl.sum(ps[i], 0)
    return weight


@triton.jit
def _add_values(
    query, keys, K: tl.constexpr, values, V: tl.constexpr, ps, total, zeros, largest, rescale, acc1, acc2, accz, page, page_u, pages_left, start, tokens, groups,
    N: tl.constexpr, UI: tl.constexpr, F: tl.constexpr, SPAN: tl.constexpr, RP: tl.constexpr, ROLLED: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """The sums of both planes' lanes and of zero points, with those of a tile."""
    TU: tl.constexpr = F * UI
    vd = tl.arange(0, V.zero_block)
    inverse = 1.0 / largest
    tiles1, tiles2 = (), ()
    if V.mode != DENSE and V.mode != NOTHING:
        tiles1, tiles2 = _packed_tiles(values, V, page, start, pages_left, N, UI, F, ROLLED, True)
    if V.mode == INT8 or V.mode == NOTHING:
        product1, product2 = _int8_sums(
            values, V, ps, tiles1, tiles2, inverse, largest, start, N, UI, TU, SPAN, RP, ROLLED, ASM
        )
        if V.by_token:
            accz = accz * rescale[None, :] + tl.where((vd == 0)[:, None], zeros[None, :], 0.0)
        elif V.grouped > 0:  # groups of whole pages, a page at a time
            product1, product2, zero = _group_levels(values, V, product1, product2, page, groups)
            weight = total
            if values.norm is not None:
                weight = _sum_of(ps, SPAN // UI, RP)
            accz = accz * rescale[None, :] + zero[:, None] * weight[None, :]
        elif values.norm is not None:  # the zero point of a span meets the sum of probabilities times norms
            weight = _sum_of(ps, SPAN // UI, RP)
            accz = accz * rescale[None, :] + tl.where((vd == 0)[:, None], weight[None, :], 0.0)
    elif V.mode == DENSE:
        product1 = _dense_sums(query, keys, K, values, V, ps, page_u, start, tokens, N, UI, TU, SPAN, RP, ASM)
        product2 = acc2
    else:
        product1, product2, sumz = _half_sums(
            values,
            V,
            ps,
            tiles1,
            tiles2,
            inverse,
            page,
            page_u,
            start,
            tokens,
            groups,
            N,
            UI,
            TU,
            SPAN,
            RP,
            ROLLED,
            ASM,
        )
        product1 *= largest[None, :]
        product2 *= largest[None, :]
        if V.mode == CHANNEL:
            accz = accz * rescale[None, :] + sumz * largest[None, :]
    acc1 = acc1 * rescale[None, :] + product1
    if V.bits2 > 0:
        acc2 = acc2 * rescale[None, :] + product2
    return acc1, acc2, accz
