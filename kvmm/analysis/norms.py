"""L2 norms of keys, values and queries by token, layer and head: the token-norm imbalance that OScaR describes.

OScaR (arXiv 2605.19660) traces the failure of per-channel INT2 keys to *token norm imbalance*: within one quantisation
group a few tokens of unusual norm stretch the range of every channel and leave the others a single code. Its remedy,
dividing each token by its norm before quantising, helps where the imbalance is large, so it is worth a look first.

One prefill is enough. The norms are taken where the cache receives keys (after RoPE) and values; only the norms are
kept, never the keys, so memory stays at one float a token, head and layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES, modality_of_ids

KINDS = ("key", "value", "query")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class _NormCache(DynamicCache):
    """A cache that is asked once: it passes keys and values through and keeps their norms only."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.norms: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any):
        # [B, H_kv, T, D] -> [B, H_kv, T]; float() first, because a sum of squares overflows fp16 at a norm of 256.
        self.norms[layer_idx] = tuple(states.float().norm(dim=-1).cpu() for states in (key_states, value_states))
        return key_states, value_states


@dataclass(frozen=True)
class NormReport:
    """Norms of one sequence, padding left out. Arrays are float32.

    Attributes:
        layers: index in the decoder of each row (layers without a KV cache of their own are absent).
        key, value: ``[L, H_kv, T]``, keys after RoPE.
        query: ``[L, H_q, T]`` or ``None`` if it was not recorded.
        modality: int8 ``[T]``, the codes of :mod:`kvmm.modality`.
        tokens: ``T`` short strings to show, or empty.
    """

    layers: tuple[int, ...]
    key: np.ndarray
    value: np.ndarray
    query: np.ndarray | None
    modality: np.ndarray
    tokens: tuple[str, ...] = field(default=(), repr=False)

    def norms(self, kind: str = "key") -> np.ndarray:
        """``[L, H, T]`` of ``kind`` ("key", "value" or "query"). Raises :class:`KVMMError` if it was not recorded."""
        if kind not in KINDS:
            raise KVMMError(f"unknown kind of norm {kind!r}: use one of {', '.join(KINDS)}")
        norms = getattr(self, kind)
        if norms is None:
            raise KVMMError("query norms were not recorded: this decoder has no separate query projection")
        return norms

    def by_token(self, kind: str = "key") -> np.ndarray:
        """``[L, T]``: root mean square over the heads, so that every head counts by its energy."""
        return np.sqrt(np.mean(np.square(self.norms(kind)), axis=1))

    def modalities(self) -> list[str]:
        """Names of the modalities present, in the order of their codes."""
        return [MODALITY_NAMES[code] for code in np.unique(self.modality)]

    def coefficient_of_variation(self, kind: str = "key") -> np.ndarray:
        """``[L, H]``: standard deviation of the token norms over their mean, the token-norm imbalance of a head.

        0 when all tokens of the head have one norm; per-channel codes lose precision as it grows.
        """
        norms = self.norms(kind)
        return norms.std(axis=-1) / np.maximum(norms.mean(axis=-1), np.finfo(np.float32).tiny)

    def modality_gap(self, kind: str = "key") -> np.ndarray:
        """``[L]``: largest over smallest median norm among the modalities present (1 with a single modality).

        A quantisation group that mixes modalities inherits this factor; pages of one modality do not.
        """
        norms = self.by_token(kind)
        medians = np.stack([np.median(norms[:, self.modality == code], axis=1) for code in np.unique(self.modality)])
        return medians.max(axis=0) / np.maximum(medians.min(axis=0), np.finfo(np.float32).tiny)

    def quantiles(self, kind: str, modality: str) -> np.ndarray:
        """``[L, 5]``: the 5, 25, 50, 75 and 95 % quantiles over the tokens of one modality."""
        mask = self.modality == MODALITY_NAMES.index(modality)
        if not mask.any():
            raise KVMMError(f"the prompt holds no {modality} tokens")
        return np.quantile(self.by_token(kind)[:, mask], QUANTILES, axis=1).T

    def outliers(self, kind: str, layer: int, *, count: int = 8, threshold: float = 3.5) -> list[dict[str, Any]]:
        """Tokens of row ``layer`` whose log-norm is far from the layer's median, furthest first.

        Distance is the modified z-score ``0.6745 |x - median| / MAD`` (Iglewicz and Hoaglin), which the outliers
        themselves do not inflate. Each entry has ``position, token, modality, norm, ratio`` (to the median norm)
        and ``score``.
        """
        norms = self.by_token(kind)[layer]
        logs = np.log(np.maximum(norms, np.finfo(np.float32).tiny))
        deviation = np.abs(logs - np.median(logs))
        # Identical norms have a MAD of zero and no outliers; a floor keeps rounding noise from becoming one.
        score = 0.6745 * deviation / max(float(np.median(deviation)), 1e-4)
        order = [i for i in np.argsort(-score, kind="stable")[:count] if score[i] > threshold]
        median = float(np.median(norms))
        return [
            {
                "position": int(i),
                "token": self.tokens[i] if self.tokens else "",
                "modality": MODALITY_NAMES[self.modality[i]],
                "norm": float(norms[i]),
                "ratio": float(norms[i]) / max(median, 1e-12),
                "score": float(score[i]),
            }
            for i in order
        ]


