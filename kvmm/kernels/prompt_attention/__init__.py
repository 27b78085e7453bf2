"""Attention of a prompt over exact keys and values: C on some CPUs (:mod:`.native`), torch elsewhere."""

from __future__ import annotations

import torch

from kvmm.kernels.prompt_attention import native, reference


def prompt_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, causal: bool
) -> torch.Tensor:
    """Attention without a mask, as ``torch.nn.functional.scaled_dot_product_attention`` computes it.

    Args:
        query: ``[B, H_q, q, D]``.
        key, value: ``[B, H_kv, T, D]`` of the same dtype; ``H_q`` is a multiple of ``H_kv``.
        scaling: softmax scale.
        causal: query ``i`` sees keys up to ``T - q + i``.

    Returns:
        ``[B, q, H_q, D]``, contiguous. In bfloat16 weights are rounded to it before they meet the values, and sums are
        of float32.
    """
    backend = native if native.takes(query, key, value, causal) else reference
    return backend.prompt_attention(query, key, value, scaling, causal)


__all__ = ["prompt_attention"]
