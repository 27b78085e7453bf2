"""Slots in Triton, what the kernels share: planes of bits as operands of matrix products, norms, exact tokens."""

from __future__ import annotations

import triton
import triton.language as tl

_AND = tl.constexpr(
    {
        (bits, k): f"and.b32 $0, $1, {((1 << bits) - 1) * 0x00010001 << k:#010x};"
        for bits in (1, 2)
        for k in range(0, 8, bits)
    }
)
_SHIFT = tl.constexpr("{ .reg .b32 t; and.b32 t, $2, 31; shr.u32 $0, $1, t; }")


@triton.jit
def plane(words, K: tl.constexpr, BITS: tl.constexpr, ASM: tl.constexpr):
    """The field of ``BITS`` bits from bit ``K`` on of int16 words times ``2^(K - 24)``, as float16: the bits where they
    lie are a subnormal number."""
    if ASM:  # two words an instruction
        return tl.inline_asm_elementwise(_AND[BITS, K], "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2)
    else:  # the interpreter has no assembler
        return (words & (((1 << BITS) - 1) << K)).to(tl.float16, bitcast=True)


@triton.jit
def upper(words, ASM: tl.constexpr):
    """Int16 words shifted right by 8; what comes in at the top is undefined."""
    if ASM:
        return tl.inline_asm_elementwise("shr.u32 $0, $1, 8;", "=r,r", [words], dtype=tl.int16, is_pure=True, pack=2)
    else:
        return words >> 8


@triton.jit
def load_words(rows, column, FIRST: tl.constexpr, WORDS: tl.constexpr, ASM: tl.constexpr):
    """A chunk: words ``FIRST`` to ``FIRST + WORDS - 1`` of slots ``rows``, several times where ``column`` is wider; of
    these only the lowest ``WORDS`` bits count."""
    if WORDS >= 16:
        return tl.load(rows + (FIRST + column))
    words = tl.load(rows + (FIRST + column % WORDS))
    shift = (column // WORDS * WORDS).to(tl.int16)
    if ASM:  # two words, which are of one column or of two with the same shift
        return tl.inline_asm_elementwise(
            _SHIFT, "=r,r,r", [words, shift], dtype=tl.int16, is_pure=True, pack=2
        )  # fmt: skip
    else:
        return words >> shift


@triton.jit
def load_norms(rows, BYTE: tl.constexpr, live):
    """Float32 of the float16 at a byte of slots ``rows`` (pointers to int16), 0 where not ``live``."""
    if BYTE % 2 == 0:
        bits = tl.load(rows + BYTE // 2, mask=live, other=0)
    else:
        low = tl.load(rows + BYTE // 2, mask=live, other=0)
        high = tl.load(rows + BYTE // 2 + 1, mask=live, other=0)
        bits = ((low >> 8) & 255) | (high << 8)
    return bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _chunk_products(
    s, rows, weights, c, mask, WIDTH, BITS: tl.constexpr, FIRST: tl.constexpr, WORDS: tl.constexpr, COLUMN: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    COLUMNS: tl.constexpr = 16 if WORDS < 16 else WORDS
    PLANES: tl.constexpr = (WORDS if WORDS < 16 else 16) // BITS
    column = tl.arange(0, COLUMNS)
    words = load_words(rows[:, None], column[None, :], FIRST, WORDS, ASM)
    for i in tl.static_range(PLANES):
        if i * BITS == 8:
            words = upper(words, ASM)
        at = weights + (COLUMN + i * COLUMNS + column)[:, None] * WIDTH + c[None, :]
        w = tl.load(at, mask=mask, other=0.0)
        s = tl.dot(plane(words, i * BITS % 8, BITS, ASM), w, s)
    return s


@triton.jit
def products(s, rows, weights, c, mask, WIDTH, G: tl.constexpr, ASM: tl.constexpr):
    """Add the products of a region ``G`` of slots ``rows`` ``[T]`` (pointers to int16) and weights float16 ``[columns,
    WIDTH]``, of which columns ``c`` ``[N]`` with ``mask`` ``[1, N]``, to ``s`` float32 ``[T, N]``, in units of 2^-24."""
    BITS: tl.constexpr = G.bits
    FIRST: tl.constexpr = G.first
    WORDS: tl.constexpr = G.width
    FULL: tl.constexpr = G.full
    REST: tl.constexpr = G.rest
    COLUMN: tl.constexpr = G.column
    EACH: tl.constexpr = 16 // BITS  # columns of a word
    for i in tl.static_range(FULL):
        s = _chunk_products(
            s, rows, weights, c, mask, WIDTH, BITS, FIRST + i * WORDS, WORDS, COLUMN + i * EACH * WORDS, ASM
        )  # fmt: skip
    if REST > 0:
        s = _chunk_products(
            s, rows, weights, c, mask, WIDTH, BITS, FIRST + FULL * WORDS, REST, COLUMN + FULL * EACH * WORDS, ASM
        )  # fmt: skip
    return s