def _decoder(model: torch.nn.Module) -> torch.nn.Module:
    decoder = model.get_decoder()
    return getattr(decoder, "language_model", decoder)


@contextmanager
def _query_norms(model: torch.nn.Module, tokens: int) -> Iterator[dict[int, torch.Tensor]]:
    """Collect ``{layer: [B, H_q, T]}`` with hooks behind the last operation before RoPE.

    RoPE rotates pairs of channels, so the norm before it is the norm after it, up to the constant
    ``attention_scaling`` that long-context variants multiply into cos and sin.
    """
    norms: dict[int, torch.Tensor] = {}
    decoder = _decoder(model)
    scaling = float(getattr(getattr(decoder, "rotary_emb", None), "attention_scaling", 1.0))
    handles = []

    def record(layer: int, head_dim: int, output: torch.Tensor) -> None:
        # q_proj gives [B, T, H_q * D], q_norm [B, T, H_q, D] or, in Gemma, [B, H_q, T, D]. With T = H_q the shapes
        # agree and the strides, which element-wise operations keep, tell: the token axis is the outer one.
        heads_first = output.ndim == 4 and output.shape[2] == tokens
        if heads_first and (output.shape[1] != tokens or output.stride(2) > output.stride(1)):
            output = output.transpose(1, 2)
        heads = output.reshape(*output.shape[:2], -1, head_dim)  # [B, T, H_q, D]
        norms[layer] = heads.float().norm(dim=-1).mul_(scaling).transpose(1, 2).cpu()

    for index, layer in enumerate(decoder.layers):
        attention = getattr(layer, "self_attn", None)
        projection = getattr(attention, "q_norm", None) or getattr(attention, "q_proj", None)
        head_dim = getattr(attention, "head_dim", None)
        if projection is None or head_dim is None:
            continue
        handles.append(
            projection.register_forward_hook(lambda _m, _i, output, i=index, d=head_dim: record(i, d, output))
        )
    try:
        yield norms
    finally:
        for handle in handles:
            handle.remove()


def _token_strings(ids: Sequence[int], tokenizer: Any) -> tuple[str, ...]:
    if tokenizer is None:
        return ()
    return tuple(tokenizer.decode([int(i)]) for i in ids)


@torch.no_grad()
def record_norms(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    *,
    tokenizer: Any = None,
    queries: bool = True,
    row: int = 0,
) -> NormReport:
    """Run one exact prefill of ``inputs`` and return the norms of its keys, values and queries.

    The model is not patched: a pass-through cache sees keys and values, forward hooks see the queries, and both are
    gone when the function returns. ``rope_deltas`` that the Qwen families keep on the model are put back.

    Args:
        model: a transformers model with a decoder, of any family kvmm supports.
        inputs: what the processor returned, with ``input_ids`` int64 ``[B, T]`` and optionally ``attention_mask``.
        tokenizer: decodes the tokens shown with outliers; optional.
        queries: record query norms too, where the decoder has a query projection.
        row: which sequence of the batch to report.

    Raises:
        KVMMError: there are no ``input_ids``, or the model keeps no key-value cache.
    """
    input_ids = inputs.get("input_ids")
    if input_ids is None:
        raise KVMMError("record_norms needs input_ids: pass what the processor returned")
    config = model.config.get_text_config(decoder=True)
    cache = _NormCache(config)
    holders = [module for module in model.modules() if getattr(module, "rope_deltas", None) is not None]
    saved = [module.rope_deltas for module in holders]
    try:
        if queries:
            with _query_norms(model, input_ids.shape[1]) as query:
                model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        else:
            query = {}
            model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
    finally:
        for module, deltas in zip(holders, saved, strict=True):
            module.rope_deltas = deltas
    if not cache.norms:
        raise KVMMError(f"{type(model).__name__} wrote no keys to the cache: pick a model with attention layers")

    mask = inputs.get("attention_mask")
    keep = torch.ones_like(input_ids[row], dtype=torch.bool) if mask is None else mask[row].bool()
    keep = keep.cpu()
    layers = tuple(sorted(cache.norms))

    def stack(per_layer: Mapping[int, torch.Tensor]) -> np.ndarray:  # -> [L, H, T]
        return torch.stack([per_layer[i][row][:, keep] for i in layers]).numpy()

    return NormReport(
        layers=layers,
        key=stack({i: norms[0] for i, norms in cache.norms.items()}),
        value=stack({i: norms[1] for i, norms in cache.norms.items()}),
        query=stack(query) if all(i in query for i in layers) else None,
        modality=modality_of_ids(input_ids, model.config)[row].cpu()[keep].numpy(),
        tokens=_token_strings(input_ids[row].cpu()[keep].tolist(), tokenizer),
    )
