"""L2 norms of keys, values and queries by token, layer and head: the token-norm imbalance that OScaR describes.

OScaR (arXiv 2605.19660) traces the failure of per-channel INT2 keys to *token norm imbalance*: within one quantisation
group a few tokens of unusual norm stretch the range of every channel and leave the others a single code. Its remedy,
dividing each token by its norm before quantising, helps where the imbalance is large, so it is worth a look first.

One exact prefill is enough, of 32K tokens and more: see :func:`record_norms` for what is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kvmm.analysis.recording import Seen, kept_tokens, observe, token_strings
from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES, modality_of_ids

KINDS = ("key", "value", "query")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
OUTLIER_SCORE = 3.5  # Iglewicz and Hoaglin's limit of the modified z-score
LEADING_TOKENS = 4  # StreamingLLM keeps the first four tokens as sinks (arXiv 2309.17453)
SINK_ATTENTION = 0.3  # the mean attention that makes a token a sink (arXiv 2410.10781)
SHOWN_TOKENS = 4096  # tokens that a report's JSON lists one by one
_SAMPLED_QUERIES = 128
_FEWEST_QUERIES = 8  # the mean attention to a token that fewer queries see says little
_TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class NormReport:
    """Norms of one sequence, padding left out. Arrays are float32.

    Attributes:
        layers: index in the decoder of each row (layers without a KV cache of their own are absent).
        key, value: ``[L, H_kv, T]``, keys after RoPE.
        query: ``[L, H_q, T]``, after RoPE, or ``None`` if it was not recorded.
        modality: int8 ``[T]``, the codes of :mod:`kvmm.modality`.
        tokens: ``T`` short strings to show, or empty.
        attention: ``[L, H_q, T]``, the mean attention that a token gets from the queries that see it, over up to 128
            queries spread over the prompt; NaN for the newest tokens, which fewer than 8 of them see. ``None`` if it
            was not measured.
    """

    layers: tuple[int, ...]
    key: np.ndarray
    value: np.ndarray
    query: np.ndarray | None
    modality: np.ndarray
    tokens: tuple[str, ...] = field(default=(), repr=False)
    attention: np.ndarray | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """What was recorded, of "key", "value" and "query"."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)

    def norms(self, kind: str = "key") -> np.ndarray:
        """``[L, H, T]`` of ``kind`` ("key", "value" or "query"). Raises :class:`KVMMError` if it was not recorded."""
        if kind not in KINDS:
            raise KVMMError(f"unknown kind of norm {kind!r}: use one of {', '.join(KINDS)}")
        norms = getattr(self, kind)
        if norms is None:
            raise KVMMError("query norms were not recorded: record them with queries=True")
        return norms

    def by_token(self, kind: str = "key") -> np.ndarray:
        """``[L, T]``: root mean square over the heads, so that every head counts by its energy."""
        return np.sqrt(np.mean(np.square(self.norms(kind)), axis=1))

    def modalities(self) -> list[str]:
        """Names of the modalities present, in the order of their codes."""
        return [MODALITY_NAMES[code] for code in np.unique(self.modality)]

    def mask(self, modality: str | None) -> np.ndarray:
        """bool ``[T]``, the tokens of a modality; all for ``None``. Raises :class:`KVMMError` if there are none."""
        if modality is None:
            return np.ones(self.modality.shape, dtype=bool)
        mask = self.modality == (MODALITY_NAMES.index(modality) if modality in MODALITY_NAMES else -1)
        if not mask.any():
            raise KVMMError(f"the prompt holds no {modality} tokens")
        return mask

    def coefficient_of_variation(self, kind: str = "key", modality: str | None = None) -> np.ndarray:
        """``[L, H]``: standard deviation of the token norms over their mean, the token-norm imbalance of a head.

        0 when all tokens of the head have one norm; per-channel codes lose precision as it grows. With ``modality``
        only its tokens count, as in a page, which holds one modality.
        """
        norms = self.norms(kind)[..., self.mask(modality)]
        return norms.std(axis=-1) / np.maximum(norms.mean(axis=-1), _TINY)

    def max_median_ratio(self, kind: str = "key", modality: str | None = None) -> np.ndarray:
        """``[L, H]``: largest over median token norm, how far one token can stretch the range of a group (1: not)."""
        norms = self.norms(kind)[..., self.mask(modality)]
        return norms.max(axis=-1) / np.maximum(np.median(norms, axis=-1), _TINY)

    def modality_gap(self, kind: str = "key") -> np.ndarray:
        """``[L]``: largest over smallest median norm among the modalities present (1 with a single modality).

        A quantisation group that mixes modalities inherits this factor; pages of one modality do not.
        """
        norms = self.by_token(kind)
        medians = np.stack([np.median(norms[:, self.modality == code], axis=1) for code in np.unique(self.modality)])
        return medians.max(axis=0) / np.maximum(medians.min(axis=0), _TINY)

    def quantiles(self, kind: str, modality: str) -> np.ndarray:
        """``[L, 5]``: the 5, 25, 50, 75 and 95 % quantiles over the tokens of one modality."""
        return np.quantile(self.by_token(kind)[:, self.mask(modality)], QUANTILES, axis=1).T

    def head_quantiles(self, kind: str, layer: int, modality: str) -> np.ndarray:
        """``[H, 5]``: the same quantiles for every head of row ``layer``."""
        return np.quantile(self.norms(kind)[layer][:, self.mask(modality)], QUANTILES, axis=1).T

    def scores(self, kind: str = "key") -> np.ndarray:
        """``[L, T]``: how unusual each token's norm is in its layer, with the sign of the deviation.

        The modified z-score ``0.6745 (x - median) / MAD`` of the log-norms (Iglewicz and Hoaglin), which the outliers
        themselves do not inflate.
        """
        logs = np.log(np.maximum(self.by_token(kind), _TINY))
        deviation = logs - np.median(logs, axis=1, keepdims=True)
        # Identical norms have a MAD of zero and no outliers; a floor keeps rounding noise from becoming one.
        spread = np.maximum(np.median(np.abs(deviation), axis=1, keepdims=True), 1e-4)
        return 0.6745 * deviation / spread

    def outliers(
        self, kind: str, layer: int, *, count: int | None = 8, threshold: float = OUTLIER_SCORE
    ) -> list[dict[str, Any]]:
        """Tokens of row ``layer`` whose log-norm is far from the layer's median, furthest first.

        Distance is the magnitude of :meth:`scores`. Each entry has ``position, token, modality, norm, ratio`` (to the
        median norm), ``score`` and ``attention`` (of the head that gives it most; None if not measured). ``count``
        None lists all.
        """
        score = np.abs(self.scores(kind)[layer])
        order = [i for i in np.argsort(-score, kind="stable")[:count] if score[i] > threshold]
        return self._entries(kind, layer, order, score)

    def sinks(self, kind: str = "key", layer: int = 0, *, count: int | None = 8) -> list[dict[str, Any]]:
        """Attention sinks among the outliers of row ``layer``, by position; entries as in :meth:`outliers`.

        Sinks are tokens that draw attention whatever they say. Their keys have unusual norms, mostly low ones (OScaR;
        outlier token tracing, ACL 2025), so they are what a group's range suffers from and what caches keep in full
        precision. With measured attention a sink is an outlier, low or high, that one head or more gives a mean
        attention above 0.3 (Gu et al., arXiv 2410.10781). Without, it is an outlier of low norm among the first four
        tokens, StreamingLLM's sinks.
        """
        score = self.scores(kind)[layer]
        unusual = np.abs(score) > OUTLIER_SCORE
        if self.attention is not None:
            drawn = np.nan_to_num(self.attention[layer]).max(axis=0) > SINK_ATTENTION
        else:
            drawn = (np.arange(score.size) < LEADING_TOKENS) & (score < 0)
        return self._entries(kind, layer, np.flatnonzero(unusual & drawn)[:count], np.abs(score))

    def _entries(self, kind: str, layer: int, positions: Any, score: np.ndarray) -> list[dict[str, Any]]:
        norms = self.by_token(kind)[layer]
        median = float(np.median(norms))
        drawn = None if self.attention is None else np.nan_to_num(self.attention[layer]).max(axis=0)
        return [
            {
                "position": int(i),
                "token": self.tokens[i] if self.tokens else "",
                "modality": MODALITY_NAMES[self.modality[i]],
                "norm": float(norms[i]),
                "ratio": float(norms[i]) / max(median, 1e-12),
                "score": float(score[i]),
                "attention": None if drawn is None else float(drawn[i]),
            }
            for i in positions
        ]

    def summary(self, kind: str = "key") -> dict[str, Any]:
        """The imbalance in a few numbers.

        Returns:
            ``variation`` and ``variation_worst`` (:meth:`coefficient_of_variation`, mean over the heads: mean and
            maximum over the layers) with ``worst_layer``; ``variation_by_modality``, within each modality alone, mean
            over layers and heads; ``max_median_ratio`` (largest of all heads); ``gap`` (largest :meth:`modality_gap`)
            with ``gap_layer``; ``outliers`` (mean tokens a layer), ``outliers_by_modality``, ``sinks`` (positions that
            are one in any layer).
        """
        variation, gap = self.coefficient_of_variation(kind).mean(axis=1), self.modality_gap(kind)
        unusual = np.abs(self.scores(kind)) > OUTLIER_SCORE  # [L, T]
        sinks = {row["position"] for layer in range(len(self.layers)) for row in self.sinks(kind, layer, count=None)}
        return {
            "variation": float(variation.mean()),
            "variation_worst": float(variation.max()),
            "worst_layer": self.layers[int(variation.argmax())],
            "variation_by_modality": {
                name: float(self.coefficient_of_variation(kind, name).mean()) for name in self.modalities()
            },
            "max_median_ratio": float(self.max_median_ratio(kind).max()),
            "gap": float(gap.max()),
            "gap_layer": self.layers[int(gap.argmax())],
            "outliers": float(unusual.sum(axis=1).mean()),
            "outliers_by_modality": {
                name: float(unusual[:, self.mask(name)].sum(axis=1).mean()) for name in self.modalities()
            },
            "sinks": sorted(sinks),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers for JSON, of bounded size: above 4096 tokens a bin lists the largest norm in it."""
        tokens = int(self.modality.size)
        starts = np.unique(np.linspace(0, tokens, min(tokens, SHOWN_TOKENS), endpoint=False).astype(int))

        def kind_dict(kind: str) -> dict[str, Any]:
            return {
                "summary": self.summary(kind),
                "norms": _plain(np.maximum.reduceat(self.by_token(kind), starts, axis=1)),
                "quantiles": {name: _plain(self.quantiles(kind, name)) for name in self.modalities()},
                "coefficient_of_variation": _plain(self.coefficient_of_variation(kind)),
                "max_median_ratio": _plain(self.max_median_ratio(kind)),
                "modality_gap": _plain(self.modality_gap(kind)),
                "outliers": [self.outliers(kind, layer) for layer in range(len(self.layers))],
                "sinks": [self.sinks(kind, layer) for layer in range(len(self.layers))],
            }

        return {
            "format": "kvmm norm report",
            "format_version": 1,
            "tokens": tokens,
            "tokens_by_modality": {name: int(self.mask(name).sum()) for name in self.modalities()},
            "layers": list(self.layers),
            "bins": None if len(starts) == tokens else starts.tolist(),
            "modality": [MODALITY_NAMES[code] for code in self.modality[starts]],
            "attention": "measured" if self.attention is not None else "not measured",
            **{kind: kind_dict(kind) for kind in self.kinds},
        }


def _plain(values: np.ndarray) -> list[Any]:
    """Nested lists of five significant digits, NaN as None."""
    if values.ndim > 1:
        return [_plain(row) for row in values]
    return [None if np.isnan(value) else float(f"{value:.5g}") for value in values]


class _Recorder:
    """Keeps the norms of one sequence of the batch, and the attention its tokens get."""

    def __init__(self, row: int, keep: torch.Tensor, queries: bool, attention: bool):
        self.row, self.keep, self.queries, self.attention = row, keep, queries, attention
        self.norms: dict[str, dict[int, torch.Tensor]] = {"key": {}, "value": {}, "query": {}, "attention": {}}

    def __call__(self, seen: Seen) -> None:
        if not seen.owns_cache:
            return
        kinds = ("key", "value", "query") if self.queries else ("key", "value")
        for kind in kinds:
            states = getattr(seen, kind)[self.row]  # [H, T, D]
            # In float32, because a sum of squares overflows fp16 at a norm of 256.
            norms = torch.linalg.vector_norm(states, dim=-1, dtype=torch.float32)
            self.norms[kind][seen.layer] = norms.cpu()[:, self.keep]
        if self.attention:
            self.norms["attention"][seen.layer] = self._received(seen)

    def _received(self, seen: Seen) -> torch.Tensor:
        """The mean attention that every token gets from those of the sampled queries that see it, ``[H_q, T]``.

        A head at a time, so that the probabilities of the sampled queries are all that exists of the matrix.
        """
        positions = self.keep.nonzero().flatten()
        count = min(len(positions), _SAMPLED_QUERIES)
        chosen = positions[torch.linspace(0, len(positions) - 1, count).round().long()]
        masks = [seen.rows(i, i + 1) for i in chosen.tolist()]
        masks = [mask[self.row if len(mask) > 1 else 0, 0, 0] for mask in masks]
        seen_by = torch.stack(masks).to(seen.query.device)  # [S, T]
        query, key = seen.query[self.row], seen.key[self.row]
        group = query.shape[0] // key.shape[0]
        chosen = chosen.to(query.device)
        found = []
        for head in range(query.shape[0]):
            scores = query[head, chosen].float() @ key[head // group].float().T * seen.scaling
            probabilities = scores.masked_fill_(~seen_by, -torch.inf).softmax(-1)
            found.append((probabilities.sum(0) / seen_by.sum(0)).cpu())
        received = torch.stack(found)
        received[:, seen_by.sum(0).cpu() < min(_FEWEST_QUERIES, count)] = torch.nan
        return received[:, self.keep]


def record_norms(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    *,
    tokenizer: Any = None,
    queries: bool = True,
    attention: bool = False,
    row: int = 0,
) -> NormReport:
    """Run one exact prefill of ``inputs`` and return the norms of its keys, values and queries.

    What is held: one float32 a token, head, layer and kind, moved to the CPU as each layer is done. Keys, values and
    queries go when their layer is done, no cache and no attention matrix is made, and the logits are those of the last
    token, so beside the norms a prompt of any length takes what the model's own activations of one layer take (the
    widest are those of its MLP). See :func:`kvmm.analysis.recording.observe`. The model is not patched, and is left as
    it was.

    Args:
        model: a transformers model with a decoder, of any family kvmm supports.
        inputs: what the processor returned, with ``input_ids`` int64 ``[B, T]`` and optionally ``attention_mask``.
        tokenizer: decodes the tokens shown with outliers; optional.
        queries: record query norms too.
        attention: measure how much attention every token gets, from up to 128 queries spread over the prompt; takes
            ``128 * T`` floats for a moment.
        row: which sequence of the batch to report.

    Raises:
        KVMMError: there are no ``input_ids``, no such row, or the model keeps no key-value cache or layers that differ.
    """
    if inputs.get("input_ids") is None:
        raise KVMMError("record_norms needs input_ids: pass what the processor returned")
    input_ids, keep = inputs["input_ids"], kept_tokens(inputs, row)
    recorder = _Recorder(row, keep, queries, attention)
    observe(model, inputs, recorder)
    found = recorder.norms
    layers = tuple(sorted(found["key"]))
    if not layers:
        raise KVMMError(f"{type(model).__name__} wrote no keys to the cache: pick a model with attention layers")
    if len({one.shape for one in found["key"].values()}) > 1:
        raise KVMMError(
            f"The layers of {type(model).__name__} have different numbers of KV heads, which this view cannot show."
        )

    def stack(kind: str) -> np.ndarray | None:  # -> [L, H, T]
        return torch.stack([found[kind][i] for i in layers]).numpy() if found[kind] else None

    ids = input_ids[row].cpu()[keep]
    return NormReport(
        layers=layers,
        key=stack("key"),
        value=stack("value"),
        query=stack("query"),
        modality=modality_of_ids(input_ids, model.config)[row].cpu()[keep].numpy(),
        tokens=token_strings(ids, tokenizer),
        attention=stack("attention"),
    )


__all__ = ["KINDS", "QUANTILES", "NormReport", "record_norms"]
