"""Loads of the page kernels from one segment: stores, tiles, codes, groups, norms."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import triton
import triton.language as tl


class Mode(IntEnum):
    """How keys or values are read."""

    SCORES = 0  # keys: logits were computed by another kernel
    INT8 = 1  # lanes, scales folded into the query or the probabilities
    CHANNEL = 2  # lanes times a scale a channel, in half precision
    TOKEN = 3  # lanes times a scale a token and group of channels, in half precision
    DENSE = 4  # float16, bfloat16 or float32
    NOTHING = 5  # no lanes: every token has the zero point


SCORES, INT8, CHANNEL, TOKEN, DENSE, NOTHING = (tl.constexpr(mode.value) for mode in Mode)


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


class Query(NamedTuple):
    """The queries in the keys' lanes (``expand_kernel``), or as the model has them.

    ``rows`` int8 ``[B * H, G, 2 * R, L]``, else ``[B * H, R, L]``; ``weight`` ``[B * H, G or 1, R]`` of their steps;
    ``zero`` ``[B * H, G, R]``, what zero points add; ``sums`` ``[B * H, R, channel groups]``. None is left out.
    """

    rows: Any
    weight: Any
    zero: Any
    sums: Any


class Store(NamedTuple):
    """The tensors of keys or values. Strides are specialised on; None is left out.

    ``plane1``, ``plane2``: codes, or the model's values; ``scale``, ``zero`` by lane and group, or by token; ``group``
    int32 ``[P]``; ``norm`` ``[B, H or 1, P, N]``. Strides are of (sequence, head) pairs, and of both for norms.
    """

    plane1: Any
    plane2: Any
    scale: Any
    zero: Any
    group: Any
    norm: Any
    stride1: int
    stride2: int
    scale_stride: int
    zero_stride: int
    norm_batch: int
    norm_head: int


class StoreLayout(NamedTuple):
    """Compile-time constants of keys or values: numbers, or under the compiler ``tl.constexpr``.

    ``mode`` is a :class:`Mode`. Per plane: ``bits``, ``lanes``, ``padded_lanes`` (of queries and sums, a multiple of 32)
    and ``block`` (a power of two). ``zeros`` is the number of zero points per group, ``zero_block`` a power of two, ``grouped`` 0 (one group), 1 (a group a page), 2
    (``group``) or 3 (``groups_per_page``), ``channel_groups`` the number of scales per token, ``by_token`` whether scales
    are per token in int8 mode.
    """

    mode: Any
    bits1: Any
    bits2: Any
    lanes1: Any
    lanes2: Any
    padded_lanes1: Any
    padded_lanes2: Any
    block1: Any
    block2: Any
    grouped: Any
    groups_per_page: Any
    channel_groups: Any
    zeros: Any = 0
    zero_block: Any = 1
    by_token: Any = False


# --- where a split works


@triton.jit
def _rows(rows, RP: tl.constexpr):
    """This program's (sequence, head) pair, its query rows, and which of them there are."""
    r = tl.program_id(2) * RP + tl.arange(0, RP)
    return tl.program_id(0).to(tl.int64), r, r < rows


@triton.jit
def _tiles(tokens, num_kv_splits, WHOLE: tl.constexpr, PARTS: tl.constexpr):
    """First and last of this split's tiles of ``WHOLE`` tokens, each in ``PARTS`` parts."""
    tiles = (tokens + WHOLE - 1) // WHOLE * PARTS
    share = (tiles + num_kv_splits - 1) // num_kv_splits
    first = tl.program_id(1) * share
    return first, tl.minimum(first + share, tiles)


@triton.jit
def _group(store, S: tl.constexpr, groups, page, token, live, N: tl.constexpr):
    """The group of each token of a sub-tile, from the page and the position in it."""
    if S.grouped == 0:
        return tl.zeros_like(page)
    elif S.grouped == 2:
        g = tl.load(store.group + page, mask=live, other=0).to(tl.int64)
        return tl.where(g < 0, g + groups, g)
    elif S.grouped == 3:
        return page * S.groups_per_page + token // (N // S.groups_per_page)
    else:
        return page


@triton.jit
def _page_group(store, S: tl.constexpr, groups, page):
    """The group of a whole page."""
    g = page
    if S.grouped == 2:
        g = tl.load(store.group + page).to(tl.int64)
        g = tl.where(g < 0, g + groups, g)
    return g


@triton.jit
def _packed_tiles(
    store, S: tl.constexpr, page, start, pages_left, N: tl.constexpr, UI: tl.constexpr, F: tl.constexpr, ROLLED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """The packed sub-tiles of both planes that a tile's tokens lie in, two tuples."""
    bh = tl.program_id(0).to(tl.int64)
    ROWS1: tl.constexpr = N * S.bits1 // 8
    ROWS2: tl.constexpr = N * S.bits2 // 8
    first, second = (), ()
    for T in tl.static_range(1 if ROLLED else ROWS1 // UI):
        first = first + (
            _load_plane(store.plane1 + bh * store.stride1 + page * ROWS1 * S.lanes1, T + start % ROWS1 // UI, ROWS1,
                        UI, F, S.lanes1, S.block1, TRANSPOSED, ROWS1 * S.lanes1, pages_left),
        )  # fmt: skip
    if S.bits2 > 0:
        for T in tl.static_range(1 if ROLLED else ROWS2 // UI):
            second = second + (
                _load_plane(store.plane2 + bh * store.stride2 + page * ROWS2 * S.lanes2, T + start % ROWS2 // UI,
                            ROWS2, UI, F, S.lanes2, S.block2, TRANSPOSED, ROWS2 * S.lanes2, pages_left),
            )  # fmt: skip
    return first, second


@triton.jit
def _norm(store, b, h, slot, live):
    """The norms of tokens."""
    at = store.norm + b * store.norm_batch + h * store.norm_head
    return tl.load(at + slot, mask=live, other=0.0).to(tl.float32)
