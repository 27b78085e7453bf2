"""One decode step of several caches as one call of their model.

The projections of a step read every weight of the model once, whatever the number of tokens, so sequences that decode
together share that. Attention is what differs: each sequence reads its own packed pages, of its own length and split
into modalities in its own way. A :class:`CacheBatch` is given to the model in place of a cache; its layers hand a
:class:`~kvmm.attention.PackedHandle` through the model, as a packed layer does, and attend sequence by sequence.
Nothing is padded or copied, so a sequence joins or leaves between two steps by being in the next batch or not, and what
a sequence computes in its layers does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache, CacheLayerMixin

from kvmm.attention import PackedHandle, install_attention
from kvmm.cache.cache import KVMMCache
from kvmm.errors import KVMMError
from kvmm.modality import label_ids


class BatchLayer(CacheLayerMixin):
    """One layer of all sequences: row ``b`` of the model's keys, values and queries belongs to cache ``b``.

    Args:
        caches: one of one sequence each.
        index: the layer's.
    """

    is_compileable = False
    is_sliding = False
    packed = True  # to attention: it reads by attend() alone

    def __init__(self, caches: Sequence[Cache], index: int):
        super().__init__()
        self._caches, self._index = caches, index
        self._states: list[tuple[Any, Any]] = []
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the caches hold what there is."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple:
        """Append row ``b`` of keys and values ``[B, H_kv, 1, D]`` to cache ``b``; returns a handle twice.

        Raises ``KVMMError`` for another number of sequences, or of tokens.
        """
        rows, _, count, _ = key_states.shape
        if rows != len(self._caches) or count != 1:
            raise KVMMError(
                f"A batch of {len(self._caches)} caches takes one token of each, not {count} of {rows} sequences."
            )
        self._states = [
            cache.update(key_states[b : b + 1], value_states[b : b + 1], self._index)
            for b, cache in enumerate(self._caches)
        ]
        handle = PackedHandle(self)
        return handle, handle

    def attend(self, query: torch.Tensor, attention_mask: Any, scaling: float) -> torch.Tensor:
        """Attention ``[B, H_q, 1, D]`` of one query per sequence over all that its cache holds.

        The mask says nothing here: a sequence has no padding, and its newest token sees all of its tokens.
        """
        states, self._states = self._states, []
        return torch.cat([_attend(query[b : b + 1], *pair, scaling) for b, pair in enumerate(states)])

    def observe(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise KVMMError("Several caches are read by steps of one token; read a prompt with its own cache.")

    def decoded(self) -> tuple[torch.Tensor, torch.Tensor]:
        raise KVMMError("Attention weights of several caches are not joined: ask for them with one cache.")

    def get_seq_length(self) -> int:
        return max(cache.get_seq_length(self._index) for cache in self._caches)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


class CacheBatch(Cache):
    """Several caches, each of one sequence of one model, for one call of that model with one token each.

    ```python
    batch = CacheBatch([first, second])
    model(input_ids=tokens, position_ids=positions, past_key_values=batch)  # tokens [2, 1], positions [..., 2, 1]
    ```

    Positions must be given, because the sequences have different lengths, and no attention mask.

    Args:
        caches: :class:`kvmm.KVMMCache` or transformers' own, each with at least one token.

    Raises:
        KVMMError: there is no cache, they are of different models, or one holds several sequences.
    """

    def __init__(self, caches: Sequence[Cache]):
        install_attention()
        if not caches:
            raise KVMMError("A batch needs at least one cache.")
        if len({len(cache.layers) for cache in caches}) > 1:
            raise KVMMError("The caches of a batch belong to one model: these have different numbers of layers.")
        if any(getattr(cache, "batch_size", 1) > 1 for cache in caches):
            raise KVMMError("Every cache of a batch holds one sequence.")
        self.caches = list(caches)
        super().__init__(layers=[BatchLayer(self.caches, index) for index in range(len(caches[0].layers))])

    @property
    def batch_size(self) -> int:
        """Number of sequences."""
        return len(self.caches)

    def announce(self, input_ids: torch.Tensor | None, *args: Any, **described: Any) -> None:
        """Tell every cache what its new token is; the model's pre-hook calls it, as for one cache.

        A placeholder of a medium that a model generates is stored as that medium. Without ids tokens are text.
        """
        packed = [cache for cache in self.caches if isinstance(cache, KVMMCache)]
        if input_ids is None or not packed or not packed[0].placeholders:
            return
        codes = label_ids(input_ids, packed[0].placeholders)
        for cache, row in zip(self.caches, codes, strict=False):
            if isinstance(cache, KVMMCache):
                cache.step.modality = row[None]


def _attend(query: torch.Tensor, key: Any, value: Any, scaling: float) -> torch.Tensor:
    """Attention of one sequence ``[1, H_q, 1, D]``, over a handle or exact keys and values ``[1, H_kv, T, D]``."""
    if isinstance(key, PackedHandle):
        layer = key.layer
        if layer.packed:
            return layer.attend(query, None, scaling)
        key, value = layer.observe(query)
    return scaled_dot_product_attention(query, key, value, scale=scaling, enable_gqa=True)


__all__ = ["BatchLayer", "CacheBatch"]
