"""Keys coded as codewords and lengths, read through tables of the query: Triton on a GPU, torch elsewhere."""

from __future__ import annotations

import torch

from kvmm.kernels.angle import reference
from kvmm.kernels.angle.reference import kmeans, mix_histogram, nearest, reconstruct

__all__ = ["kmeans", "mix_histogram", "nearest", "reconstruct", "scores_lut"]


def scores_lut(
    query: torch.Tensor,
    index: torch.Tensor,
    codebook: torch.Tensor,
    radius: torch.Tensor | None = None,
    sets: torch.Tensor | None = None,
) -> torch.Tensor:
    """``q . k`` by table; see :func:`kvmm.kernels.angle.reference.scores_lut`, which is the definition.

    Args:
        query: ``[S, Q, J * g]``, already multiplied by the softmax scale.
        index: uint8 ``[E, n, J]``, ``E`` runs of ``n`` tokens.
        codebook: ``[S or 1, J or 1, K, g]``.
        radius: ``[E, n, J]``, or None if codewords have lengths of their own.
        sets: int64 ``[E]``, the set of every run; None if run ``e`` takes set ``e``.

    Returns:
        float32 ``[E, Q, n]``.
    """
    if query.is_cuda:
        from kvmm.kernels.angle import triton  # needs Triton, which not every platform has

        return triton.scores_lut(query, index, codebook, radius, sets)
    return reference.scores_lut(query, index, codebook, radius, sets)
