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
from kvmm.cache.capacity import StaticCapacity
from kvmm.cache.layer import KVMMLayer
from kvmm.cuda_graphs.batch import BatchGraphs
from kvmm.errors import KVMMError
from kvmm.modality import label_ids


class BatchLayer(CacheLayerMixin):
    """One layer of all sequences: row ``b`` of the model's keys, values and queries belongs to cache ``b``.

    Args:
        caches: one of one sequence each.
        index: the layer's.
        graphs: of these caches, all of whose layers are packed ones.
    """

    is_compileable = False
    is_sliding = False
    packed = True  # to attention: it reads by attend() alone

    def __init__(self, caches: Sequence[Cache], index: int, graphs: BatchGraphs | None = None):
        super().__init__()
        self._caches, self._index, self._graphs = caches, index, graphs
        self._states: list[tuple[Any, Any]] = []
        self._new: tuple[torch.Tensor, ...] = ()
        self._begins = graphs is not None and index == caches[0].packed_layers[0]
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
        self._new = key_states, value_states
        if self._begins or self._graphs is None or not self._graphs.fits(self._index):
            self._states = [
                cache.update(key_states[b : b + 1], value_states[b : b + 1], self._index)
                for b, cache in enumerate(self._caches)
            ]
        if self._begins:
            self._graphs.begin_step(tuple(cache.layout for cache in self._caches))
        handle = PackedHandle(self)
        return handle, handle

    def attend(self, query: torch.Tensor, attention_mask: Any, scaling: float) -> torch.Tensor:
        """Attention ``[B, H_q, 1, D]`` of one query per sequence over all that its cache holds.

        The mask says nothing here: a sequence has no padding, and its newest token sees all of its tokens.
        """
        states, self._states = self._states, []
        inputs, self._new = (query, *self._new), ()
        if self._graphs is not None:
            layers = [cache.layers[self._index] for cache in self._caches]
            if self._graphs.fits(self._index):
                for layer in layers if states else ():
                    layer.forget_step()
                return self._graphs.replay(self._index, inputs)
            if all(layer.steps_in_place for layer in layers):
                _, reads, works = zip(*(layer.take_step(scaling) for layer in layers), strict=True)
                flat = tuple(one for each in reads for one in each)
                return self._graphs.run(self._index, inputs, flat, works)
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
        graphs: where the layers' calls are captured, for the same caches in the same order in every step; they have to
            be :func:`able_to_graph`. None launches every kernel from Python.

    Raises:
        KVMMError: there is no cache, they are of different models, or one holds several sequences.
    """

    def __init__(self, caches: Sequence[Cache], graphs: BatchGraphs | None = None):
        install_attention()
        if not caches:
            raise KVMMError("A batch needs at least one cache.")
        if len({len(cache.layers) for cache in caches}) > 1:
            raise KVMMError("The caches of a batch belong to one model: these have different numbers of layers.")
        if any(getattr(cache, "batch_size", 1) > 1 for cache in caches):
            raise KVMMError("Every cache of a batch holds one sequence.")
        self.caches = list(caches)
        super().__init__(layers=[BatchLayer(self.caches, index, graphs) for index in range(len(caches[0].layers))])

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
        if packed[0].table.static is not None:
            codes = codes.cpu()  # where the tables are: one wait for all
        for cache, row in zip(self.caches, codes, strict=False):
            if isinstance(cache, KVMMCache):
                cache.step.modality = row[None]


def able_to_graph(cache: Cache) -> bool:
    """Whether :class:`BatchGraphs` can capture the layers of a cache: all are packed ones, on one GPU, without a
    budget."""
    return (
        isinstance(cache, KVMMCache)
        and cache.retention is None
        and not cache.offloading
        and len(cache.packed_layers) == len(cache.layers)
        and len({cache.layers[index].device for index in cache.packed_layers}) == 1
        and cache.layers[0].device.type == "cuda"
    )


def keep_in_place(cache: KVMMCache, max_length: int) -> None:
    """Keep a cache's buffers in place from its next step of one token on, as graphs need it.

    The layers capture nothing by themselves. Pages of text that forks share are copied, those of media stay shared.

    Args:
        cache: with a prompt in it.
        max_length: tokens in all that there is to be space for.
    """
    if cache.table.static is not None:
        cache.extend(max_length)
        return
    cache.table.to_host(StaticCapacity(max_length))
    for layer in cache.layers:
        if isinstance(layer, KVMMLayer):
            layer.never_capture()


def _attend(query: torch.Tensor, key: Any, value: Any, scaling: float) -> torch.Tensor:
    """Attention of one sequence ``[1, H_q, 1, D]``, over a handle or exact keys and values ``[1, H_kv, T, D]``."""
    if isinstance(key, PackedHandle):
        layer = key.layer
        if layer.packed:
            return layer.attend(query, None, scaling)
        key, value = layer.observe(query)
    return scaled_dot_product_attention(query, key, value, scale=scaling, enable_gqa=True)


__all__ = ["BatchLayer", "CacheBatch", "able_to_graph", "keep_in_place"]
