"""Hadamard rotation and token norms of strided tensors in one pass, in Triton.

A vector meets a matrix on the tensor cores without losing bits: both are split into bf16 parts (8 bits of mantissa
each: one part holds a bf16 number or a sign, two an fp16 number, three an fp32 number), products of parts are exact in
fp32, and parts whose product lies under fp32's last bit are left out. A rotation of bf16 keys is one bf16 product.
Tensor cores cut off what a sum has no room for. The products of the lower parts therefore come first, while the sum is
as small as they are: the other way round each of them would cost the sum a last bit, always downwards.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl

from kvmm.kernels.hadamard.reference import hadamard_matrix

PARTS = {torch.bfloat16: 1, torch.float16: 2, torch.float32: 3}  # bf16 numbers that add up to one of the type
_NORMS = ("l2", "max", "mean", "sum")
# Triton's interpreter multiplies the bit patterns of bf16 numbers; there, parts go through fp32, which holds them
OPERAND = tl.constexpr(tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16)


@triton.jit
def product(
    rows,
    stride,
    matrix,
    D: tl.constexpr,
    N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    MATRIX_PARTS: tl.constexpr,
):
    """``matrix x`` of N vectors: pointers ``rows`` ``[N]`` to their first channels, ``stride`` from one to the next.

    ``matrix`` points to bf16 ``[MATRIX_PARTS, D, D]``. Returns float32 ``[N, BLOCK_D]``, 0 behind ``D``.
    """
    channel = tl.arange(0, BLOCK_D)
    total = tl.zeros([N, BLOCK_D], dtype=tl.float32)
    for small in tl.static_range(3):
        for i in tl.static_range(PARTS):
            for j in tl.static_range(MATRIX_PARTS):
                if i + j == 2 - small:
                    # a loop for each pair: of two products in one loop, Triton lays out the first for other warps
                    for start in range(0, D, BLOCK_K):
                        k = start + tl.arange(0, BLOCK_K)
                        part = tl.load(rows[:, None] + k[None, :] * stride, mask=k[None, :] < D, other=0.0)
                        for _ in tl.static_range(i):
                            part = part.to(tl.float32) - part.to(tl.bfloat16).to(tl.float32)
                        weights = tl.load(
                            matrix + j * D * D + channel[None, :] * D + k[:, None],
                            mask=(channel[None, :] < D) & (k[:, None] < D),
                            other=0.0,
                        )
                        total = tl.dot(part.to(tl.bfloat16).to(OPERAND), weights.to(OPERAND), total)
    return total


@triton.jit(do_not_specialize=["tokens"])
def _rotate_kernel(
    x,
    signs,
    rotated,
    norms,
    tokens,
    heads,
    stride_b,
    stride_h,
    stride_t,
    stride_d,
    scale,
    limit,
    D: tl.constexpr,
    N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    NORM: tl.constexpr,
    DIVISOR: tl.constexpr,
):
    sequence = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    channel = tl.arange(0, BLOCK_D)
    inside = token < tokens
    rows = x + sequence // heads * stride_b + sequence % heads * stride_h + tl.minimum(token, tokens - 1) * stride_t
    if signs is not None:
        y = product(rows, stride_d, signs, D, N, BLOCK_D, BLOCK_K, PARTS, 1) * scale
    else:
        y = tl.load(rows[:, None] + channel[None, :] * stride_d, mask=channel[None, :] < D, other=0.0).to(tl.float32)
    place = sequence * tokens + token
    if rotated is not None:
        tl.store(
            rotated + place[:, None] * D + channel[None, :],
            y.to(rotated.dtype.element_ty),
            mask=inside[:, None] & (channel[None, :] < D),
        )
    if norms is not None:
        if NORM == 0:
            norm = tl.sqrt(tl.sum(y * y, 1))
        elif NORM == 1:
            norm = tl.max(tl.abs(y), 1)
        elif NORM == 2:
            norm = tl.sum(tl.abs(y), 1) / D
        else:
            norm = tl.sum(tl.abs(y), 1)
        norm = tl.where(norm > limit, limit, norm).to(norms.dtype.element_ty)
        if DIVISOR:
            norm = tl.where(norm == 0.0, 1.0, norm.to(tl.float32)).to(norms.dtype.element_ty)
        tl.store(norms + place, norm, mask=inside)


@lru_cache(maxsize=32)
def signs(n: int, transposed: bool, device: torch.device) -> torch.Tensor:
    """The Hadamard matrix of order ``n`` with entries +-1, bf16 ``[n, n]``."""
    matrix = hadamard_matrix(n).sign()
    return (matrix.T if transposed else matrix).contiguous().to(device, torch.bfloat16)


def matrix_parts(matrix: torch.Tensor, parts: int) -> torch.Tensor:
    """bf16 ``[..., parts, D, D]`` that add up to float32 ``matrix`` ``[..., D, D]``."""
    found = []
    for _ in range(parts):
        found.append(matrix.bfloat16())
        matrix = matrix - found[-1].float()
    return torch.stack(found, -3)


def block_sizes(dim: int, rows: int, tiles: int = 1) -> dict[str, int]:
    """Block sizes and warps of a program that holds ``tiles`` times ``rows`` vectors of ``dim`` channels."""
    block = max(16, triton.next_power_of_2(dim))
    inner = 64 if dim % 64 == 0 else 32 if dim % 32 == 0 else 16
    warps = max(4, min(8, tiles * rows * block // 2048))
    return {"BLOCK_D": block, "BLOCK_K": min(inner, 8192 // block), "num_warps": warps, "num_stages": 2}


def launch(
    x: torch.Tensor,
    *,
    rotation: bool,
    transposed: bool = False,
    store: bool = True,
    norm: str | None = None,
    divisor: torch.dtype | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Rotate vectors ``[B, H, T, D]`` of any strides and take norms of the result.

    Args:
        x: bf16, fp16 or fp32.
        rotation: whether to rotate at all.
        transposed: rotate back.
        store: whether the rotated vectors are wanted.
        norm: ``l2``, ``max`` (largest magnitude), ``mean`` or ``sum`` (of magnitudes), or None.
        divisor: the norms are to be divided by and are wanted in this type: at most what fp16 holds, 1 in place of 0.

    Returns:
        float32 ``[B, H, T, D]`` or None, and float32 (or ``divisor``) ``[B, H, T]`` or None.
    """
    batch, heads, tokens, dim = x.shape
    rotated = torch.empty(x.shape, dtype=torch.float32, device=x.device) if store else None
    norms = None
    if norm is not None:
        norms = torch.empty(x.shape[:3], dtype=divisor or torch.float32, device=x.device)
    if x.numel():
        block = 16 if tokens <= 16 else 64 if dim <= 128 else 32
        _rotate_kernel[triton.cdiv(tokens, block), batch * heads](
            x,
            signs(dim, transposed, x.device) if rotation else None,
            rotated,
            norms,
            tokens,
            heads,
            *x.stride(),
            dim**-0.5,
            float("inf") if divisor is None else 65504.0,
            D=dim,
            N=block,
            PARTS=PARTS[x.dtype],
            NORM=0 if norm is None else _NORMS.index(norm),
            DIVISOR=divisor is not None,
            **block_sizes(dim, block),
        )
    return rotated, norms
