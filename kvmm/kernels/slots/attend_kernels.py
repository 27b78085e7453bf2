"""Slots in Triton, attention: queries to weights of bits, splits over blocks, and their reduction.

Bits are multiplied where they lie: a query's weights of the bits of a slot, and a token's probability times the bits of
its value, whose sums become channels once a query. Logits are in units of log 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvmm.kernels.slots.bits import LARGEST, PLANE_UNIT
from kvmm.kernels.slots.plane_kernels import load_norms, load_words, plane, products, upper

_LARGEST = tl.constexpr(LARGEST)
_UNIT = tl.constexpr(PLANE_UNIT / LARGEST)


@triton.jit(do_not_specialize=["batch", "heads"])
def expand_kernel(
    QUERY, MATRIX, CONSTANT, NORM, WEIGHTS, LINE, batch, heads, query_t, query_h, scaling,
    COLUMNS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, NEW: tl.constexpr, R: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """Weights of 16 query rows for some columns.

    ``WEIGHTS`` float16 ``[B, H, columns, NEW * R]``, in units that ``LINE`` float32 ``[B, H, 2, NEW * R]`` has, and then
    what all logits of a row have, scaled. ``MATRIX``, ``CONSTANT`` and ``NORM`` are :meth:`SideBits.query_matrices`.
    """
    NR: tl.constexpr = NEW * R
    h = tl.program_id(0)
    row = tl.program_id(1) * 16 + tl.arange(0, 16)
    live = row < batch * NR
    b, r = row // NR, row % NR
    d, c = tl.arange(0, DP), tl.program_id(2) * CB + tl.arange(0, CB)
    at = QUERY + ((b * NEW + r // R).to(tl.int64) * query_t + (h * R + r % R) * query_h)[:, None] + d[None, :]
    q = tl.load(at, mask=live[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(q * q, 1)) * tl.load(NORM + h) + 1e-30
    matrix = tl.load(
        MATRIX + (h * D + d)[:, None] * COLUMNS + c[None, :], mask=(d < D)[:, None] & (c < COLUMNS)[None, :], other=0.0
    )
    w = tl.dot(q / length[:, None] * _LARGEST, matrix, input_precision="tf32x3")
    base = (b * heads + h).to(tl.int64)
    out = WEIGHTS + (base * COLUMNS * NR + r)[:, None] + c[None, :] * NR
    tl.store(out, w.to(tl.float16), mask=live[:, None] & (c < COLUMNS)[None, :])
    if tl.program_id(2) == 0:
        constant = tl.load(CONSTANT + h * D + d, mask=d < D, other=0.0)
        tl.store(LINE + base * 2 * NR + r, length * scaling * _UNIT, mask=live)
        tl.store(LINE + base * 2 * NR + NR + r, tl.sum(q * constant[None, :], 1) * scaling, mask=live)


@triton.jit
def _zeros(G: tl.constexpr, RP: tl.constexpr):
    """Sums of all planes of a region."""
    PLANES: tl.constexpr = G.full * (16 // G.bits)
    REST: tl.constexpr = G.rest // G.bits
    WIDTH: tl.constexpr = G.width
    sums = ()
    for _ in tl.static_range(PLANES):
        sums = sums + (tl.zeros((WIDTH, RP), tl.float32),)
    for _ in tl.static_range(REST):
        sums = sums + (tl.zeros((16, RP), tl.float32),)
    return sums


@triton.jit
def _chunk_sums(
    sums, rows, p, rescale, BITS: tl.constexpr, FIRST: tl.constexpr, WORDS: tl.constexpr, AT: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    COLUMNS: tl.constexpr = 16 if WORDS < 16 else WORDS
    PLANES: tl.constexpr = (WORDS if WORDS < 16 else 16) // BITS
    words = load_words(rows[None, :], tl.arange(0, COLUMNS)[:, None], FIRST, WORDS, ASM)
    out = ()
    for i in tl.static_range(PLANES):
        if i * BITS == 8:
            words = upper(words, ASM)
        out = out + (tl.dot(plane(words, i * BITS % 8, BITS, ASM), p, sums[AT + i] * rescale[None, :]),)
    return out


@triton.jit
def _add_values(sums, rows, p, rescale, G: tl.constexpr, ASM: tl.constexpr):
    """The rescaled sums of the planes of a region, and slots ``rows`` ``[T]`` weighted by ``p`` float16 ``[T, RP]``."""
    BITS: tl.constexpr = G.bits
    FIRST: tl.constexpr = G.first
    WORDS: tl.constexpr = G.width
    FULL: tl.constexpr = G.full
    REST: tl.constexpr = G.rest
    AT: tl.constexpr = G.plane
    EACH: tl.constexpr = 16 // BITS
    out = ()
    for i in tl.static_range(FULL):
        out = out + _chunk_sums(sums, rows, p, rescale, BITS, FIRST + i * WORDS, WORDS, AT + i * EACH, ASM)
    if REST > 0:
        out = out + _chunk_sums(sums, rows, p, rescale, BITS, FIRST + FULL * WORDS, REST, AT + FULL * EACH, ASM)
    return out


@triton.jit
def _store_chunk(
    ACC, sums, r, live, NR: tl.constexpr, BITS: tl.constexpr, WORDS: tl.constexpr, AT: tl.constexpr, COLUMN: tl.constexpr
):  # fmt: skip
    COLUMNS: tl.constexpr = 16 if WORDS < 16 else WORDS
    PLANES: tl.constexpr = (WORDS if WORDS < 16 else 16) // BITS
    column = tl.arange(0, COLUMNS)
    for i in tl.static_range(PLANES):
        at = ACC + (COLUMN + i * COLUMNS + column)[:, None] * NR + r[None, :]
        tl.store(at, sums[AT + i], mask=live[None, :])


@triton.jit
def _store_sums(ACC, sums, r, live, NR: tl.constexpr, G: tl.constexpr):
    """Store the sums of the planes of a region to float32 ``[columns, NR]``."""
    BITS: tl.constexpr = G.bits
    WORDS: tl.constexpr = G.width
    FULL: tl.constexpr = G.full
    REST: tl.constexpr = G.rest
    AT: tl.constexpr = G.plane
    COLUMN: tl.constexpr = G.column
    EACH: tl.constexpr = 16 // BITS
    for i in tl.static_range(FULL):
        _store_chunk(ACC, sums, r, live, NR, BITS, WORDS, AT + i * EACH, COLUMN + i * EACH * WORDS)
    if REST > 0:
        _store_chunk(ACC, sums, r, live, NR, BITS, REST, AT + FULL * EACH, COLUMN + FULL * EACH * WORDS)


@triton.jit
def _weigh(x, m, l, live):
    """Of logits ``[T, RP]`` the probabilities relative to the new maximum, what older ones are multiplied by, maximum, sum."""
    x = tl.where(live, x, -1e30)
    new = tl.maximum(m, tl.max(x, 0))
    p = tl.where(live, tl.exp2(x - new[None, :]), 0.0)
    rescale = tl.exp2(m - new)
    return p, rescale, new, l * rescale + tl.sum(p, 0)


@triton.jit
def _add_exact(key, value, q, live, scaling, m, l, acc, ASM: tl.constexpr):
    """Attention over exact tokens: keys and values ``[16, DP]``, queries ``[DP, RP]``, output ``acc`` ``[DP, RP]``."""
    if not ASM:  # the interpreter does not multiply bf16
        key, value, q = key.to(tl.float32), value.to(tl.float32), q.to(tl.float32)
    x = tl.dot(key, q, input_precision="tf32x3") * scaling
    p, rescale, m, l = _weigh(x, m, l, live)
    acc = acc * rescale[None, :]
    high = p.to(value.dtype)
    turned = tl.trans(value)
    acc = tl.dot(turned, high, acc, input_precision="tf32x3")
    if value.dtype != tl.float32:  # what rounding took from the probabilities
        acc = tl.dot(turned, (p - high.to(tl.float32)).to(value.dtype), acc)
    return m, l, acc


@triton.jit
def _attend_exact(
    EXACT, QUERY, KEY, VALUE, table, M, L, ACC, block_exact, query_t, query_h, key_t, key_h, value_t, value_h,
    scaling, length, first, last, b, h, r, K: tl.constexpr, NEW: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """Attention over the exact tokens of blocks ``first`` to ``last - 1``, and in the first split over the new tokens."""
    NR: tl.constexpr = NEW * R
    D: tl.constexpr = K.dim
    DP: tl.constexpr = K.padded_dim
    m, l, acc = tl.full((RP,), -1e30, tl.float32), tl.zeros((RP,), tl.float32), tl.zeros((DP, RP), tl.float32)
    d, i, row_live = tl.arange(0, DP), tl.arange(0, 16), r < NR
    in_dim = (d < D)[None, :]
    q_at = QUERY + ((b * NEW + r // R).to(tl.int64) * query_t + (h * R + r % R) * query_h)[None, :] + d[:, None]
    q = tl.load(q_at, mask=row_live[None, :] & (d < D)[:, None], other=0.0)
    for start in range(first, last, 16):
        live = start + i < last
        block = tl.load(table + start + i, mask=live, other=0).to(tl.int64)
        at = EXACT + (block * block_exact)[:, None] + d[None, :]
        key = tl.load(at, mask=live[:, None] & in_dim, other=0.0)
        value = tl.load(at + D, mask=live[:, None] & in_dim, other=0.0)
        m, l, acc = _add_exact(key, value, q, live[:, None], scaling, m, l, acc, ASM)
    if tl.program_id(0) == 0:
        live = i < tl.minimum(length, NEW)
        token = (b * NEW + i).to(tl.int64)
        key_at = KEY + (token * key_t + h * key_h)[:, None] + d[None, :]
        value_at = VALUE + (token * value_t + h * value_h)[:, None] + d[None, :]
        key = tl.load(key_at, mask=live[:, None] & in_dim, other=0.0)
        value = tl.load(value_at, mask=live[:, None] & in_dim, other=0.0)
        seen = live[:, None] & (i[:, None] <= (r // R)[None, :])
        m, l, acc = _add_exact(key, value, q, seen, scaling, m, l, acc, ASM)
    tl.store(M, m, mask=row_live)
    tl.store(L, l, mask=row_live)
    tl.store(ACC + d[:, None] * NR + r[None, :], acc, mask=(d < D)[:, None] & row_live[None, :])


@triton.jit(do_not_specialize=["table_stride", "heads", "splits"])
def attend_kernel(
    CACHE, EXACT, WEIGHTS, LINE, QUERY, KEY, VALUE, TABLE, LENGTHS, M, L, ACC,
    block_words, head_words, block_exact, head_exact, table_stride, query_t, query_h, key_t, key_h, value_t, value_h,
    heads, splits, scaling, K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, KS: tl.constexpr, VP: tl.constexpr,
    VS: tl.constexpr, STRIDE: tl.constexpr, EXACT_START: tl.constexpr, BLOCK: tl.constexpr, T: tl.constexpr,
    NEW: tl.constexpr, R: tl.constexpr, RP: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Attention of the new tokens of a sequence over some blocks of one head, and in the first split over themselves.

    Strides are in elements: of ``CACHE`` int16 and of ``EXACT``, the same memory in the dtype of the model; ``STRIDE`` of
    slots is in 16-bit words. ``KP``, ``KS``, ``VP`` and ``VS`` are the regions of keys and values. Results of two parts,
    bits and exact tokens: ``M`` and ``L`` float32 ``[B, H, splits, 2, NR]``, ``ACC`` float32 ``[B, H, splits, columns + 1
    + D, NR]`` with the sums of planes, of weights, and of values.
    """
    NR: tl.constexpr = NEW * R
    COLUMNS: tl.constexpr = V.columns
    D: tl.constexpr = K.dim
    split, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(LENGTHS + b)
    past = tl.maximum(length - NEW, 0)
    used = (past + BLOCK - 1) // BLOCK
    each = (used + splits - 1) // splits
    first = split * each
    last = tl.minimum(first + each, used)
    base = (b * heads + h).to(tl.int64)
    at = base * splits + split
    r = tl.arange(0, RP)
    row_live = r < NR
    out = ACC + at * (COLUMNS + 1 + D) * NR
    state = at * 2 * NR + r
    weights = WEIGHTS + base * K.columns * NR
    unit = tl.load(LINE + base * 2 * NR + r, mask=row_live, other=0.0)
    constant = tl.load(LINE + base * 2 * NR + NR + r, mask=row_live, other=0.0)
    table = TABLE + b.to(tl.int64) * table_stride
    m, l, total = tl.full((RP,), -1e30, tl.float32), tl.zeros((RP,), tl.float32), tl.zeros((RP,), tl.float32)
    sums = _zeros(VP, RP) + _zeros(VS, RP)
    t = tl.arange(0, T)
    for tile in range(first * (BLOCK // T), tl.minimum(last * (BLOCK // T), (past + T - 1) // T)):
        block = tl.load(table + tile // (BLOCK // T)).to(tl.int64)
        rows = CACHE + block * block_words + h * head_words + (tile % (BLOCK // T) * T + t) * STRIDE
        held = tile * T + t < past
        x = products(tl.zeros((T, RP), tl.float32), rows, weights, r, row_live[None, :], NR, KP, ASM)
        x = products(x, rows, weights, r, row_live[None, :], NR, KS, ASM)
        x = x * unit[None, :] + constant[None, :]
        if K.norm:
            x *= load_norms(rows, K.start + K.code_bytes, held)[:, None]
        live = held & ((tile * T + t) % BLOCK != 0)  # the first token of a block is read exactly
        p, rescale, m, l = _weigh(x, m, l, live[:, None])
        if V.norm:
            p *= load_norms(rows, V.start + V.code_bytes, live)[:, None]
        total = total * rescale + tl.sum(p, 0)
        p = p.to(tl.float16)
        sums = _add_values(sums, rows, p, rescale, VP, ASM) + _add_values(sums, rows, p, rescale, VS, ASM)
    tl.store(M + state, m, mask=row_live)
    tl.store(L + state, l, mask=row_live)
    if first < last:
        _store_sums(out, sums, r, row_live, NR, VP)
        _store_sums(out, sums, r, row_live, NR, VS)
        tl.store(out + COLUMNS * NR + r, total, mask=row_live)
    _attend_exact(
        EXACT + h * head_exact + EXACT_START, QUERY, KEY, VALUE, table, M + state + NR, L + state + NR,
        out + (COLUMNS + 1) * NR, block_exact, query_t, query_h, key_t, key_h, value_t, value_h, scaling, length, first,
        last, b, h, r, K, NEW, R, RP, ASM,
    )  # fmt: skip


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(
    M, L, ACC, M_OUT, L_OUT, OUT, splits, COLUMNS: tl.constexpr, D: tl.constexpr, NR: tl.constexpr, F: tl.constexpr
):
    """Merge all splits into one: ``OUT`` ``[B * H, columns + 1 + D, NR]`` as of :func:`attend_kernel`, normalised, with the
    states ``M_OUT`` and ``L_OUT`` ``[B * H, 2, NR]`` of that: a maximum of 0 and a sum of 1, or no tokens."""
    SIZE: tl.constexpr = (COLUMNS + 1 + D) * NR
    bh = tl.program_id(0).to(tl.int64)
    f, s = tl.program_id(1) * F + tl.arange(0, F), tl.arange(0, 16)
    part, r = (f // NR > COLUMNS).to(tl.int32), f % NR
    state = (bh * splits * 2 * NR + r)[None, :]
    m = tl.full((F,), -1e30, tl.float32)
    for start in range(0, splits, 16):
        at = state + (start + s)[:, None] * 2 * NR
        live = ((start + s) < splits)[:, None] & (f < SIZE)[None, :]
        one = tl.maximum(tl.load(M + at, mask=live, other=-1e30), tl.load(M + at + NR, mask=live, other=-1e30))
        m = tl.maximum(m, tl.max(one, 0))
    total, acc = tl.zeros((F,), tl.float32), tl.zeros((F,), tl.float32)
    for start in range(0, splits, 16):
        at = state + (start + s)[:, None] * 2 * NR
        live = ((start + s) < splits)[:, None] & (f < SIZE)[None, :]
        w0 = tl.exp2(tl.load(M + at, mask=live, other=-1e30) - m[None, :])
        w1 = tl.exp2(tl.load(M + at + NR, mask=live, other=-1e30) - m[None, :])
        l0, l1 = tl.load(L + at, mask=live, other=0.0), tl.load(L + at + NR, mask=live, other=0.0)
        total += tl.sum(w0 * l0 + w1 * l1, 0)
        is_exact = (part == 1)[None, :]
        w, l = tl.where(is_exact, w1, w0), tl.where(is_exact, l1, l0)
        x = tl.load(ACC + (bh * splits + start + s)[:, None] * SIZE + f[None, :], mask=live & (l > 0), other=0.0)
        acc += tl.sum(x * w, 0)
    some = total > 0
    tl.store(OUT + bh * SIZE + f, tl.where(some, acc / tl.where(some, total, 1.0), 0.0), mask=f < SIZE)
    is_state = f < 2 * NR
    tl.store(M_OUT + bh * 2 * NR + f, tl.where(some, 0.0, -1e30), mask=is_state)
    tl.store(L_OUT + bh * 2 * NR + f, tl.where(some, 0.5, 0.0), mask=is_state)


@triton.jit(do_not_specialize=["batch", "heads", "splits"])
def output_kernel(
    M, L, ACC, MATRIX, OUT, batch, heads, splits, out_t, out_h,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, NEW: tl.constexpr, R: tl.constexpr,
    CB: tl.constexpr, DB: tl.constexpr,
):  # fmt: skip
    """The output of 16 query rows in ``DB`` channels, of few splits; ``MATRIX`` is :meth:`SideBits.output_matrix`."""
    NR: tl.constexpr = NEW * R
    SIZE: tl.constexpr = (COLUMNS + 1 + D) * NR
    h = tl.program_id(0)
    row = tl.program_id(1) * 16 + tl.arange(0, 16)
    live = row < batch * NR
    b, r = row // NR, row % NR
    d, c = tl.program_id(2) * DB + tl.arange(0, DB), tl.arange(0, CB)
    base = (b * heads + h).to(tl.int64) * splits
    m, total = tl.full((16,), -1e30, tl.float32), tl.zeros((16,), tl.float32)
    for s in range(splits):
        at = (base + s) * 2 * NR + r
        one = tl.maximum(tl.load(M + at, mask=live, other=-1e30), tl.load(M + at + NR, mask=live, other=-1e30))
        m = tl.maximum(m, one)
    y = tl.zeros((16, DB), tl.float32)
    for s in range(splits):
        at = (base + s) * 2 * NR + r
        w = tl.exp2(tl.load(M + at + NR, mask=live, other=-1e30) - m)
        l = tl.load(L + at + NR, mask=live, other=0.0)
        total += w * l + tl.exp2(tl.load(M + at, mask=live, other=-1e30) - m) * tl.load(L + at, mask=live, other=0.0)
        x_at = ACC + ((base + s) * SIZE + r)[:, None] + (COLUMNS + 1 + d)[None, :] * NR
        y += tl.load(x_at, mask=(live & (l > 0))[:, None] & (d < D)[None, :], other=0.0) * w[:, None]
    for start in range(0, ROWS, CB):
        column = start + c
        x = tl.zeros((16, CB), tl.float32)
        for s in range(splits):
            at = (base + s) * 2 * NR + r
            w = tl.exp2(tl.load(M + at, mask=live, other=-1e30) - m)
            l = tl.load(L + at, mask=live, other=0.0)
            x_at = ACC + ((base + s) * SIZE + r)[:, None] + column[None, :] * NR
            x += tl.load(x_at, mask=(live & (l > 0))[:, None] & (column <= COLUMNS)[None, :], other=0.0) * w[:, None]
        matrix = tl.load(MATRIX + (h * ROWS + column)[:, None] * D + d[None, :], mask=(d < D)[None, :], other=0.0)
        y = tl.dot(x, matrix, y, input_precision="tf32x3")
    y = tl.where((total > 0)[:, None], y / tl.where(total > 0, total, 1.0)[:, None], 0.0)
    out = OUT + ((b * NEW + r // R).to(tl.int64) * out_t + (h * R + r % R) * out_h)[:, None] + d[None, :]
    tl.store(out, y.to(OUT.dtype.element_ty), mask=live[:, None] & (d < D)[None, :])
