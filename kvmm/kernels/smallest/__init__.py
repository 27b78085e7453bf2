"""The smallest of many numbers: Triton on a GPU, torch elsewhere."""

from __future__ import annotations

import torch

from kvmm.kernels.smallest import reference


def smallest_slots(x: torch.Tensor, count: int, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Where the smallest numbers are.

    Args:
        x: float32 ``[B, H, T]``, not negative, contiguous.
        count: how many, at most ``T``. Of equal numbers any are taken.
        valid: bool ``[B, T]``, False at slots that are taken last, or None.

    Returns:
        int64 ``[B, H, count]``, in order of the slots.
    """
    if x.is_cuda and x.dtype == torch.float32:
        from kvmm.kernels.smallest.triton import smallest_slots as kernel

        return kernel(x, count, valid)
    return reference.smallest_slots(x, count, valid)


__all__ = ["smallest_slots"]
