"""Attention of a prompt over exact keys and values, in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def prompt_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, causal: bool
) -> torch.Tensor:
    """See :func:`kvmm.kernels.prompt_attention.prompt_attention`."""
    mask = None
    if causal and query.shape[2] != key.shape[2]:  # SDPA's own causal mask lets query i see keys up to i
        ones = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        mask, causal = ones.tril(key.shape[2] - query.shape[2]), False
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, is_causal=causal, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous()
