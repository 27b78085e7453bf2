"""Logits of pages of angle codes in Triton: indices and lengths are read as they are packed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS = 16  # query rows a program takes at most


@triton.jit
def page_scores_kernel(
    CODES, RADIUS, SCALE, TABLE, OFFSET, OUT, H, pages, rows,
    codes_b, codes_h, radius_b, radius_h, scale_b, scale_h,
    N: tl.constexpr, J: tl.constexpr, BITS: tl.constexpr, RP: tl.constexpr,
):  # fmt: skip
    """``OUT [B * H, rows, pages * N]``: ``OFFSET [B * H, rows, pages]`` plus, over ``J`` sub-vectors, the length times
    the row of ``TABLE [B * H, J, 2 ** BITS, rows]`` that the index names.

    Indices are planes of powers of two, the highest bits first (``CODES [B, H, pages, N * BITS / 8, J]``), lengths
    ``RADIUS [B, H, pages, N, J]`` in 255 steps of ``SCALE [B, H, pages]``.
    """
    run, page = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    b, h = run // H, run % H
    n, r = tl.arange(0, N), tl.program_id(2) * RP + tl.arange(0, RP)
    codes = CODES + b * codes_b + h * codes_h + page * (N * BITS // 8 * J)
    lengths = RADIUS + b * radius_b + h * radius_h + page * (N * J) + n * J
    total = tl.zeros((N, RP), tl.float32)
    for j in range(0, J):
        index = tl.zeros((N,), tl.int32)
        for width in tl.static_range(8, 0, -1):
            if (width & (width - 1)) == 0 and (BITS & width) != 0:
                held = N * width // 8  # bytes of a plane
                above = BITS // (2 * width) * (2 * width) * N // 8  # of the planes in front of it
                byte = tl.load(codes + (above + n % held) * J + j).to(tl.int32)
                index = (index << width) | ((byte >> (width * (n // held))) & ((1 << width) - 1))
        row = TABLE + ((run * J + j) * (1 << BITS) + index) * rows
        part = tl.load(row[:, None] + r[None, :], mask=(r < rows)[None, :], other=0.0)
        total += part * tl.load(lengths + j).to(tl.float32)[:, None]
    step = tl.load(SCALE + b * scale_b + h * scale_h + page).to(tl.float32) * (1.0 / 255)
    offset = tl.load(OFFSET + (run * rows + r) * pages + page, mask=r < rows, other=0.0)
    to = OUT + (run * rows + r[None, :]) * (pages * N) + page * N + n[:, None]
    tl.store(to, total * step + offset[None, :], mask=(r < rows)[None, :])


def page_scores(
    query: torch.Tensor,
    codes: torch.Tensor,
    radius: torch.Tensor,
    scale: torch.Tensor,
    codebook: torch.Tensor,
    offset: torch.Tensor,
    index_bits: int,
) -> torch.Tensor:
    """``q . k`` of pages of angle codes.

    Args:
        query: float32 ``[B, H, Q, D]``, already multiplied by the softmax scale.
        codes: uint8 ``[B, H, P, N * index_bits / 8, J]``, indices in planes of bits.
        radius: uint8 ``[B, H, P, N, J]``, lengths in 255 steps of ``scale``.
        scale: float16 or float32 ``[B, H, P]``.
        codebook: ``[H or 1, J or 1, 2 ** index_bits, D / J]``.
        offset: float32 ``[B, H, Q, P]``, what the mean of each page adds.
        index_bits: at most 8.

    Returns:
        float32 ``[B, H, Q, P * N]``.
    """
    (batch, heads, rows, _), (pages, tokens, groups) = query.shape, radius.shape[2:]
    split = query.float().unflatten(-1, (groups, -1)).transpose(2, 3)  # [B, H, J, Q, g]
    table = (codebook.float() @ split.transpose(-1, -2)).contiguous()  # [B, H, J, K, Q]
    codes, radius, scale = (_inner_contiguous(x) for x in (codes, radius, scale))
    out = torch.empty(batch, heads, rows, pages * tokens, device=query.device)
    block = min(_ROWS, triton.next_power_of_2(rows))
    page_scores_kernel[batch * heads, pages, triton.cdiv(rows, block)](
        codes, radius, scale, table, offset.contiguous(), out, heads, pages, rows,
        *codes.stride()[:2], *radius.stride()[:2], *scale.stride()[:2],
        N=tokens, J=groups, BITS=index_bits, RP=block,
    )  # fmt: skip
    return out


def _inner_contiguous(x: torch.Tensor) -> torch.Tensor:
    """``x`` ``[B, H, ...]`` with what a head has behind each other."""
    return x if x[0, 0].is_contiguous() else x.contiguous()
