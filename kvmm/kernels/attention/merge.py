"""Merge attention over disjoint segments: each output is weighted by the exponential of its log-sum-exp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

Observer = Callable[[torch.Tensor], None]


@dataclass(frozen=True)
class AttentionState:
    """The attention of a backend over its segments.

    Attributes:
        out: float32 ``[B, H_kv, rows, D_v]``, the attention over them alone.
        lse: float32 ``[B, H_kv, rows]``, the logarithm of the sum of their exponentials; -inf without a token.
        observers: each wants to be told the ``lse`` of all slots, from which follow the probabilities of its own.
    """

    out: torch.Tensor
    lse: torch.Tensor
    observers: tuple[Observer, ...] = field(default=())


def merge_states(states: Sequence[AttentionState]) -> AttentionState:
    """The attention over the slots of all states together; their observers are told."""
    if len(states) == 1:
        merged = states[0]
    else:
        lse = torch.stack([state.lse for state in states])
        max_lse = lse.amax(0)
        weight = (lse - max_lse.masked_fill(max_lse == -torch.inf, 0)).exp()
        total = weight.sum(0)
        shares = weight / total.clamp_min(torch.finfo(total.dtype).tiny)  # without a token: 0
        out = sum(state.out * share.unsqueeze(-1) for state, share in zip(states, shares, strict=True))
        merged = AttentionState(
            out, max_lse + total.log(), tuple(observer for state in states for observer in state.observers)
        )
    for observer in merged.observers:
        observer(merged.lse)
    return merged
