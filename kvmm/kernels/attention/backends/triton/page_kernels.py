"""Decode attention in Triton, the pages: every split reads the packed codes of some pages of one store.

Queries come from :mod:`kvmm.kernels.attention.backends.triton.query_kernels` in the basis of the keys, with the channels' scales folded in
once a group of tokens (CalibQuant's post-scaling, arXiv 2502.14882, for any group);
:mod:`kvmm.kernels.attention.backends.triton.reduce_kernels` joins the splits by their log-sum-exp. Codes are the left operand of the tensor
cores, so that a few query rows waste nothing, and one shift and one mask turn packed bytes into operands.

In int8 mode the query is two int8 numbers (a high and a low part, 15 bits together), and so are the probabilities; the
products are exact integers. In half mode, for many rows of queries (chunked prefill, a second turn, drafts) and for
scales that int8 cannot fold, codes are multiplied by their scale in registers and the products are in half precision.

A byte holds codes of several tokens, so a tile of pages is several sub-tiles, one for each row of bytes and each place
of bits in them. Few rows of queries take all of them at once, from bytes that were loaded once. Many (``ROLLED``) take
one after the other: logits of all of them would not fit the registers, and unrolled code takes seconds to compile.

Logits are in units of log 2 throughout: ``exp2`` is what the hardware has.
"""

from __future__ import annotations

import triton
import triton.language as tl

# How keys or values are stored.
SCORES = tl.constexpr(0)  # keys: logits were computed by another kernel
INT8 = tl.constexpr(1)  # digits, scales folded into the query or the probabilities
CHANNEL = tl.constexpr(2)  # digits times a scale a channel, in half precision
TOKEN = tl.constexpr(3)  # digits times a scale a token and group of channels, in half precision
DENSE = tl.constexpr(4)  # float16, bfloat16 or float32
NOTHING = tl.constexpr(5)  # no digits: every token has the zero point

EMPTY = tl.constexpr(-1e30)  # log2 of the weight of a slot that holds no token

_AND = tl.constexpr(
    {
        1: "and.b32 $0, $1, 0x01010101;",
        2: "and.b32 $0, $1, 0x03030303;",
        4: "and.b32 $0, $1, 0x0f0f0f0f;",
    }
)
_SHIFT_AND = tl.constexpr(
    {
        (bits, shift): f"{{ .reg .b32 t; shr.u32 t, $1, {shift}; and.b32 $0, t, {mask:#010x}; }}"
        for bits, mask in ((1, 0x01010101), (2, 0x03030303), (4, 0x0F0F0F0F))
        for shift in range(bits, 8, bits)
    }
)
_SHIFT_BY_AND = tl.constexpr(
    {
        bits: f"{{ .reg .b32 t; shr.u32 t, $1, $2; and.b32 $0, t, {mask:#010x}; }}"
        for bits, mask in ((1, 0x01010101), (2, 0x03030303), (4, 0x0F0F0F0F))
    }
)


@triton.jit
def _plane(packed, SHIFT: tl.constexpr, BITS: tl.constexpr, ASM: tl.constexpr):
    """The codes in bits ``SHIFT`` to ``SHIFT + BITS - 1`` of every byte, int8 (uint8 if they fill the byte)."""
    if BITS == 8:
        return packed
    elif not ASM:  # the interpreter has no assembler
        return ((packed >> SHIFT) & ((1 << BITS) - 1)).to(tl.int8)
    elif SHIFT == 0:  # four codes an instruction
        return tl.inline_asm_elementwise(_AND[BITS], "=r,r", [packed], dtype=tl.int8, is_pure=True, pack=4)
    else:
        return tl.inline_asm_elementwise(_SHIFT_AND[BITS, SHIFT], "=r,r", [packed], dtype=tl.int8, is_pure=True, pack=4)


