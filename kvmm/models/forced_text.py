"""A text that follows a prompt, read over the prompt's packed cache and over an exact one: what packing changes in the
predictions, token by token. Calibration chooses by it, and the analysis of drift reports it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from kvmm.errors import KVMMError
from kvmm.models.caches import DYNAMIC
from kvmm.models.documents import Document, read_on
from kvmm.policy import KVPolicy

TOP_K = 10
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


__all__ = ["TOP_K", "ForcedText", "PositionDrift", "compare_logits"]
