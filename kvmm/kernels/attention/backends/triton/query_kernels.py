"""Decode attention in Triton, what comes before the pages: queries in the basis and the digits of a key store."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def split_in_two(x):
    """``x`` as the sum of two bfloat16 numbers, but for 2 ** -17 of it."""
    high = x.to(tl.bfloat16)
    return high, (x - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit(do_not_specialize=["H", "batch", "rows"])
def transform_kernel(
    Q, MATRIX, OUT, H, batch, rows, width, matrix_head,
    D: tl.constexpr, DP: tl.constexpr, RP: tl.constexpr, WC: tl.constexpr, BF16: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """``OUT [B * H, rows, width]``: queries ``[B * H, rows, D]`` times ``MATRIX [H or 1, D, width]``, in float32.

    Queries in bfloat16 meet a matrix split into two such numbers, 16 bits together (``BF16``, where such matrices can be
    multiplied); other queries of 16 bits are numbers of TF32 as they are, and only the matrix is split into two of those.
    One program a head, ``WC`` columns and ``RP`` rows of whatever sequences. With ``EARLY`` the kernel behind it may
    start at once; it waits for what this one writes. All that was launched before has ended then, so that it may read
    anything else without waiting: this kernel itself must not start early.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    h = tl.program_id(0).to(tl.int64)
    k, j, r = tl.arange(0, DP), tl.program_id(1) * WC + tl.arange(0, WC), tl.program_id(2) * RP + tl.arange(0, RP)
    live = r < batch * rows
    at = (r // rows * H + h) * rows + r % rows
    q = tl.load(Q + at[:, None] * D + k[None, :], mask=live[:, None] & (k < D)[None, :], other=0.0)
    inside = (k < D)[:, None] & (j < width)[None, :]
    m = tl.load(MATRIX + h * matrix_head + k[:, None] * width + j[None, :], mask=inside, other=0.0)
    if BF16:
        high, low = split_in_two(m)
        z = tl.dot(q, high, acc=tl.dot(q, low))
    elif q.dtype != tl.float32:
        coarse = (m.to(tl.uint32, bitcast=True) & 0xFFFFE000).to(tl.float32, bitcast=True)
        z = tl.dot(q.to(tl.float32), m - coarse, input_precision="tf32")
        z = tl.dot(q.to(tl.float32), coarse, acc=z, input_precision="tf32")
    else:
        z = tl.dot(q, m, input_precision="tf32x3")
    tl.store(OUT + at[:, None] * width + j[None, :], z, mask=live[:, None] & (j < width)[None, :])


@triton.jit
def _of_groups(
    STORED, EXTRA, bh, h, g, column, inside, own_group, extra_group, stride, extra_head, width, HAS_EXTRA: tl.constexpr
):
    """A scale or zero point of groups ``g`` in columns ``column``, both ``[GROUPS or 1, columns]``, as float32.

    ``STORED`` holds ``width`` columns for each of the groups ``own_group`` ``[GROUPS]`` and moves by ``stride`` from head
    to head of a sequence; ``EXTRA`` ``[H or 1, width]`` holds them for those of ``extra_group``. 0 where neither does.
    """
    found = tl.load(
        STORED + bh * stride + g[:, None] * width + column, mask=own_group[:, None] & inside, other=0.0
    ).to(tl.float32)  # fmt: skip
    if HAS_EXTRA:
        found += tl.load(
            EXTRA + h * extra_head * width + column + 0 * g[:, None], mask=extra_group[:, None] & inside, other=0.0
        ).to(tl.float32)  # fmt: skip
    return found


@triton.jit
def _store_int8(OUT, WEIGHT, x, to_row, used, j, J):
    """Store float32 ``x`` ``[GROUPS, RP, JP]`` as a high and a low int8 row, and the weight of a step of the low one.

    ``to_row`` ``[GROUPS, RP]`` are the rows of ``OUT`` ``[..., 2, J]`` and ``WEIGHT``, of which those in ``used`` exist.
    """
    step = tl.maximum(tl.max(tl.abs(x), 2), 1e-30) / 127.0
    x = x / step[:, :, None]
    high = tl.floor(x + 0.5)
    low = tl.floor((x - high) * 254.0 + 0.5)
    to = OUT + to_row[:, :, None] * 2 * J + j[None, None, :]
    filled = used[:, :, None] & (j < J)[None, None, :]
    tl.store(to, high.to(tl.int8), mask=filled)
    tl.store(to + J, low.to(tl.int8), mask=filled)
    tl.store(WEIGHT + to_row, step / 254.0, mask=used)


@triton.jit(do_not_specialize=["H", "rows", "groups", "stored", "extra_head", "J1", "J2"])
def expand_kernel(
    Z, INDEX, GROUP_INDEX, PLACE, SCALE, ZERO, OFFSET, EXTRA_SCALE, EXTRA_ZERO,
    OUT, WEIGHT, BIAS, SUM,
    H, rows, groups, stored, scaling, width, scale_stride, zero_stride, index_stride,
    offset_head, extra_head, J, J1, J2, C, DZ,
    DP: tl.constexpr, JP: tl.constexpr, RP: tl.constexpr, GROUPS: tl.constexpr, CHUNKS: tl.constexpr,
    HAS_INDEX: tl.constexpr, HAS_GROUP_INDEX: tl.constexpr, HAS_PLACE: tl.constexpr, HAS_SCALE: tl.constexpr,
    HAS_ZERO: tl.constexpr, HAS_OFFSET: tl.constexpr, HAS_EXTRA: tl.constexpr, QUANTISE: tl.constexpr,
    SUMS: tl.constexpr,
):  # fmt: skip
    """Queries in the digits of one key store.

    ``Z`` ``[B * H, rows, width]`` holds the queries by channel of the keys' basis. Row ``r`` and group ``g`` get
    ``q'_j = z[index_j] * place_j * scale[g, index_j]``, written as a high and a low int8 row in ``OUT``
    ``[B * H, G, rows, 2, J]`` with the weight of a step of the low one in ``WEIGHT`` ``[B * H, G, rows]``; or, not
    quantised, without the scale to ``OUT`` ``[B * H, rows, J]`` and ``WEIGHT`` ``[B * H, rows]``. ``BIAS``
    ``[B * H, G, rows]`` is ``z . (zero_g + offset)``, over all channels; ``SUM`` ``[B * H, rows, CHUNKS]`` the sums of
    ``z`` by group of channels. Group ``stored`` is the extra one that no store holds.
    """
    bh, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    r, j, dz = tl.program_id(2) * RP + tl.arange(0, RP), tl.arange(0, JP), tl.arange(0, DP)
    h = bh % H
    live = r < rows
    at = Z + (bh * rows + r[:, None]) * width
    index = j
    if HAS_INDEX:
        index = tl.load(INDEX + j, mask=j < J, other=0)
    inside = live[:, None] & ((j < J) & (index < width))[None, :]
    z = tl.load(at + index[None, :], mask=inside, other=0.0).to(tl.float32) * scaling
    if HAS_ZERO:
        inside = live[:, None] & (dz < DZ)[None, :]
        zz = tl.load(at + dz[None, :], mask=inside, other=0.0).to(tl.float32) * scaling
    if SUMS:
        for c in tl.static_range(CHUNKS):
            chunk = (j >= c * (J // CHUNKS)) & (j < (c + 1) * (J // CHUNKS))
            tl.store(SUM + (bh * rows + r) * CHUNKS + c, tl.sum(tl.where(chunk[None, :], z, 0.0), 1), mask=live)
    if HAS_PLACE:
        z *= tl.load(PLACE + j, mask=j < J, other=0.0)[None, :]
    # from here on GROUPS groups at once
    g = block * GROUPS + tl.arange(0, GROUPS)
    own_group = (g < groups) & (g != stored)
    extra_group = (g < groups) & (g == stored)
    to_row = (bh * groups + g[:, None]) * rows + r[None, :]
    used = (g < groups)[:, None] & live[None, :]
    x = tl.zeros((GROUPS, RP, JP), tl.float32) + z[None, :, :]
    own = index[None, :]
    if HAS_GROUP_INDEX:
        picked = tl.load(
            GROUP_INDEX + bh * index_stride + g[:, None] * J2 + (j - J1)[None, :],
            mask=(g < groups)[:, None] & ((j >= J1) & (j < J1 + J2))[None, :], other=0,
        ).to(tl.int32)  # fmt: skip
        own = tl.where((j < J1)[None, :], index[None, :], picked)
        known = used[:, :, None] & ((j < J1 + J2)[None, :] & (own < width))[:, None, :]
        x = tl.load((at[None, :, :] + own[:, None, :]), mask=known, other=0.0).to(tl.float32) * scaling
        if HAS_PLACE:
            x *= tl.load(PLACE + j, mask=j < J, other=0.0)[None, None, :]
    if HAS_SCALE:
        scale = _of_groups(
            SCALE, EXTRA_SCALE, bh, h, g, own, (j < J)[None, :] & (own < C), own_group, extra_group, scale_stride,
            extra_head, C, HAS_EXTRA,
        )  # fmt: skip
        x *= scale[:, None, :]
    if HAS_ZERO:
        zero = _of_groups(
            ZERO, EXTRA_ZERO, bh, h, g, dz[None, :], (dz < DZ)[None, :], own_group, extra_group, zero_stride,
            extra_head, DZ, HAS_EXTRA,
        )  # fmt: skip
        if HAS_OFFSET:
            zero += tl.load(OFFSET + h * offset_head + dz, mask=dz < DZ, other=0.0)[None, :]
        tl.store(BIAS + to_row, tl.sum(zz[None, :, :] * zero[:, None, :], 2), mask=used)
    if QUANTISE:
        _store_int8(OUT, WEIGHT, x, to_row, used, j, J)
    elif block == 0:
        first = tl.max(tl.abs(z), 1)
        step = tl.maximum(first, 1e-30)
        to = OUT + (bh * rows + r[:, None]) * J + j[None, :]
        tl.store(to, (z / step[:, None]).to(OUT.dtype.element_ty), mask=live[:, None] & (j < J)[None, :])
        tl.store(WEIGHT + bh * rows + r, step, mask=live)
