"""The effect of quantised keys on attention: histograms of the scores, and the divergence of each layer's attention.

The queries of the last positions of a prompt (64 by default: a sample, so that nothing grows with the square of the
prompt) meet the layer's exact keys and the keys that a policy would store, decoded, in the layer itself: keys, queries
and values are those of the exact prefill, so errors do not add up over layers. :mod:`kvmm.analysis.drift.measure`
measures the drift of the next-token logits, in which they do.

Scores are ``scaling * q . k`` before the softmax, of the keys that the query may see. Histograms count the keys that
the policy packs: with the exact keys, with the decoded ones, and with CalibQuant's logit calibration (arXiv 2502.14882,
section 3.3) where the policy has one; that is what its figure 1 shows. Quantisation widens the tails of the scores, and
the softmax turns the right tail into attention that exact keys would not get; calibration pulls it back.

``KL(exact || policy)`` of the attention over all keys is in nats, a mean over queries and heads. It is the sum of a
part *between* modalities (how much attention each gets) and a part *within* each (which of its tokens get it). No part
is negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvmm.analysis.common.by_policy import ByPolicy
from kvmm.analysis.common.prefill import full_layers, one_prompt, prompt_modality, visit_layers
from kvmm.analysis.common.recording import Seen
from kvmm.analysis.common.stored import LayerStorage, layer_storages
from kvmm.cache.plan import Plan
from kvmm.codecs import Codec
from kvmm.errors import KVMMError
from kvmm.kernels.exact import exact_dtype, to_exact
from kvmm.modality import MODALITY_NAMES
from kvmm.policy import KVPolicy

QUERIES = 64
BINS = 96
KINDS = {"exact": "exact", "quantised": "quantised", "calibrated": "quantised, calibrated"}
_BLOCK = 1 << 22  # scores computed at a time: 16 MB in float32, a few times
_MASKED = -1e30
_MARGIN = 0.05


@dataclass(frozen=True)
class PolicyScores:
    """Attention under one policy. Arrays have one row per layer measured.

    Attributes:
        policy, stored_as: its name, and what a model without a calibration file stores instead, or the same name.
        edges: float32 ``[L, BINS + 1]`` of the histograms; the outermost bins also hold what lies beyond.
        counts: kind (:data:`KINDS`) -> int64 ``[L, M, BINS]``, scores by modality of their keys, over all heads.
            "calibrated" is there only for policies that adjust scores.
        kl: float64 ``[L]``, as attention is with this policy, calibration included.
        kl_uncalibrated: float64 ``[L]``, without the calibration; the same where there is none.
        kl_between: float64 ``[L]``, and ``kl_within``: float64 ``[L, M]``; together they are ``kl``.
        mass: float64 ``[L, M]``, the share of attention that each modality gets.
        softmax_mse: float64 ``[L]``, the mean of :func:`squared_softmax_error` over queries and heads, as CalibQuant's
            figure 2 shows it; ``softmax_mse_uncalibrated``: the same without the calibration.
    """

    policy: str
    stored_as: str
    edges: np.ndarray
    counts: dict[str, np.ndarray]
    kl: np.ndarray
    kl_uncalibrated: np.ndarray
    kl_between: np.ndarray
    kl_within: np.ndarray
    mass: np.ndarray
    softmax_mse: np.ndarray
    softmax_mse_uncalibrated: np.ndarray

    def histogram(self, kind: str, layer: int, modality: str | None = None) -> np.ndarray:
        """float64 ``[BINS]``: the share of the scores of row ``layer`` in each bin; over all modalities, or one.

        Raises :class:`KVMMError` for a kind that the policy does not have.
        """
        if kind not in self.counts:
            raise KVMMError(f"Policy {self.policy!r} has no {kind!r} scores; it has: {', '.join(self.counts)}.")
        counts = self.counts[kind][layer]
        counts = counts.sum(0) if modality is None else counts[MODALITY_NAMES.index(modality)]
        return counts / max(int(counts.sum()), 1)

    def modalities(self) -> list[str]:
        """Modalities with keys that are packed and seen."""
        return [name for m, name in enumerate(MODALITY_NAMES) if self.counts["exact"][:, m].any()]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        present = [m for m, name in enumerate(MODALITY_NAMES) if name in self.modalities()]
        return {
            "policy": self.policy,
            "stored_as": self.stored_as,
            "edges": self.edges.tolist(),
            "counts": {
                kind: {MODALITY_NAMES[m]: counts[:, m].tolist() for m in present}
                for kind, counts in self.counts.items()
            },
            "kl": self.kl.tolist(),
            "kl_uncalibrated": self.kl_uncalibrated.tolist(),
            "kl_between": self.kl_between.tolist(),
            "kl_within": {name: self.kl_within[:, m].tolist() for m, name in enumerate(MODALITY_NAMES)},
            "mass": {name: self.mass[:, m].tolist() for m, name in enumerate(MODALITY_NAMES)},
            "softmax_mse": self.softmax_mse.tolist(),
            "softmax_mse_uncalibrated": self.softmax_mse_uncalibrated.tolist(),
        }


@dataclass(frozen=True)
class ScoreReport(ByPolicy[PolicyScores]):
    """Attention of the last queries of one prompt, exact and under several policies.

    Attributes:
        layers: index in the decoder of each row.
        modality: int8 ``[T]``.
        queries: how many of the last positions were used.
        mass: float64 ``[L, M]``, the share of exact attention that each modality gets.
        policies: in the order asked for.
    """

    layers: tuple[int, ...]
    modality: np.ndarray
    queries: int
    mass: np.ndarray
    policies: tuple[PolicyScores, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "layers": list(self.layers),
            "tokens": self.tokens(),
            "queries": self.queries,
            "mass": {name: self.mass[:, m].tolist() for m, name in enumerate(MODALITY_NAMES)},
            "policies": [one.to_dict() for one in self.policies],
        }


@dataclass
class _Stored:
    """A layer's keys under one policy: float32 ``[H, T, D]``, and which codecs adjust the scores of which tokens."""

    keys: torch.Tensor
    packed: torch.Tensor  # bool [T]
    adjusts: list[tuple[Codec, torch.Tensor]]


