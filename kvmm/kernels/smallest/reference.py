"""The smallest of many numbers, in torch."""

from __future__ import annotations

import torch


def smallest_slots(x: torch.Tensor, count: int, valid: torch.Tensor | None = None) -> torch.Tensor:
    """See :func:`kvmm.kernels.smallest.smallest_slots`."""
    if valid is not None:
        x = x.masked_fill(~valid.unsqueeze(1).to(x.device), torch.inf)
    return x.topk(count, -1, largest=False).indices.sort(-1).values
