"""Angle codes of pages in Triton: one pass over the model's keys, a page a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_MOST_BITS = 6  # of an index, whose codewords a program compares a page with at once
_LEAST_PAGE = 16  # tokens


@triton.jit
def _store_plane(
    codes, index, page, column,
    N: tl.constexpr, J: tl.constexpr, BITS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """Store ``WIDTH`` bits of indices ``[N, BLOCK_J]`` behind the planes of higher bits of page ``page``."""
    PER_BYTE: tl.constexpr = 8 // WIDTH
    R: tl.constexpr = N // PER_BYTE
    bits = (index >> (BITS & (WIDTH - 1))) & (2**WIDTH - 1)
    shift = tl.arange(0, PER_BYTE) * WIDTH
    packed = tl.sum(tl.reshape(bits, [PER_BYTE, R, BLOCK_J]) << shift[:, None, None], 0)
    row = page * (N * BITS // 8) + (BITS & (256 - 2 * WIDTH)) * N // 8 + tl.arange(0, R)
    at = codes + row[:, None] * J + column[None, :]
    tl.store(at, packed.to(tl.uint8), mask=(column < J)[None, :])


@triton.jit(do_not_specialize=["tokens", "pages"])
def encode_kernel(
    x, tokens, heads, x_batch, x_head, x_token, x_channel, mean, book, book_head, book_group,
    codes, radius, scale, limit, pages,
    N: tl.constexpr, J: tl.constexpr, G: tl.constexpr, BITS: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_J: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Of keys without ``mean`` ``[B * H, J * G]``: the indices of the nearest codewords of ``book`` (``[2 ** BITS, G]``
    of a head and sub-vector) in planes, and lengths in 255 steps of the page's largest, ``scale`` ``[B * H, pages]``.
    """
    page, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = sequence // heads, sequence % heads
    token = tl.minimum(page * N + tl.arange(0, N), tokens - 1).to(tl.int64)
    rows = x + batch * x_batch + head * x_head + token * x_token
    inner, column, word = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_J), tl.arange(0, WORDS)
    inside = inner < G
    index = tl.zeros([N, BLOCK_J], tl.int32)
    lengths = tl.zeros([N, BLOCK_J], tl.float32)
    for j in range(J):
        channel = j * G + inner
        centre = tl.load(mean + sequence * (J * G) + channel, mask=inside, other=0.0).to(tl.float32)
        part = tl.load(rows[:, None] + channel[None, :] * x_channel, mask=inside[None, :], other=0.0)
        part = part.to(tl.float32) - centre[None, :]
        at = book + head * book_head + j * book_group + word[None, :] * G + inner[:, None]
        words = tl.load(at, mask=inside[:, None] & (word < 2**BITS)[None, :], other=0.0)
        near = tl.dot(part, words, input_precision="tf32x3") - 0.5 * tl.sum(words * words, 0)[None, :]
        near = tl.where((word < 2**BITS)[None, :], near, float("-inf"))
        here = (column == j)[None, :]
        index = tl.where(here, tl.argmax(near, 1)[:, None], index)
        lengths = tl.where(here, tl.sqrt_rn(tl.sum(part * part, 1))[:, None], lengths)
    largest = tl.minimum(tl.max(tl.max(lengths, 1), 0), limit).to(scale.dtype.element_ty)
    step = tl.div_rn(largest.to(tl.float32), 255.0)
    steps = tl.div_rn(lengths, tl.zeros_like(lengths) + tl.where(step > 0.0, step, 1.0))
    steps = tl.where(step > 0.0, tl.minimum(steps, 255.0), 0.0)
    steps = (steps + 12582912.0) - 12582912.0  # 1.5 * 2**23: the sum has no room for a fraction
    place = sequence * pages + page
    tl.store(scale + place, largest)
    to = radius + (place * N + tl.arange(0, N))[:, None] * J + column[None, :]
    tl.store(to, steps.to(tl.uint8), mask=(column < J)[None, :])
    for power in tl.static_range(3):
        if (BITS & (4 >> power)) != 0:
            _store_plane(codes, index, place, column, N, J, BITS, 4 >> power, BLOCK_J)


def fits(page_size: int, index_bits: int) -> bool:
    """Whether :func:`encode_pages` takes pages of so many tokens, and such indices."""
    return index_bits <= _MOST_BITS and page_size >= _LEAST_PAGE and page_size & (page_size - 1) == 0


def encode_pages(
    x: torch.Tensor, page_size: int, mean: torch.Tensor, codebook: torch.Tensor, index_bits: int
) -> dict[str, torch.Tensor]:
    """Angle codes of keys without their mean; the lengths are those of the sub-vectors.

    Args:
        x: ``[B, H, T, D]``, bf16, fp16 or fp32, any strides; pages are filled with copies of the last token.
        page_size: ``N``; see :func:`fits`.
        mean: ``[B, H, 1, D]``.
        codebook: float32 ``[H or 1, J or 1, 2 ** index_bits, D / J]``.
        index_bits: bits of an index; see :func:`fits`.

    Returns:
        ``codes`` uint8 ``[B, H, P, N * index_bits / 8, J]``, ``radius`` uint8 ``[B, H, P, N, J]`` and ``scale`` float16
        ``[B, H, P]``, as :class:`kvmm.kernels.angle.format.AngleFormat` has them.
    """
    batch, heads, tokens, dim = x.shape
    size, pages = codebook.shape[3], triton.cdiv(tokens, page_size)
    groups, book = dim // size, codebook.contiguous()
    shape = batch, heads, pages
    codes = torch.empty(*shape, page_size * index_bits // 8, groups, dtype=torch.uint8, device=x.device)
    radius = torch.empty(*shape, page_size, groups, dtype=torch.uint8, device=x.device)
    scale = torch.empty(shape, dtype=torch.float16, device=x.device)
    encode_kernel[pages, batch * heads](
        x, tokens, heads, *x.stride(), mean.contiguous(), book,
        book.stride(0) if book.shape[0] > 1 else 0, book.stride(1) if book.shape[1] > 1 else 0,
        codes, radius, scale, torch.finfo(scale.dtype).max, pages,
        N=page_size, J=groups, G=size, BITS=index_bits,
        BLOCK_G=max(16, triton.next_power_of_2(size)), BLOCK_J=triton.next_power_of_2(groups),
        WORDS=max(16, 2**index_bits),
    )  # fmt: skip
    return {"codes": codes, "radius": radius, "scale": scale}
