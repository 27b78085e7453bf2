"""Logit drift: how far a packed cache moves the next-token distributions, the text being the same.

The prompt is read exactly and packed; then a fixed continuation is read over the packed cache and over transformers'
DynamicCache, and the two distributions after every token are compared. Nothing is sampled, so one number per position
says what the policy changed, before one changed token changes all that follow. ``KL(full || policy)`` is the extra
nats that the policy's distribution costs on text of the full-precision model. All statistics are float32 or wider.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from kvmm.errors import KVMMError
from kvmm.models.caches import DYNAMIC, measured_bits
from kvmm.models.documents import Document, read_on
from kvmm.models.prompting import document_length
from kvmm.policy import KVPolicy

TOP_K = 10
POSITION_BUCKETS = 4
SMALLEST_CONTEXT = 256  # the context-length buckets are [0, 256), [256, 512), [512, 1024), ...
_COMPARED = ("kl", "js", "difference", "top1", "overlap", "nll", "nll_full")
_ROWS = 64  # distributions compared at a time: 64 of 150 000 tokens in float32 are 40 MB


@dataclass(frozen=True)
class PositionDrift:
    """One entry a scored position, in the order they were read.

    Attributes:
        kl: float32 ``[N]``, KL(full || policy) in nats.
        js: float32 ``[N]``, the Jensen-Shannon divergence of the two, in nats, at most ``log 2``.
        difference: float32 ``[N]``, the mean absolute difference of log-probabilities, in nats, as full precision
            weighs the tokens.
        top1: bool ``[N]``, whether both have the same most probable token.
        overlap: float32 ``[N]``, the share of the ``top_k`` most probable tokens that both have.
        nll, nll_full: float32 ``[N]``, minus the log-probability of the token that follows, with the policy and with
            full precision; NaN where the text ends.
        context: int64 ``[N]``, tokens in the cache at the position, its own included.
        progress: float32 ``[N]`` in [0, 1), where in its continuation the position is.
    """

    kl: np.ndarray
    js: np.ndarray
    difference: np.ndarray
    top1: np.ndarray
    overlap: np.ndarray
    nll: np.ndarray
    nll_full: np.ndarray
    context: np.ndarray
    progress: np.ndarray

    def __len__(self) -> int:
        return len(self.kl)

    def select(self, mask: np.ndarray) -> PositionDrift:
        """The positions of a bool mask ``[N]``."""
        return PositionDrift(*(getattr(self, f.name)[mask] for f in fields(self)))

    @classmethod
    def pooled(cls, parts: Sequence[PositionDrift]) -> PositionDrift:
        """The positions of several prompts after another."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))


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


def compare_logits(
    full: torch.Tensor, other: torch.Tensor, targets: torch.Tensor | None = None, *, top_k: int = TOP_K
) -> dict[str, torch.Tensor]:
    """Compare two sets of next-token logits, position by position.

    Args:
        full, other: ``[N, V]`` logits of full precision and of the policy; ``-inf`` is a token that cannot come.
        targets: int64 ``[n]`` the tokens that follow the first ``n <= N`` positions; None for none.
        top_k: size of the sets compared; capped at ``V``.

    Returns:
        ``kl`` and ``js`` float32 ``[N]``, ``top1`` bool ``[N]``, ``overlap`` float32 ``[N]``, ``difference`` float32
        ``[N]``, ``nll`` and ``nll_full`` float32 ``[N]`` (NaN without a target), on the CPU; see
        :class:`PositionDrift`.

    Raises:
        KVMMError: for shapes that do not fit each other.
    """
    if full.shape != other.shape or full.dim() != 2:
        raise KVMMError(f"Logits of shapes {list(full.shape)} and {list(other.shape)} cannot be compared; use [N, V].")
    num_targets = 0 if targets is None else len(targets)
    if num_targets > len(full):
        raise KVMMError(f"There are {num_targets} next tokens for {len(full)} positions; pass at most one a position.")
    top_k = min(top_k, full.shape[1])
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in _COMPARED}
    for start in range(0, len(full), _ROWS):
        log_p = full[start : start + _ROWS].float().log_softmax(-1)
        log_q = other[start : start + _ROWS].float().log_softmax(-1)
        p = log_p.exp()
        # 0 * log(0 / q) is 0, which -inf would turn into NaN
        terms = torch.where(p > 0, p * (log_p - log_q), 0.0)
        parts["kl"].append(terms.sum(-1).clamp_min(0))
        parts["js"].append(_jensen_shannon(log_p, log_q))
        both = torch.isfinite(log_p) & torch.isfinite(log_q)
        parts["difference"].append(torch.where(both, (log_p - log_q).abs(), 0.0).mul(p).sum(-1))
        best_p, best_q = (x.topk(top_k, dim=-1).indices for x in (log_p, log_q))
        parts["top1"].append(log_p.argmax(-1) == log_q.argmax(-1))
        shared = (best_p[:, :, None] == best_q[:, None, :]).any(-1)
        parts["overlap"].append(shared.float().mean(-1))
        for name, log in (("nll_full", log_p), ("nll", log_q)):
            nll = log.new_full((len(log),), torch.nan)
            count = min(max(num_targets - start, 0), len(log))
            if count:
                following = targets[start : start + count].to(log.device)
                nll[:count] = -log[:count].gather(1, following[:, None])[:, 0]
            parts[name].append(nll)
    empty = torch.empty(0)
    return {name: torch.cat([p.cpu() for p in chunks]) if chunks else empty for name, chunks in parts.items()}


