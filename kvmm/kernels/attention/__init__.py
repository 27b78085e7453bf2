"""Attention over packed parts: Triton kernels on a GPU, C on a CPU that has a compiler, torch elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvmm.kernels.attention.backends.cpu import kernel as native
from kvmm.kernels.attention.backends.torch import reference
from kvmm.kernels.attention.backends.torch.reference import (
    mix_per_channel,
    mix_per_token,
    scores_per_channel,
    scores_per_token,
    scores_second_digit,
)

__all__ = [
    "attend",
    "mix_per_channel",
    "mix_per_token",
    "scores_per_channel",
    "scores_per_token",
    "scores_second_digit",
]


def attend(
    query: torch.Tensor,
    parts: Sequence,
    dense_key: torch.Tensor,
    dense_value: torch.Tensor,
    bias: torch.Tensor | None,
    scaling: float,
    dense_length: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of new queries over packed parts and the tokens kept in full precision.

    The arguments and the result are those of :func:`kvmm.kernels.attention.backends.torch.reference.attend`, which is
    the definition. On a GPU kernels read the packed codes in place, where all parts let them; on a CPU with a C
    compiler as well.
    """
    if query.is_cuda:
        from kvmm.kernels.attention import gpu as driver  # needs Triton, which not every platform has

        if driver.supports(parts):
            return driver.attend(query, parts, dense_key, dense_value, bias, scaling, dense_length)
    elif query.device.type == "cpu":
        output = native.attend(query, parts, dense_key, dense_value, bias, scaling, dense_length)
        if output is not None:
            return output
    return reference.attend(query, parts, dense_key, dense_value, bias, scaling, dense_length)
