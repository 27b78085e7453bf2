"""Which earlier tokens a token is like: in documents many patches are."""

from __future__ import annotations

import torch

MAX_DISTANCE = 1024  # tokens
_BLOCK = 256  # tokens compared at once


def find_like(features: torch.Tensor, count: int = 2) -> torch.Tensor:
    """The nearest earlier tokens.

    Args:
        features: float32 ``[T, F]``, of comparable scale.
        count: how many.

    Returns:
        int64 ``[count, T]``: the tokens, nearest first by Euclidean distance, of the :data:`MAX_DISTANCE` before each;
        where there are fewer, the nearest again, and 0 for the first token.
    """
    tokens = features.shape[0]
    like = torch.zeros(count, tokens, dtype=torch.int64)
    square = features.square().sum(1)
    for begin in range(1, tokens, _BLOCK):
        end, first = min(begin + _BLOCK, tokens), max(0, begin - MAX_DISTANCE)
        token, other = torch.arange(begin, end)[:, None], torch.arange(first, end)[None]
        distance = square[first:end] - 2 * (features[begin:end] @ features[first:end].T)
        distance.masked_fill_((other >= token) | (other < token - MAX_DISTANCE), torch.inf)
        found = distance.topk(min(count, end - first), largest=False)
        nearest = found.indices + first
        nearest = torch.where(found.values.isinf(), nearest[:, :1], nearest).T
        like[: len(nearest), begin:end] = nearest
        like[len(nearest) :, begin:end] = nearest[:1]
    return like


__all__ = ["MAX_DISTANCE", "find_like"]
