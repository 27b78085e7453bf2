"""A few tokens of a span kept in full precision, out of the codes and out of their statistics.

The keys and the values of the *same* tokens are kept: those whose keys have the smallest norms. Such keys belong to
attention sinks and to the tokens that massive activations mark; they widen the range of every channel, and they are
read by every query.

Stored: ``outlier`` ``[B, H, n, D]`` in ``KVPolicy.exact_dtype`` and ``outlier_slot`` int32 ``[B, H, n]``, the slots
they have in the store.
"""

from __future__ import annotations

import math

import torch

from kvmm.codecs.base import PAGE_SIZE, EncodeContext, Packed, Stored, StoreShape
from kvmm.fields import Field
from kvmm.kernels.exact import to_exact
from kvmm.kernels.hadamard import token_norm
from kvmm.kernels.quantize import Pages
from kvmm.kernels.smallest import smallest_slots

# how they are stored: rows to come name the last slot, so that they count for nothing
OUTLIERS = {"outlier": Stored("token"), "outlier_slot": Stored("token", fill="last slot")}


def num_outliers(tokens: int, pool: float, window: int | None, context: EncodeContext) -> int:
    """How many of ``tokens`` new tokens are kept: ``pool`` in every ``window`` of them, or in the span if it is None;
    rounded up.

    A span of at most a page's 128 tokens behind another one keeps none: that is the text of an answer.
    """
    if context.previous is not None and tokens <= PAGE_SIZE:
        return 0
    return min(tokens, math.ceil(pool * (1 if window is None else max(1, tokens // window))))


def find_outliers(x: torch.Tensor, count: int, context: EncodeContext) -> torch.Tensor:
    """Slots int64 ``[B, H, count]`` of the tokens with the smallest keys, in order.

    The norm is the sum of magnitudes, as in OTT. For values, ``context.keys`` are the keys; without them the
    values' own norms serve.
    """
    keys = x if context.keys is None else context.keys
    norm = token_norm(keys, "sum")
    return smallest_slots(norm, count, context.valid)


def take_out(
    x: torch.Tensor, pages: Pages, slots: torch.Tensor, context: EncodeContext, sample: bool = False
) -> tuple[Pages, dict[str, torch.Tensor]]:
    """Take tokens out of pages.

    Args:
        x: what is to be stored, ``[B, H, T, D]``, in the model's dtype.
        pages: the same in pages, in any basis.
        slots: int64 ``[B, H, n]``.
        context: what the codec was told.
        sample: whether the levels are those of the whole span, of which some pages tell the mean of a long one.

    Returns:
        Pages in which these tokens, and fill, are replaced by the mean of the page's other tokens (with ``sample``, of
        those of a long span), and the tensors to store.
    """
    batch, heads, count, page_size, dim = pages.shape
    tokens = x.shape[2]
    kept = {
        "outlier": to_exact(x.gather(2, slots.unsqueeze(-1).expand(-1, -1, -1, dim)), context.exact_dtype),
        "outlier_slot": (slots if context.previous is None else slots + _slots(context.previous)).int(),
    }
    if not slots.shape[-1]:
        return pages, kept
    keep = torch.ones(batch, heads, count * page_size, dtype=torch.bool, device=x.device)
    if tokens < count * page_size:
        keep[..., tokens:] = False
    if context.valid is not None:
        keep[..., :tokens] &= context.valid.unsqueeze(1).to(x.device)
    keep = keep.scatter_(-1, slots, False).view(batch, heads, count, page_size)
    summed = pages.sample() if sample else pages
    if summed is not pages:
        return pages.replace(keep, summed.kept_mean(keep)), kept
    # a page of nothing but outliers may still share its scales with others
    return pages.replace(keep, pages.page_means(keep)), kept


def outlier_fields(store: StoreShape) -> dict[str, Field]:
    """What :func:`take_out` stores."""
    shape, slots = (store.batch, store.heads, "outliers"), store.pages * store.page_size
    return {
        "outlier": Field(store.exact_dtype, (*shape, store.dim)),
        "outlier_slot": Field(torch.int32, shape, 0, slots),
    }


def _slots(packed: Packed) -> int:
    pages = packed["codes"].shape[2] if packed.page_group is None else len(packed.page_group)
    return pages * packed.page_size


def put_back(decoded: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Put the kept tokens into decoded vectors ``[B, H, T, D]`` (the model's basis), in place."""
    index = packed["outlier_slot"].long().unsqueeze(-1).expand_as(packed["outlier"])
    return decoded.scatter_(2, index, packed["outlier"].float())


def outlier_scores(scores: torch.Tensor, query: torch.Tensor, packed: Packed, outliers: torch.Tensor) -> torch.Tensor:
    """Put ``q . k`` of the kept tokens, in the query's basis ``outliers`` ``[B, H, n, D]``, into scores, in place."""
    index = packed["outlier_slot"].long().unsqueeze(2).expand(-1, -1, query.shape[2], -1)
    return scores.scatter_(-1, index, query @ outliers.float().transpose(-1, -2))


def split_probabilities(probabilities: torch.Tensor, packed: Packed) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities ``[B, H, Q, T]`` without the kept tokens, and those of the kept tokens ``[B, H, Q, n]``."""
    index = packed["outlier_slot"].long().unsqueeze(2).expand(-1, -1, probabilities.shape[2], -1)
    return probabilities.scatter(-1, index, 0.0), probabilities.gather(-1, index)
