"""Where the queries of a layer look: its attention as a map of queries and tokens, as in OScaR's Fig. 7.

Sinks are columns of that map: tokens that every query looks at, whatever it asks. OScaR (arXiv 2605.19660) shows that
they are the tokens of unusual key norm, which :func:`kvmm.analysis.norms.plots.token_boxes` draws beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvmm.analysis.common.recording import Enough, Seen, kept_tokens, observe
from kvmm.analysis.plots.style import bins
from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES, modality_of_ids

QUERIES = 256  # rows of a map at most, spread over the prompt


@dataclass(frozen=True)
class AttentionMap:
    """The attention of one layer, padding left out.

    Attributes:
        layer: index in the decoder.
        queries: int ``[S]``, the tokens whose queries are shown, ascending.
        starts: int ``[C]``, the first token of each column; short prompts have a column a token.
        weights: float32 ``[H_q, S, C]``, the attention that a query gives to the tokens of a column, in all; a row of a
            head adds up to 1.
        modality: int8 ``[T]``, the codes of :mod:`kvmm.modality`.
    """

    layer: int
    queries: np.ndarray
    starts: np.ndarray
    weights: np.ndarray
    modality: np.ndarray

    def mean(self, head: int | None = None) -> np.ndarray:
        """``[S, C]`` of one query head, or the mean of all. Raises :class:`KVMMError` if there is no such head."""
        if head is None:
            return self.weights.mean(0)
        if not 0 <= head < len(self.weights):
            raise KVMMError(f"There is no query head {head}: this model has {len(self.weights)}, counted from 0.")
        return self.weights[head]

    def modalities(self) -> list[str]:
        """Names of the modalities present, in the order of their codes."""
        return [MODALITY_NAMES[code] for code in np.unique(self.modality)]


class _Recorder:
    def __init__(self, layer: int, row: int, keep: torch.Tensor):
        self.layer, self.row, self.keep = layer, row, keep
        self.found: tuple[torch.Tensor, np.ndarray, torch.Tensor] | None = None

    def __call__(self, seen: Seen) -> None:
        if seen.layer != self.layer:
            return
        positions = self.keep.nonzero().flatten()
        chosen = torch.linspace(0, len(positions) - 1, min(len(positions), QUERIES)).round().long()
        starts = bins(len(positions))
        column = torch.from_numpy(np.searchsorted(starts, np.arange(len(positions)), side="right") - 1)
        masks = [seen.rows(i, i + 1) for i in positions[chosen].tolist()]
        visible = torch.stack([mask[self.row if len(mask) > 1 else 0, 0, 0] for mask in masks])[:, self.keep]
        query, key = seen.query[self.row][:, positions[chosen]], seen.key[self.row][:, self.keep]
        heads = []
        for head in range(query.shape[0]):  # the scores of one head at a time
            scores = query[head].float() @ key[head * key.shape[0] // query.shape[0]].float().T * seen.scaling
            weights = scores.masked_fill_(~visible.to(scores.device), -torch.inf).softmax(-1).cpu()
            heads.append(weights.new_zeros(len(chosen), len(starts)).index_add_(1, column, weights))
        self.found = chosen, starts, torch.stack(heads)
        raise Enough


def record_attention(model: torch.nn.Module, inputs: Mapping[str, Any], layer: int, *, row: int = 0) -> AttentionMap:
    """Run an exact prefill of ``inputs`` up to one layer and return that layer's attention.

    Up to 256 queries spread over the prompt, and up to 512 columns of neighbouring tokens: what is held does not grow
    with the prompt. See :func:`kvmm.analysis.common.recording.observe`; the model is left as it was.

    Args:
        model: a transformers model with a decoder, of any family kvmm supports.
        inputs: what the processor returned, with ``input_ids`` int64 ``[B, T]`` and optionally ``attention_mask``.
        layer: index in the decoder.
        row: which sequence of the batch to show.

    Raises:
        KVMMError: there are no ``input_ids``, no such row, or no such layer with attention.
    """
    if inputs.get("input_ids") is None:
        raise KVMMError("record_attention needs input_ids: pass what the processor returned")
    input_ids, keep = inputs["input_ids"], kept_tokens(inputs, row)
    recorder = _Recorder(layer, row, keep)
    observe(model, inputs, recorder)
    if recorder.found is None:
        raise KVMMError(f"There is no layer {layer} with attention in {type(model).__name__}.")
    chosen, starts, weights = recorder.found
    modality = modality_of_ids(input_ids, model.config)[row].cpu()[keep].numpy()
    return AttentionMap(layer, chosen.numpy(), starts, weights.numpy(), modality)


__all__ = ["AttentionMap", "record_attention"]
