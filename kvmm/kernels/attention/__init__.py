"""Attention over packed segments: kernels on a GPU, C on a CPU that has a compiler, torch elsewhere."""

from __future__ import annotations

from kvmm.kernels.attention.backends.torch.reference import (
    mix_per_channel,
    mix_per_token,
    scores_per_channel,
    scores_per_token,
    scores_second_digit,
)
from kvmm.kernels.attention.dispatch import attend

__all__ = [
    "attend",
    "mix_per_channel",
    "mix_per_token",
    "scores_per_channel",
    "scores_per_token",
    "scores_second_digit",
]
