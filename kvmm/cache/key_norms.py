"""Norms of a cache's keys, taken on the way: no second pass over the prompt, for a view that follows an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from kvmm.cache.cache import KVMMCache
from kvmm.cache.layer import KVMMLayer
from kvmm.modality import PADDING


@dataclass(frozen=True, eq=False)
class KeyNorms:
    """Norms of one sequence, as :meth:`kvmm.analysis.NormReport.by_token` gives them for keys.

    Attributes:
        layers: index in the decoder of each row.
        key: float16 ``[L, T]``, after RoPE, the root mean square over the heads; NaN for tokens that were packed, or
            cropped and read again, before they were looked at.
        modality: int8 ``[T]``, the codes of :mod:`kvmm.modality`.
        answer: how many of the newest tokens are the answer that is being written.
    """

    layers: tuple[int, ...] = ()
    key: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float16), repr=False)
    modality: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8), repr=False)
    answer: int = 0

    def __len__(self) -> int:
        return self.modality.size


class KeyNormRecorder:
    """Reads norms from the residual tokens of a cache, where every token is until it is packed.

    A token is looked at once: call :meth:`collect` after the prompt was read and before the next step, which packs it,
    and now and then while the answer is written (the newest tokens stay for ``residual_length`` steps). ``norms`` is
    replaced and never written to, so another thread may read it at any time.
    """

    def __init__(self) -> None:
        self.norms = KeyNorms()

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` tokens, as the cache has."""
        if length < len(self.norms):
            old = self.norms
            self.norms = KeyNorms(old.layers, old.key[:, :length], old.modality[:length])

    @torch.no_grad()
    def collect(self, cache: KVMMCache, answering: bool = False) -> KeyNorms:
        """Add the tokens that ``cache`` got since the last call; of a batch, those of the first sequence.

        ``answering`` says that they are an answer's. The norms are computed where the keys are, in float32; two bytes
        per token and layer come to the host.
        """
        known, total = len(self.norms), cache.table.length
        layers = tuple(i for i in cache.packed_layers if cache.layers[i].is_initialized)
        if total <= known or not layers:
            return self.norms
        positions = cache.table.dense[0].cpu().numpy()
        columns = np.flatnonzero(positions >= known)
        new = np.full((len(layers), total - known), np.nan, dtype=np.float16)
        if columns.size:
            found = [_norms(cache.layers[i], columns) for i in layers]
            same = all(one.device == found[0].device for one in found)
            values = torch.stack(found).cpu() if same else torch.stack([one.cpu() for one in found])
            new[:, positions[columns] - known] = values.numpy()
        modality = cache.table.modality[0, known:total].cpu().numpy()
        old = self.norms if self.norms.layers == layers else KeyNorms(layers, np.full((len(layers), known), np.nan))
        self.norms = KeyNorms(
            layers,
            np.concatenate([old.key, new], axis=1, dtype=np.float16),
            np.concatenate([self.norms.modality, modality], dtype=np.int8),
            self.norms.answer + total - known if answering else 0,
        )
        return self.norms


def _norms(layer: KVMMLayer, columns: np.ndarray) -> torch.Tensor:
    """float16 ``[n]``: of the keys in ``columns`` (places among the residual tokens) of the first sequence."""
    first, last = int(columns[0]), int(columns[-1])
    if last - first + 1 == columns.size:  # a run needs no copy
        key = layer.dense_key[0, :, first : last + 1]
    else:
        key = layer.dense_key[0].index_select(1, torch.from_numpy(columns).to(layer.dense_key.device))
    # in float32, because a sum of squares overflows fp16 at a norm of 256
    norms = torch.linalg.vector_norm(key, dim=-1, dtype=torch.float32)  # [H, n]
    return norms.square().mean(0).sqrt().half()


def present(norms: KeyNorms) -> Sequence[int]:
    """Codes of the modalities that ``norms`` holds, padding left out."""
    return [int(code) for code in np.unique(norms.modality) if code != PADDING]


__all__ = ["KeyNormRecorder", "KeyNorms", "present"]
