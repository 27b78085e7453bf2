"""Tokens that are kept as they are, in 16 bits: which dtype that is, and the cast to it."""

from __future__ import annotations

import torch

BF16_ROUNDING = 2.0**-18
"""A relative squared error that rounding to bfloat16 (8 significant bits, to nearest) never exceeds."""


def exact_dtype(name: str, model_dtype: torch.dtype) -> torch.dtype:
    """The dtype of exact tokens.

    Args:
        name: ``auto``, ``bfloat16``, ``float16`` or ``model``. ``auto`` is the model's dtype if it has 16 bits,
            else bfloat16.
        model_dtype: the dtype in which the model computes keys and values.
    """
    if name == "model" or (name == "auto" and model_dtype.itemsize == 2):
        return model_dtype
    return torch.bfloat16 if name == "auto" else getattr(torch, name)


def to_exact(x: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """``x`` in ``dtype`` (None: as it is), rounded to nearest; what exceeds float16 becomes its largest number."""
    if dtype is None or x.dtype == dtype:
        return x
    if dtype == torch.float16:
        limit = torch.finfo(dtype).max
        x = x.float().clamp(-limit, limit)  # in bfloat16 the limit itself would be rounded to more
    return x.to(dtype)
