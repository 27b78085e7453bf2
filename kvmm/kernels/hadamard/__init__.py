"""Orthonormal Hadamard rotation of the head dimension: Triton on a GPU, torch elsewhere."""

from __future__ import annotations

import torch

from kvmm.kernels.hadamard import reference
from kvmm.kernels.hadamard.reference import hadamard_matrix, vector_norm

__all__ = ["hadamard_matrix", "rotate", "rotate_norm", "token_norm", "unrotate", "vector_norm"]

_MAX_DIM = 256  # channels that the kernel holds at once


def rotate(x: torch.Tensor) -> torch.Tensor:
    """``H x / sqrt(D)`` for every vector of the last dimension: ``[..., D]`` in, float32 ``[..., D]`` out."""
    return _rotated(x, False) if _in_triton(x) else reference.rotate(x)


def unrotate(x: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`rotate`: ``[..., D]`` in, float32 ``[..., D]`` out."""
    return _rotated(x, True) if _in_triton(x) else reference.unrotate(x)


def rotate_norm(x: torch.Tensor, norm: str = "l2") -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate keys and take the norm of each, in one pass.

    Args:
        x: ``[B, H, T, D]``, bf16, fp16 or fp32, any strides.
        norm: as in :func:`token_norm`.

    Returns:
        float32 ``[B, H, T, D]`` and float32 ``[B, H, T]``.
    """
    if _in_triton(x):
        from kvmm.kernels.hadamard.triton import launch

        return launch(x, rotation=True, norm=norm)
    rotated = reference.rotate(x)
    return rotated, vector_norm(rotated, norm)


def token_norm(x: torch.Tensor, norm: str = "l2", rotation: bool = False) -> torch.Tensor:
    """The norm of every vector ``[B, H, T, D]``, float32 ``[B, H, T]``, without storing anything else.

    Args:
        x: bf16, fp16 or fp32, any strides.
        norm: ``l2``, ``max`` (the largest magnitude), ``mean`` or ``sum`` (of magnitudes).
        rotation: take it of the rotated vectors.
    """
    if _in_triton(x):
        from kvmm.kernels.hadamard.triton import launch

        return launch(x, rotation=rotation, store=False, norm=norm)[1]
    return vector_norm(reference.rotate(x) if rotation else x.float(), norm)


def _in_triton(x: torch.Tensor) -> bool:
    return (
        x.is_cuda
        and x.shape[-1] <= _MAX_DIM
        and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and not (x.requires_grad and torch.is_grad_enabled())
    )


def _rotated(x: torch.Tensor, transposed: bool) -> torch.Tensor:
    from kvmm.kernels.hadamard.triton import launch

    flat = x if x.dim() == 4 else x.reshape(1, 1, -1, x.shape[-1])
    return launch(flat, rotation=True, transposed=transposed)[0].view(x.shape)