@dataclass
class _Row:
    """Sums over the queries of one layer and policy."""

    edges: torch.Tensor
    counts: dict[str, torch.Tensor]
    kl: float = 0.0
    kl_uncalibrated: float = 0.0
    between: float = 0.0
    within: Any = 0.0
    mass: Any = 0.0
    mse: float = 0.0
    mse_uncalibrated: float = 0.0


class _Meter:
    """Measures one layer after another as the prefill comes to it."""

    def __init__(self, storages: Sequence[LayerStorage], modality: torch.Tensor, queries: int):
        self.storages, self.modality = storages, modality
        self.queries = min(queries, len(modality))
        self.plans = [storage.plan(modality) for storage in storages]
        self.rows: list[list[_Row]] = [[] for _ in storages]
        self.mass: list[np.ndarray] = []

    def visit(self, seen: Seen) -> None:
        exact = seen.key[0].float()
        one_hot = torch.nn.functional.one_hot(self.modality.long(), len(MODALITY_NAMES)).float().to(exact.device)
        mass = self._measure(seen, exact, None, None, one_hot)
        self.mass.append(mass.cpu().double().numpy())
        for storage, plan, rows in zip(self.storages, self.plans, self.rows, strict=True):
            stored = self._store(seen, storage, plan, exact)
            row = self._begin(seen, exact, stored)
            self._measure(seen, exact, stored, row, one_hot)
            rows.append(row)

    def _store(self, seen: Seen, storage: LayerStorage, plan: Plan, exact: torch.Tensor) -> _Stored:
        kept = to_exact(exact, exact_dtype(storage.policy.exact_dtype, seen.key.dtype)).to(exact.dtype, copy=True)
        stored = _Stored(kept, torch.zeros(exact.shape[1], dtype=torch.bool, device=exact.device), [])
        for pages in storage.pages(seen.layer, "key", seen.key, plan, seen.query):
            stored.keys[:, pages.positions] = pages.decoded
            stored.packed[pages.positions] = True
            if pages.codec.calibrates_logits:
                stored.adjusts.append((pages.codec, pages.positions))
        return stored

    def _blocks(self, seen: Seen, every: int = 1) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """``(query [H, R * n, D] scaled, hidden bool [R * n, T])`` of the last queries, some at a time."""
        tokens, heads = seen.key.shape[2], seen.key.shape[1]
        group = seen.query.shape[1] // heads
        step = max(1, _BLOCK // (seen.query.shape[1] * tokens))
        chosen = list(range(tokens - self.queries, tokens))[::-every][::-1]
        for begin in range(0, len(chosen), step):
            places = chosen[begin : begin + step]
            query = seen.query[0, :, places].float() * seen.scaling
            mask = torch.cat([seen.rows(place, place + 1)[0, 0] for place in places]).to(query.device)  # [n, T]
            yield query.unflatten(0, (heads, group)).flatten(1, 2), ~mask.repeat(group, 1)

    def _adjusted(self, scores: torch.Tensor, hidden: torch.Tensor, stored: _Stored) -> torch.Tensor:
        adjusted = scores.clone()
        bias = torch.zeros_like(hidden, dtype=torch.float32).masked_fill_(hidden, _MASKED)
        for codec, positions in stored.adjusts:
            part = scores.index_select(-1, positions)[None]
            page_bias = bias.index_select(-1, positions)[None, None]
            adjusted[..., positions] = codec.calibrate_logits(part, page_bias)[0]
        return adjusted

    def _begin(self, seen: Seen, exact: torch.Tensor, stored: _Stored) -> _Row:
        """Edges from every eighth query: what lies beyond falls into the outermost bins."""
        low, high = torch.inf, -torch.inf
        for query, hidden in self._blocks(seen, every=8):
            seen_keys = ~hidden & stored.packed
            all_scores = [query @ keys.transpose(-1, -2) for keys in (exact, stored.keys)]
            if stored.adjusts:
                all_scores.append(self._adjusted(all_scores[1], hidden, stored))
            for scores in all_scores:
                chosen = scores[:, seen_keys]
                if chosen.numel():
                    low, high = min(low, float(chosen.min())), max(high, float(chosen.max()))
        if low > high:
            low, high = -1.0, 1.0
        margin = max((high - low) * _MARGIN, 1e-3)
        edges = torch.linspace(low - margin, high + margin, BINS + 1, device=exact.device)
        kinds = KINDS if stored.adjusts else ("exact", "quantised")
        return _Row(edges, {kind: torch.zeros(len(MODALITY_NAMES), BINS, dtype=torch.int64) for kind in kinds})

    def _measure(
        self, seen: Seen, exact: torch.Tensor, stored: _Stored | None, row: _Row | None, one_hot: torch.Tensor
    ) -> torch.Tensor:
        """Add all queries to ``row``; returns the exact attention by modality ``[M]``."""
        share = 1 / (self.queries * seen.query.shape[1])
        mass = torch.zeros(one_hot.shape[1], dtype=torch.float64, device=exact.device)
        for query, hidden in self._blocks(seen):
            scores = query @ exact.transpose(-1, -2)  # [H, Q, T]
            log_p = scores.masked_fill(hidden, -torch.inf).log_softmax(-1)
            by_modality = log_p.exp() @ one_hot  # [H, Q, M]
            mass += by_modality.sum((0, 1), dtype=torch.float64) * share
            if stored is None:
                continue
            stored_scores = query @ stored.keys.transpose(-1, -2)
            self._count(row, "exact", scores, hidden, stored)
            self._count(row, "quantised", stored_scores, hidden, stored)
            adjusted = stored_scores
            if stored.adjusts:
                adjusted = self._adjusted(stored_scores, hidden, stored)
                self._count(row, "calibrated", adjusted, hidden, stored)
                log_q = stored_scores.masked_fill(hidden, -torch.inf).log_softmax(-1)
                row.kl_uncalibrated += float(_terms(log_p, log_q).sum(dtype=torch.float64)) * share
                row.mse_uncalibrated += float(squared_softmax_error(log_p, log_q, hidden).sum()) * share
            log_q = adjusted.masked_fill(hidden, -torch.inf).log_softmax(-1)
            terms = _terms(log_p, log_q) @ one_hot  # [H, Q, M], sums of p log(p / q)
            own_mass = log_q.exp() @ one_hot
            moved = torch.where(by_modality > 0, by_modality * (by_modality / own_mass).log(), 0.0)
            row.between += float(moved.sum(dtype=torch.float64)) * share
            row.within = row.within + (terms - moved).sum((0, 1), dtype=torch.float64) * share
            row.mass = row.mass + own_mass.sum((0, 1), dtype=torch.float64) * share
            row.kl += float(terms.sum(dtype=torch.float64)) * share
            row.mse += float(squared_softmax_error(log_p, log_q, hidden).sum()) * share
        if row is not None and not stored.adjusts:
            row.kl_uncalibrated, row.mse_uncalibrated = row.kl, row.mse
        return mass

    def _count(self, row: _Row, kind: str, scores: torch.Tensor, hidden: torch.Tensor, stored: _Stored) -> None:
        place = torch.bucketize(scores, row.edges[1:-1])  # 0 ... BINS - 1, the outermost ones open
        chosen = ~hidden & stored.packed
        codes = self.modality.to(scores.device).long().expand(scores.shape[-2], -1)[chosen]  # [n]
        index = place[:, chosen] + codes * BINS
        counts = torch.bincount(index.flatten(), minlength=len(MODALITY_NAMES) * BINS)
        row.counts[kind] += counts.view(len(MODALITY_NAMES), BINS).cpu()


def _terms(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """``p log(p / q)``; 0 where p is 0."""
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0)


def squared_softmax_error(log_p: torch.Tensor, log_q: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """The mean squared error of attention weights, by head and query (CalibQuant, arXiv 2502.14882, figure 2).

    ``mse = 1/n * sum_t (p_t - q_t)^2`` over the ``n`` keys that the query sees, with ``p`` the softmax of the exact
    scores and ``q`` that of the scores of stored keys, calibrated or not.

    Args:
        log_p, log_q: float ``[H, Q, T]``, ``log p`` and ``log q`` of ``Q`` queries a KV head; any value, such as -inf,
            at keys that a query does not see.
        hidden: bool ``[Q, T]``, the keys that a query does not see.

    Returns:
        float64 ``[H, Q]``; nan for a query that sees no key.
    """
    squares = (log_p.exp() - log_q.exp()).masked_fill(hidden, 0.0).square().sum(-1, dtype=torch.float64)
    return squares / (~hidden).sum(-1)


def measure_scores(
    model: Any,
    inputs: Mapping[str, torch.Tensor],
    policies: Sequence[str | KVPolicy],
    *,
    layers: Sequence[int] | None = None,
    queries: int = QUERIES,
) -> ScoreReport:
    """Measure what policies do to the attention of the last queries of one prompt.

    One exact prefill, a layer at a time. Scores exist for a few queries at a time, as few as a long prompt asks for.

    Args:
        model: as ``load_model`` returns it. Callers that share it hold its lock
            (:func:`kvmm.models.conversation.model_lock`).
        inputs: of one prompt: what the processor, ``encode_question`` or ``Conversation.prompt_inputs`` returned.
        policies: presets, YAML files or :class:`KVPolicy` objects, without a budget.
        layers: decoder layers to measure; None for all of full attention.
        queries: how many of the last positions to use.

    Raises:
        KVMMError: for no policy, one twice, one that the model cannot have, or a prompt that is not one sequence.
    """
    inputs = one_prompt(model, inputs)
    storages = layer_storages(model, policies)
    if queries < 1:
        raise KVMMError("There is no query to measure: use 1 or more.")
    rows = full_layers(model, layers)
    meter = _Meter(storages, prompt_modality(model, inputs), queries)
    visit_layers(model, inputs, meter.visit, rows)

    def done(storage: LayerStorage, by_layer: list[_Row]) -> PolicyScores:
        def stack(name: str) -> np.ndarray:
            return np.array([np.asarray(getattr(row, name).cpu()) for row in by_layer])

        return PolicyScores(
            storage.name,
            storage.stored_as,
            stack("edges"),
            {kind: np.stack([row.counts[kind].numpy() for row in by_layer]) for kind in by_layer[0].counts},
            np.array([max(row.kl, 0.0) for row in by_layer]),
            np.array([max(row.kl_uncalibrated, 0.0) for row in by_layer]),
            np.array([max(row.between, 0.0) for row in by_layer]),
            stack("within").clip(0),
            stack("mass"),
            np.array([row.mse for row in by_layer]),
            np.array([row.mse_uncalibrated for row in by_layer]),
        )

    return ScoreReport(
        rows,
        meter.modality.numpy(),
        meter.queries,
        np.stack(meter.mass),
        tuple(done(storage, by_layer) for storage, by_layer in zip(storages, meter.rows, strict=True)),
    )


__all__ = ["KINDS", "PolicyScores", "ScoreReport", "measure_scores", "squared_softmax_error"]