@triton.jit
def _plane_at(packed, shift, BITS: tl.constexpr, ASM: tl.constexpr):
    """:func:`_plane` of a ``shift`` known at run time only."""
    if BITS == 8:
        return packed
    elif not ASM:
        return ((packed >> shift.to(tl.uint8)) & ((1 << BITS) - 1)).to(tl.int8)
    else:  # of the registers with a shift for each of the four codes, which is the same, the first one
        return tl.inline_asm_elementwise(
            _SHIFT_BY_AND[BITS], "=r,r,r,r,r,r", [packed, shift], dtype=tl.int8, is_pure=True, pack=4
        )


@triton.jit
def _codes(
    planes, token, ROWS: tl.constexpr, UI: tl.constexpr, BITS: tl.constexpr, ROLLED: tl.constexpr, ASM: tl.constexpr
):
    """Codes of the sub-tile whose pages begin at ``token``, of the packed sub-tiles ``planes``."""
    if ROLLED:
        return _plane_at(planes[0], token // ROWS * BITS, BITS, ASM)
    else:
        return _plane(planes[token % ROWS // UI], token // ROWS * BITS, BITS, ASM)


@triton.jit
def _load_plane(
    base, T, ROWS: tl.constexpr, UI: tl.constexpr, F: tl.constexpr, J: tl.constexpr, JP: tl.constexpr,
    TRANSPOSED: tl.constexpr, page_stride, pages,
):  # fmt: skip
    """One sub-tile of packed bytes of ``F`` pages: ``[F * UI, JP]``, or ``[JP, F * UI]`` of values."""
    u, j = tl.arange(0, F * UI), tl.arange(0, JP)
    page, row = u // UI, T * UI + u % UI
    if TRANSPOSED:
        at = (page * page_stride + row)[None, :] + (j * ROWS)[:, None]
        if F == 1 and J == JP:
            return tl.load(base + at)
        return tl.load(base + at, mask=(page < pages)[None, :] & (j < J)[:, None], other=0)
    else:
        at = (page * page_stride + row * J)[:, None] + j[None, :]
        if F == 1 and J == JP:
            return tl.load(base + at)
        return tl.load(base + at, mask=(page < pages)[:, None] & (j < J)[None, :], other=0)


@triton.jit(do_not_specialize=["H", "rows", "queries", "kgroups", "vgroups", "pages", "splits", "bias_b", "bias_q"])
def split_kernel(
    Q, QW, QZ, QS, K1, K2, KSCALE, KZERO, KGROUP, KNORM, BIAS, LOGITS, ADJUST,
    V1, V2, VSCALE, VZERO, VGROUP, VNORM, USED,
    M, L, ACC, ZERO,
    H, rows, queries, kgroups, vgroups, pages, splits, slots, bias_b, bias_q, k1_bh, k2_bh, kscale_bh, knorm_b, knorm_h,
    v1_bh, v2_bh, vscale_bh, vzero_bh, vnorm_b, vnorm_h,
    N: tl.constexpr, UI: tl.constexpr, F: tl.constexpr, RP: tl.constexpr,
    KMODE: tl.constexpr, KB1: tl.constexpr, KB2: tl.constexpr, KJ1: tl.constexpr, KJ2: tl.constexpr,
    KP1: tl.constexpr, KP2: tl.constexpr, INSIDE: tl.constexpr, KGROUPED: tl.constexpr,
    CHUNKS: tl.constexpr, HAS_QZ: tl.constexpr, HAS_KNORM: tl.constexpr,
    VMODE: tl.constexpr, VB1: tl.constexpr, VB2: tl.constexpr, VJ1: tl.constexpr, VJ2: tl.constexpr,
    VP1: tl.constexpr, VP2: tl.constexpr, VDZ: tl.constexpr, VDP: tl.constexpr,
    VINSIDE: tl.constexpr, VGROUPED: tl.constexpr, VTOKEN: tl.constexpr, VCHUNKS: tl.constexpr,
    HAS_VNORM: tl.constexpr,
    BIAS_KIND: tl.constexpr, HAS_USED: tl.constexpr, HAS_ADJUST: tl.constexpr, WRITE_LOGITS: tl.constexpr,
    IN_TOKENS: tl.constexpr, ROLLED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Attention of ``RP`` query rows over some of the pages of one store: maximum, sum and weighted digits.

    Tiles are ``F`` pages times ``UI`` tokens: as many consecutive tokens as every plane of keys and values has in one
    bit position. ``M`` and ``L`` float32 ``[B * H, splits, rows]``, ``ACC`` ``[B * H, splits, rows, VQ]`` in digits of
    the values, ``ZERO`` ``[B * H, splits, rows, VDZ]`` what zero points add. With ``WRITE_LOGITS`` only the logits are
    written, ``[B * H, rows, slots]``, and their maximum and minimum to ``M`` and ``L``.
    """
    LOG2E: tl.constexpr = 1.4426950408889634
    KQ1: tl.constexpr = (KJ1 + 31) // 32 * 32  # columns of the first plane in the query, where the second starts
    KQ: tl.constexpr = KQ1 + (KJ2 + 31) // 32 * 32
    VQ1: tl.constexpr = (VJ1 + 31) // 32 * 32
    VQ: tl.constexpr = VQ1 + (VJ2 + 31) // 32 * 32
    TU: tl.constexpr = F * UI
    KROWS1: tl.constexpr = N * KB1 // 8
    KROWS2: tl.constexpr = N * KB2 // 8
    VROWS1: tl.constexpr = N * VB1 // 8
    VROWS2: tl.constexpr = N * VB2 // 8
    VINT: tl.constexpr = VMODE == INT8 or VMODE == NOTHING
    SPAN: tl.constexpr = UI if ROLLED else N  # tokens of each of its pages that a tile takes at once
    KTILES1: tl.constexpr = 1 if ROLLED else KROWS1 // UI  # packed sub-tiles that those lie in
    KTILES2: tl.constexpr = 1 if ROLLED else KROWS2 // UI
    VTILES1: tl.constexpr = 1 if ROLLED else VROWS1 // UI
    VTILES2: tl.constexpr = 1 if ROLLED else VROWS2 // UI
    bh, sp = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = bh // H, bh % H
    r = tl.program_id(2) * RP + tl.arange(0, RP)
    row_live = r < rows
    u = tl.arange(0, TU)
    k1, k2, v1, v2 = tl.arange(0, KP1), tl.arange(0, KP2), tl.arange(0, VP1), tl.arange(0, VP2)
    vd = tl.arange(0, VDP)

    tokens = pages
    if HAS_USED:
        tokens = tl.load(USED)
    if not IN_TOKENS:
        tokens = tokens * N
    tiles = (tokens + F * N - 1) // (F * N) * (N // SPAN)
    share = (tiles + splits - 1) // splits
    first, last = sp * share, tl.minimum(sp * share + share, tiles)

    # queries: columns of the right operand
    w, z = tl.full((RP,), 0.0, tl.float32), tl.full((RP,), 0.0, tl.float32)
    if KMODE == INT8:
        c = tl.program_id(2) * 2 * RP + tl.arange(0, 2 * RP)
        q1_at = Q + bh * kgroups * rows * 2 * KQ + c[None, :] * KQ + k1[:, None]
        q1_live = (c < 2 * rows)[None, :] & (k1 < KQ1)[:, None]
        q2_at = Q + bh * kgroups * rows * 2 * KQ + c[None, :] * KQ + KQ1 + k2[:, None]
        q2_live = (c < 2 * rows)[None, :] & (k2 < KQ - KQ1)[:, None]
        if KGROUPED == 0:
            q1 = tl.load(q1_at, mask=q1_live, other=0)
            if KB2 > 0:
                q2 = tl.load(q2_at, mask=q2_live, other=0)
            w = tl.load(QW + bh * rows + r, mask=row_live, other=0.0)
            if HAS_QZ:
                z = tl.load(QZ + bh * rows + r, mask=row_live, other=0.0)
    elif KMODE == NOTHING:
        w = tl.zeros((RP,), tl.float32)
    elif KMODE != SCORES:
        q1 = tl.load(
            Q + (bh * rows + r[None, :]) * KQ + k1[:, None], mask=row_live[None, :] & (k1 < KQ1)[:, None], other=0.0
        )
        if KMODE == DENSE:
            q1 = tl.load(
                Q + (bh * rows + r[None, :]) * KJ1 + k1[:, None],
                mask=row_live[None, :] & (k1 < KJ1)[:, None],
                other=0.0,
            )
        if KB2 > 0:
            q2 = tl.load(
                Q + (bh * rows + r[None, :]) * KQ + KQ1 + k2[:, None],
                mask=row_live[None, :] & (k2 < KQ - KQ1)[:, None], other=0.0,
            )  # fmt: skip
        w = tl.load(QW + bh * rows + r, mask=row_live, other=0.0)
    if HAS_ADJUST:
        slope = tl.load(ADJUST + (bh * rows + r) * 2, mask=row_live, other=1.0)
        shift = tl.load(ADJUST + (bh * rows + r) * 2 + 1, mask=row_live, other=0.0)

    m, l = tl.full((RP,), -1e30, tl.float32), tl.zeros((RP,), tl.float32)
    lowest = tl.full((RP,), float("inf"), tl.float32)
    acc1 = tl.zeros((VP1, RP), tl.float32)
    acc2 = tl.zeros((VP2, RP), tl.float32)
    accz = tl.zeros((VDP, RP), tl.float32)

    for tile in range(first, last):
        page0 = bh * 0 + tile // (N // SPAN) * F  # 64 bits wide
        if ROLLED:
            start = tile % (N // SPAN) * SPAN
        else:
            start: tl.constexpr = 0
        pages_left = (tokens + N - 1) // N - page0
        page_u = page0 + u // UI

        # logits [TU, RP] of every sub-tile
        if KMODE == INT8 or KMODE == CHANNEL or KMODE == TOKEN:
            ks1 = ()
            for T in tl.static_range(KTILES1):
                ks1 = ks1 + (
                    _load_plane(K1 + bh * k1_bh + page0 * KROWS1 * KJ1, T + start % KROWS1 // UI, KROWS1, UI, F, KJ1, KP1, False,
                                KROWS1 * KJ1, pages_left),
                )  # fmt: skip
            if KB2 > 0:
                ks2 = ()
                for T in tl.static_range(KTILES2):
                    ks2 = ks2 + (
                        _load_plane(K2 + bh * k2_bh + page0 * KROWS2 * KJ2, T + start % KROWS2 // UI, KROWS2, UI, F, KJ2, KP2, False,
                                    KROWS2 * KJ2, pages_left),
                    )  # fmt: skip
        if KMODE == INT8 and (KGROUPED == 1 or KGROUPED == 2):
            g = page0
            if KGROUPED == 2:
                g = tl.load(KGROUP + page0).to(tl.int64)
                g = tl.where(g < 0, g + kgroups, g)
            q1 = tl.load(q1_at + g * rows * 2 * KQ, mask=q1_live, other=0)
            if KB2 > 0:
                q2 = tl.load(q2_at + g * rows * 2 * KQ, mask=q2_live, other=0)
            w = tl.load(QW + (bh * kgroups + g) * rows + r, mask=row_live, other=0.0)
            if HAS_QZ:
                z = tl.load(QZ + (bh * kgroups + g) * rows + r, mask=row_live, other=0.0)

        xs = ()
        top = m
        for o in tl.static_range(0, SPAN, UI):
            token = start + o + u % UI
            slot = page_u * N + token
            live = slot < tokens
            if KMODE == SCORES:
                x = tl.load(
                    LOGITS + (bh * rows + r[None, :]) * slots + slot[:, None],
                    mask=live[:, None] & row_live[None, :], other=-1e30,
                )  # fmt: skip
            elif KMODE == DENSE:
                k = tl.load(
                    K1 + bh * k1_bh + slot[:, None] * KJ1 + k1[None, :],
                    mask=live[:, None] & (k1 < KJ1)[None, :], other=0.0,
                )  # fmt: skip
                if not ASM and k.dtype == tl.bfloat16:  # the interpreter knows no bf16
                    x = tl.dot(k.to(tl.float32), q1.to(tl.float32)) * w[None, :]
                else:
                    x = tl.dot(k.to(q1.dtype), q1, input_precision="ieee") * w[None, :]
            elif KMODE == NOTHING:
                g = tl.zeros_like(page_u)
                if KGROUPED == 2:
                    g = tl.load(KGROUP + page_u, mask=live, other=0).to(tl.int64)
                    g = tl.where(g < 0, g + kgroups, g)
                x = tl.load(
                    QZ + (bh * kgroups + g[:, None]) * rows + r[None, :],
                    mask=live[:, None] & row_live[None, :], other=0.0,
                )  # fmt: skip
            else:
                s1 = _codes(ks1, start + o, KROWS1, UI, KB1, ROLLED, ASM)
                if KMODE == INT8:
                    if KGROUPED == 3:  # several groups in a page
                        g = page0 * INSIDE + (start + o) // (N // INSIDE)
                        q1 = tl.load(q1_at + g * rows * 2 * KQ, mask=q1_live, other=0)
                        w = tl.load(QW + (bh * kgroups + g) * rows + r, mask=row_live, other=0.0)
                        if HAS_QZ:
                            z = tl.load(QZ + (bh * kgroups + g) * rows + r, mask=row_live, other=0.0)
                    dots = tl.dot(s1, q1, out_dtype=tl.int32)
                    if KB2 > 0:
                        s2 = _codes(ks2, start + o, KROWS2, UI, KB2, ROLLED, ASM)
                        dots = tl.dot(s2, q2, acc=dots, out_dtype=tl.int32)
                    high, low = tl.split(tl.reshape(dots, (TU, RP, 2)))
                    x = (high * 254 + low).to(tl.float32) * w[None, :]
                    if HAS_QZ:
                        x += z[None, :]
                else:
                    g = page_u
                    if KGROUPED == 0:
                        g = tl.zeros_like(page_u)
                    elif KGROUPED == 2:
                        g = tl.load(KGROUP + page_u, mask=live, other=0).to(tl.int64)
                        g = tl.where(g < 0, g + kgroups, g)
                    elif KGROUPED == 3:
                        g = page_u * INSIDE + token // (N // INSIDE)
                    if KMODE == CHANNEL:
                        scale = tl.load(
                            KSCALE + bh * kscale_bh + g[:, None] * KQ + k1[None, :],
                            mask=live[:, None] & (k1 < KJ1)[None, :], other=0.0,
                        )  # fmt: skip
                    else:
                        scale = tl.load(
                            KSCALE + bh * kscale_bh + (page_u[:, None] * CHUNKS + (k1 // (KJ1 // CHUNKS))[None, :]) * N
                            + token[:, None],
                            mask=live[:, None] & (k1 < KJ1)[None, :], other=0.0,
                        )  # fmt: skip
                    half = (s1.to(tl.float32) * scale.to(tl.float32)).to(q1.dtype)
                    dots = tl.dot(half, q1, input_precision="ieee")
                    if KB2 > 0:
                        s2 = _codes(ks2, start + o, KROWS2, UI, KB2, ROLLED, ASM)
                        scale = tl.load(
                            KSCALE + bh * kscale_bh + g[:, None] * KQ + KQ1 + k2[None, :],
                            mask=live[:, None] & (k2 < KJ2)[None, :], other=0.0,
                        )  # fmt: skip
                        half = (s2.to(tl.float32) * scale.to(tl.float32)).to(q1.dtype)
                        dots += tl.dot(half, q2, input_precision="ieee")
                    x = dots * w[None, :]
                    if KMODE == TOKEN:
                        for c in tl.static_range(CHUNKS):
                            zero = tl.load(
                                KZERO + bh * kscale_bh + (page_u * CHUNKS + c) * N + token, mask=live, other=0.0
                            ).to(tl.float32)
                            total = tl.load(QS + (bh * rows + r) * CHUNKS + c, mask=row_live, other=0.0)
                            x += zero[:, None] * total[None, :]
                    if HAS_QZ:
                        x += tl.load(
                            QZ + (bh * kgroups + g[:, None]) * rows + r[None, :],
                            mask=live[:, None] & row_live[None, :], other=0.0,
                        )  # fmt: skip
            if HAS_KNORM:
                norm = tl.load(KNORM + b * knorm_b + h * knorm_h + slot, mask=live, other=0.0).to(tl.float32)
                x *= norm[:, None]
            if WRITE_LOGITS:
                tl.store(
                    LOGITS + (bh * rows + r[None, :]) * slots + slot[:, None], x, mask=live[:, None] & row_live[None, :]
                )
            if HAS_ADJUST:
                x = x * slope[None, :] + shift[None, :]
            if BIAS_KIND > 0:
                if BIAS_KIND == 1:  # the same for all queries
                    added = tl.load(BIAS + b * bias_b + slot, mask=live, other=-1e30)[:, None] + tl.zeros_like(x)
                else:
                    added = tl.load(
                        BIAS + b * bias_b + (r % queries)[None, :] * bias_q + slot[:, None],
                        mask=live[:, None] & row_live[None, :], other=-1e30,
                    )  # fmt: skip
                if WRITE_LOGITS:
                    lowest = tl.minimum(lowest, tl.min(tl.where(live[:, None] & (added > -1e20), x, float("inf")), 0))
                x += added * LOG2E
            elif WRITE_LOGITS:
                lowest = tl.minimum(lowest, tl.min(tl.where(live[:, None], x, float("inf")), 0))
            if F > 1 or IN_TOKENS:
                x = tl.where(live[:, None], x, -1e30)
            top = tl.maximum(top, tl.max(x, 0))
            xs = xs + (x,)

        if WRITE_LOGITS:
            m = top
        else:
            fade = tl.exp2(m - top)
            m = top
            l *= fade
            # probabilities, with the scales of tokens
            ps = ()
            largest = tl.zeros((RP,), tl.float32)
            total = tl.zeros((RP,), tl.float32)
            for o in tl.static_range(0, SPAN, UI):
                p = tl.exp2(xs[o // UI] - m[None, :])
                total += tl.sum(p, 0)
                if VTOKEN or HAS_VNORM:
                    slot = page_u * N + start + o + u % UI
                    live = slot < tokens
                    if VTOKEN:
                        zero = tl.load(VZERO + bh * vzero_bh + slot, mask=live, other=0.0).to(tl.float32)
                        accz_add = tl.sum(p * zero[:, None], 0)
                        if o == 0:
                            zeros = accz_add
                        else:
                            zeros += accz_add
                        factor = tl.load(VSCALE + bh * vscale_bh + slot, mask=live, other=0.0).to(tl.float32)
                    else:
                        factor = tl.load(VNORM + b * vnorm_b + h * vnorm_h + slot, mask=live, other=0.0).to(tl.float32)
                    p *= factor[:, None]
                    largest = tl.maximum(largest, tl.max(p, 0))
                ps = ps + (p,)
            l += total
            if not (VTOKEN or HAS_VNORM):
                largest = tl.full((RP,), 1.0, tl.float32)
            largest = tl.maximum(largest, 1e-30)
            inverse = 1.0 / largest

            if VMODE != DENSE and VMODE != NOTHING:
                vs1 = ()
                for T in tl.static_range(VTILES1):
                    vs1 = vs1 + (
                        _load_plane(V1 + bh * v1_bh + page0 * VROWS1 * VJ1, T + start % VROWS1 // UI, VROWS1, UI, F, VJ1, VP1, True,
                                    VROWS1 * VJ1, pages_left),
                    )  # fmt: skip
                if VB2 > 0:
                    vs2 = ()
                    for T in tl.static_range(VTILES2):
                        vs2 = vs2 + (
                            _load_plane(V2 + bh * v2_bh + page0 * VROWS2 * VJ2, T + start % VROWS2 // UI, VROWS2, UI, F, VJ2, VP2, True,
                                        VROWS2 * VJ2, pages_left),
                        )  # fmt: skip
            if VINT:
                sum1 = tl.zeros((VP1, 2 * RP), tl.int32)
                sum2 = tl.zeros((VP2, 2 * RP), tl.int32)
            else:
                sum1 = tl.zeros((VP1, RP), tl.float32)
                sum2 = tl.zeros((VP2, RP), tl.float32)
            for o in tl.static_range(0, SPAN, UI):
                if VMODE == NOTHING:
                    pass
                elif VINT:
                    p = ps[o // UI] * (127.0 * inverse)[None, :]
                    high = tl.floor(p + 0.5)
                    low = tl.floor((p - high) * 254.0 + 0.5)
                    pq = tl.reshape(tl.join(high, low), (TU, 2 * RP)).to(tl.int8)
                    s1 = _codes(vs1, start + o, VROWS1, UI, VB1, ROLLED, ASM)
                    sum1 = tl.dot(s1, pq, acc=sum1, out_dtype=tl.int32)
                    if VB2 > 0:
                        s2 = _codes(vs2, start + o, VROWS2, UI, VB2, ROLLED, ASM)
                        sum2 = tl.dot(s2, pq, acc=sum2, out_dtype=tl.int32)
                elif VMODE == DENSE:
                    slot = page_u * N + start + o + u % UI
                    v = tl.load(
                        V1 + bh * v1_bh + slot[:, None] * VJ1 + v1[None, :],
                        mask=(slot < tokens)[:, None] & (v1 < VJ1)[None, :], other=0.0,
                    )  # fmt: skip
                    if not ASM:
                        sum1 = tl.dot(tl.trans(v).to(tl.float32), ps[o // UI], acc=sum1)
                    elif KMODE == DENSE and Q.dtype.element_ty == tl.float32:
                        sum1 = tl.dot(tl.trans(v).to(tl.float32), ps[o // UI], acc=sum1, input_precision="ieee")
                    else:
                        sum1 = tl.dot(tl.trans(v), ps[o // UI].to(v.dtype), acc=sum1, input_precision="ieee")
                else:
                    token = start + o + u % UI
                    live = page_u * N + token < tokens
                    pq = (ps[o // UI] * inverse[None, :]).to(tl.float16)
                    s1 = _codes(vs1, start + o, VROWS1, UI, VB1, ROLLED, ASM).to(tl.float32)
                    if VMODE == CHANNEL:
                        g = page_u
                        if VGROUPED == 0:
                            g = tl.zeros_like(page_u)
                        elif VGROUPED == 2:
                            g = tl.load(VGROUP + page_u, mask=live, other=0).to(tl.int64)
                            g = tl.where(g < 0, g + vgroups, g)
                        elif VGROUPED == 3:
                            g = page_u * VINSIDE + token // (N // VINSIDE)
                        scale = tl.load(
                            VSCALE + bh * vscale_bh + g[None, :] * VQ + v1[:, None],
                            mask=live[None, :] & (v1 < VJ1)[:, None], other=0.0,
                        )  # fmt: skip
                        sum1 = tl.dot((s1 * scale.to(tl.float32)).to(tl.float16), pq, acc=sum1)
                        zero = tl.load(
                            VZERO + bh * vzero_bh + g[None, :] * VDZ + vd[:, None],
                            mask=live[None, :] & (vd < VDZ)[:, None], other=0.0,
                        )  # fmt: skip
                        if o == 0:
                            sumz = tl.dot(zero.to(tl.float16), pq)
                        else:
                            sumz = tl.dot(zero.to(tl.float16), pq, acc=sumz)
                        if VB2 > 0:
                            s2 = _codes(vs2, start + o, VROWS2, UI, VB2, ROLLED, ASM).to(tl.float32)
                            scale = tl.load(
                                VSCALE + bh * vscale_bh + g[None, :] * VQ + VQ1 + v2[:, None],
                                mask=live[None, :] & (v2 < VJ2)[:, None], other=0.0,
                            )  # fmt: skip
                            sum2 = tl.dot((s2 * scale.to(tl.float32)).to(tl.float16), pq, acc=sum2)
                    else:
                        at = (page_u[None, :] * VCHUNKS + (v1 // (VJ1 // VCHUNKS))[:, None]) * N + token[None, :]
                        inside = live[None, :] & (v1 < VJ1)[:, None]
                        scale = tl.load(VSCALE + bh * vscale_bh + at, mask=inside, other=0.0).to(tl.float32)
                        zero = tl.load(VZERO + bh * vzero_bh + at, mask=inside, other=0.0).to(tl.float32)
                        sum1 = tl.dot((s1 * scale + zero).to(tl.float16), pq, acc=sum1)

            if VINT:
                factor = largest * (1.0 / (127.0 * 254.0))
                high, low = tl.split(tl.reshape(sum1, (VP1, RP, 2)))
                part1 = (high * 254 + low).to(tl.float32) * factor[None, :]
                if VB2 > 0:
                    high, low = tl.split(tl.reshape(sum2, (VP2, RP, 2)))
                    part2 = (high * 254 + low).to(tl.float32) * factor[None, :]
                if VTOKEN:
                    accz = accz * fade[None, :] + tl.where((vd == 0)[:, None], zeros[None, :], 0.0)
                elif VGROUPED > 0:  # groups of whole pages, a page at a time
                    g = page0
                    if VGROUPED == 2:
                        g = tl.load(VGROUP + page0).to(tl.int64)
                        g = tl.where(g < 0, g + vgroups, g)
                    at = VSCALE + bh * vscale_bh + g * VQ
                    part1 *= tl.load(at + v1, mask=v1 < VJ1, other=0.0).to(tl.float32)[:, None]
                    if VB2 > 0:
                        part2 *= tl.load(at + VQ1 + v2, mask=v2 < VJ2, other=0.0).to(tl.float32)[:, None]
                    weight = total
                    if HAS_VNORM:
                        weight = tl.zeros((RP,), tl.float32)
                        for o in tl.static_range(0, SPAN, UI):
                            weight += tl.sum(ps[o // UI], 0)
                    zero = tl.load(VZERO + bh * vzero_bh + g * VDZ + vd, mask=vd < VDZ, other=0.0).to(tl.float32)
                    accz = accz * fade[None, :] + zero[:, None] * weight[None, :]
                elif HAS_VNORM:  # the zero point of a span meets the sum of probabilities times norms
                    weight = tl.zeros((RP,), tl.float32)
                    for o in tl.static_range(0, SPAN, UI):
                        weight += tl.sum(ps[o // UI], 0)
                    accz = accz * fade[None, :] + tl.where((vd == 0)[:, None], weight[None, :], 0.0)
            else:
                part1, part2 = sum1, sum2
                if VMODE != DENSE:
                    part1 *= largest[None, :]
                    part2 *= largest[None, :]
                    if VMODE == CHANNEL:
                        accz = accz * fade[None, :] + sumz * largest[None, :]
            acc1 = acc1 * fade[None, :] + part1
            if VB2 > 0:
                acc2 = acc2 * fade[None, :] + part2

    at = (bh * splits + sp) * rows + r
    tl.store(M + at, m, mask=row_live)
    if WRITE_LOGITS:
        tl.store(L + at, lowest, mask=row_live)
    else:
        tl.store(L + at, l, mask=row_live)
        if VQ > 0:
            tl.store(ACC + at[None, :] * VQ + v1[:, None], acc1, mask=row_live[None, :] & (v1 < VQ1)[:, None])
        if VB2 > 0:
            tl.store(
                ACC + at[None, :] * VQ + VQ1 + v2[:, None], acc2, mask=row_live[None, :] & (v2 < VQ - VQ1)[:, None]
            )
        if VDZ > 0:
            tl.store(ZERO + at[None, :] * VDZ + vd[:, None], accz, mask=row_live[None, :] & (vd < VDZ)[:, None])
