"""Logit drift: how far a packed cache moves the next-token distributions, the text being the same.

The prompt is read exactly and packed; then a fixed continuation is read over the packed cache and over transformers'
DynamicCache, and the two distributions after every token are compared. Nothing is sampled, so one number per position
says what the policy changed, before one changed token changes all that follow. ``KL(full || policy)`` is the extra
nats that the policy's distribution costs on text of the full-precision model. All statistics are float32 or wider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from kvmm.errors import KVMMError
from kvmm.models.caches import measured_bits
from kvmm.models.documents import Document
from kvmm.models.forced_text import TOP_K, ForcedText, PositionDrift
from kvmm.models.prompting import document_length
from kvmm.policy import KVPolicy

POSITION_BUCKETS = 4
SMALLEST_CONTEXT = 256  # the context-length buckets are [0, 256), [256, 512), [512, 1024), ...


@dataclass(frozen=True)
class LogitDrift:
    """Statistics over positions: KL(full || policy) in nats, agreement, perplexities of the continuation.

    ``topk_overlap`` is the mean share of the ``top_k`` most probable tokens in common. Perplexities are None if no
    position has a next token.
    """

    positions: int
    kl_mean: float
    kl_median: float
    kl_p90: float
    kl_p99: float
    kl_max: float
    top1_agreement: float
    top_k: int
    topk_overlap: float
    perplexity: float | None
    perplexity_full: float | None


@dataclass(frozen=True)
class Bucket:
    """Positions in ``[start, end)``, as a share of the continuation or as a number of tokens read."""

    start: float
    end: float
    positions: int
    kl_mean: float
    top1_agreement: float


@dataclass(frozen=True)
class LongContextTail:
    """Whether drift grows towards the end.

    ``tail_kl`` is the mean KL over the last quarter of the positions of every continuation, ``head_kl`` over the first,
    ``ratio`` their quotient (None when the first quarter does not drift at all or is empty).
    """

    tail_kl: float
    head_kl: float | None
    ratio: float | None
    by_position: tuple[Bucket, ...]
    by_context: tuple[Bucket, ...]


def measure_drift(
    model: Any,
    inputs: Mapping[str, torch.Tensor],
    policy: str | KVPolicy,
    continuation: torch.Tensor,
    *,
    packed: int | None = None,
    top_k: int = TOP_K,
) -> tuple[PositionDrift, dict[str, float]]:
    """Teacher-forced drift of one policy on one prompt; for several policies keep a :class:`ForcedText`.

    Args:
        model: as ``load_model`` returns it.
        inputs: what the processor returned for one prompt: ids ``[1, T]``, and pixels or audio features if any.
        policy: a preset's name or a :class:`KVPolicy`.
        continuation: int64 ``[1, n]``, the text that follows the prompt.
        packed: how many of the prompt's tokens are read exactly and packed. The rest is read over the packed cache.
            Default: everything up to the end of the last medium, or the whole prompt without media.
        top_k: size of the top-k sets that are compared.

    Returns:
        The drift at every position that predicts a token of the continuation, and the measured bits a value of the
        packed document (:func:`kvmm.models.caches.measured_bits`).

    Raises:
        KVMMError: for several sequences, an unknown policy, or nothing to compare.
    """
    document = Document(model, inputs, packed_length(model, inputs) if packed is None else packed)
    bits = measured_bits(document.cache(policy))
    return ForcedText(document, inputs, continuation, top_k=top_k).measure(policy), bits


def packed_length(model: Any, inputs: Mapping[str, torch.Tensor]) -> int:
    """The document's tokens, or all of a prompt without media."""
    length = document_length(inputs["input_ids"], model.config)
    return length if length > 1 else inputs["input_ids"].shape[1]


def summarise(drift: PositionDrift, top_k: int = TOP_K) -> LogitDrift:
    """Statistics over positions. Raises :class:`KVMMError` without any."""
    if not len(drift):
        raise KVMMError("There are no positions to summarise.")
    has_target = ~np.isnan(drift.nll)
    kl = drift.kl.astype(np.float64)
    median, p90, p99 = np.quantile(kl, (0.5, 0.9, 0.99))

    def perplexity(nll: np.ndarray) -> float | None:
        return float(np.exp(nll[has_target].astype(np.float64).mean())) if has_target.any() else None

    return LogitDrift(
        positions=len(drift),
        kl_mean=float(kl.mean()),
        kl_median=float(median),
        kl_p90=float(p90),
        kl_p99=float(p99),
        kl_max=float(kl.max()),
        top1_agreement=float(drift.top1.mean()),
        top_k=top_k,
        topk_overlap=float(drift.overlap.astype(np.float64).mean()),
        perplexity=perplexity(drift.nll),
        perplexity_full=perplexity(drift.nll_full),
    )


def standard_error(parts: Sequence[PositionDrift]) -> float | None:
    """Standard error of the mean KL over all positions, prompts being the independent draws; None for one prompt.

    Positions of a prompt are not independent: a page that a policy reads badly is read badly throughout. So this is the
    error of a ratio of two sums over prompts (cluster sampling), to first order.
    """
    sums = np.array([part.kl.sum(dtype=np.float64) for part in parts])
    counts = np.array([len(part) for part in parts])
    if len(parts) < 2:
        return None
    rest = sums - counts * (sums.sum() / counts.sum())
    return float(np.sqrt(len(parts) / (len(parts) - 1) * (rest**2).sum()) / counts.sum())


def long_context_tail(drift: PositionDrift, buckets: int = POSITION_BUCKETS) -> LongContextTail:
    """The last quarter of the positions against the first, and KL by place; see :class:`LongContextTail`."""
    kl, progress = drift.kl.astype(np.float64), drift.progress
    # A continuation of one position is all tail: its only position comes last.
    last = progress >= 0.75 if (progress >= 0.75).any() else progress == progress.max()
    first = (progress < 0.25) & ~last
    tail = float(kl[last].mean())
    head = float(kl[first].mean()) if first.any() else None
    shares = np.linspace(0, 1, buckets + 1)
    edges = [0]
    while edges[-1] <= int(drift.context.max()):
        edges.append(max(SMALLEST_CONTEXT, 2 * edges[-1]))
    return LongContextTail(
        tail_kl=tail,
        head_kl=head,
        ratio=tail / head if head else None,
        by_position=_buckets(drift, progress, shares.tolist()),
        by_context=_buckets(drift, drift.context, edges),
    )


def _buckets(drift: PositionDrift, place: np.ndarray, edges: Sequence[float]) -> tuple[Bucket, ...]:
    buckets = []
    for start, end in pairwise(edges):
        inside = drift.select((place >= start) & (place < end))
        if len(inside):
            kl = float(inside.kl.astype(np.float64).mean())
            buckets.append(Bucket(float(start), float(end), len(inside), kl, float(inside.top1.mean())))
    return tuple(buckets)


__all__ = [
    "Bucket",
    "LogitDrift",
    "LongContextTail",
    "long_context_tail",
    "measure_drift",
    "packed_length",
    "standard_error",
    "summarise",
]
