"""Attention over packed parts."""

from kvmm.kernels.decode.reference import (
    attend,
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