def _jensen_shannon(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """float32 ``[n]``, in nats: at most ``log 2``, and symmetric, unlike KL."""
    middle = torch.logaddexp(log_p, log_q) - math.log(2)
    sides = (torch.where(side > -torch.inf, side.exp() * (side - middle), 0.0).sum(-1) for side in (log_p, log_q))
    return (sum(sides) / 2).clamp(0, math.log(2))


class ForcedText:
    """A prompt and its continuation, read once in full precision and then under any number of policies.

    Args:
        document: the prompt's first tokens, which are packed.
        inputs: the inputs of the whole prompt, ``T`` tokens.
        continuation: int64 ``[1, n]``, the text that follows. What of the prompt is not in the document is read over
            the packed cache too, but only positions that predict the continuation are scored.
        top_k: for :func:`compare_logits`.

    Raises:
        KVMMError: if no position is left to score, or the text exceeds the model's positions.
    """

    def __init__(
        self,
        document: Document,
        inputs: Mapping[str, torch.Tensor],
        continuation: torch.Tensor,
        *,
        top_k: int = TOP_K,
    ):
        prompt = inputs["input_ids"].shape[1]
        total = prompt + continuation.shape[1]
        window = getattr(document.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        if window is not None and total > window:
            raise KVMMError(f"Prompt and continuation have {total} tokens, the model {window} positions: use less.")
        # The last token of a prompt that is packed entirely was read exactly: what it predicts cannot drift.
        self.first = max(prompt - 1 - document.length, 0)
        self.document, self.inputs, self.top_k = document, inputs, top_k
        self.read = continuation[:, :-1]  # the last token is only predicted
        ids = torch.cat([inputs["input_ids"], continuation.to(inputs["input_ids"])], dim=1)[0]
        self.targets = ids[document.length + self.first + 1 :]
        self.count = len(self.targets)
        if self.count < 1 or total - 1 - document.length < 1:
            raise KVMMError("There is no position to compare: the continuation needs a token more.")
        self.full = self._logits(document.cache(DYNAMIC))

    @torch.no_grad()
    def _logits(self, cache: Any) -> torch.Tensor:
        return read_on(self.document.model, self.inputs, cache, self.read)[self.first :]

    def measure(self, policy: str | KVPolicy, cache: Any = None) -> PositionDrift:
        """The drift of ``policy`` at every scored position.

        ``cache`` is one that holds the document packed under the policy already; it is written to.
        """
        cache = self.document.cache(policy) if cache is None else cache
        differences = compare_logits(self.full, self._logits(cache), self.targets, top_k=self.top_k)
        count = len(differences["kl"])
        start = self.document.length + self.first + 1
        return PositionDrift(
            **{name: value.numpy() for name, value in differences.items()},
            context=np.arange(start, start + count),
            progress=np.arange(count, dtype=np.float32) / count,
        )


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
    "ForcedText",
    "LogitDrift",
    "LongContextTail",
    "PositionDrift",
    "compare_logits",
    "long_context_tail",
    "measure_drift",
    "packed_length",
    "standard_error",
    "summarise",
]
