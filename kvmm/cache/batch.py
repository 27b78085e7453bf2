"""One decode step of several caches as one call of their model, or some tokens of a prompt for each of them.

The projections of a step read every weight of the model once, whatever the number of tokens, so sequences that decode
together share that. Attention is what differs: each sequence reads its own packed pages, of its own length and split
into modalities in its own way. A :class:`CacheBatch` is given to the model in place of a cache; its layers hand a
:class:`~kvmm.attention.PackedHandle` through the model, as a packed layer does, and attend sequence by sequence.
Nothing is padded or copied, so a sequence joins or leaves between two steps by being in the next batch or not, and what
a sequence computes in its layers does not depend on the others.

Tokens of prompts are as many as each sequence has of them: they follow each other in one row, so that nothing is padded
there, either.
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
    """One layer of all sequences: row ``b`` of the model's keys, values and queries belongs to cache ``b``, or
    ``counts[b]`` tokens of the only row.

    Args:
        caches: one of one sequence each.
        index: the layer's.
        graphs: of these caches, all of whose layers are packed ones.
        counts: tokens of each cache in one row; None: a row of one token each.
    """

    is_compileable = False
    is_sliding = False
    packed = True  # to attention: it reads by attend() alone

    def __init__(
        self,
        caches: Sequence[Cache],
        index: int,
        graphs: BatchGraphs | None = None,
        counts: Sequence[int] | None = None,
    ):
        super().__init__()
        self._caches, self._index, self._graphs, self._counts = caches, index, graphs, counts
        self._states: list[tuple[Any, Any]] = []
        self._new: tuple[torch.Tensor, ...] = ()
        self._begins = graphs is not None and index == caches[0].packed_layers[0]
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the caches hold what there is."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple:
        """Append row ``b`` of keys and values ``[B, H_kv, 1, D]`` to cache ``b``, or with ``counts`` its part of
        ``[1, H_kv, n, D]``; returns a handle twice.

        Raises ``KVMMError`` for another number of sequences, or of tokens.
        """
        _check_shape(key_states.shape[0], key_states.shape[2], self._caches, self._counts)
        self._new, self._states = (key_states, value_states), []
        if self._begins or self._graphs is None or not self._graphs.fits(self._index):
            pairs = zip(self._split(key_states), self._split(value_states), strict=True)
            self._states = [cache.update(*pair, self._index) for cache, pair in zip(self._caches, pairs, strict=True)]
        if self._begins:
            self._graphs.begin_step(tuple(cache.layout for cache in self._caches))
        handle = PackedHandle(self, key_states.device)
        return handle, handle

    def attend(self, query: torch.Tensor, attention_mask: Any, scaling: float) -> torch.Tensor:
        """Attention, of the shape of ``query``, of each sequence's queries over all that its cache holds.

        The mask says nothing here: a sequence has no padding, and a token sees all of its own tokens up to itself.
        Layers of the model that share keys and values come one after the other, of which the first one appends.
        """
        new, self._new = self._new, ()
        if self._graphs is not None and new:
            inputs = (query, *new)
            layers = [cache.layers[self._index] for cache in self._caches]
            if self._graphs.fits(self._index):
                for layer in layers if self._states else ():
                    layer.forget_step()
                return self._graphs.replay(self._index, inputs)
            if all(layer.steps_in_place for layer in layers):
                _, reads, works = zip(*(layer.take_step(scaling) for layer in layers), strict=True)
                flat = tuple(one for each in reads for one in each)
                return self._graphs.run(self._index, inputs, flat, works)
        rows = zip(self._split(query), self._states, strict=True)
        return torch.cat([_attend(row, *pair, scaling) for row, pair in rows], 0 if self._counts is None else 2)

    def _split(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """What belongs to each cache of queries, keys or values."""
        return x.split(1) if self._counts is None else x.split(self._counts, 2)

    def observe(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise KVMMError("Several caches are read through their own layers, which observe the queries of prompts.")

    def decoded(self) -> tuple[torch.Tensor, torch.Tensor]:
        raise KVMMError("Attention weights of several caches are not joined: ask for them with one cache.")

    def get_seq_length(self) -> int:
        return max(cache.get_seq_length(self._index) for cache in self._caches)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        past = self.get_seq_length() if self._counts is None else 0  # nobody looks at a mask of several prompts
        return past + query_length, 0

    def get_max_length(self) -> int:
        return -1


class CacheBatch(Cache):
    """Several caches, each of one sequence of one model, for one call of that model with one token each, or with some
    tokens of the prompt of each.

    ```python
    batch = CacheBatch([first, second])
    model(input_ids=tokens, position_ids=positions, past_key_values=batch)  # tokens [2, 1], positions [..., 2, 1]
    batch = CacheBatch([first, second], counts=[7, 30])
    model(input_ids=tokens, position_ids=positions, past_key_values=batch)  # tokens [1, 37], positions [..., 1, 37]
    ```

    Positions must be given, because the sequences have different lengths, and no attention mask.

    Args:
        caches: :class:`kvmm.KVMMCache` or transformers' own, each with at least one token; with ``counts`` such as are
            :func:`able_to_read_together`, also empty ones.
        graphs: where the layers' calls are captured, for the same caches in the same order in every step; they have to
            be :func:`able_to_graph`. None launches every kernel from Python.
        counts: tokens of each cache, at least two, which follow each other in one row without media; not with
            ``graphs``. None: one token each, in a row of its own.

    Raises:
        KVMMError: there is no cache, they are of different models, or one holds several sequences; ``counts`` of other
            than each of them, or together with ``graphs``.
    """

    def __init__(self, caches: Sequence[Cache], graphs: BatchGraphs | None = None, counts: Sequence[int] | None = None):
        install_attention()
        if not caches:
            raise KVMMError("A batch needs at least one cache.")
        if len({len(cache.layers) for cache in caches}) > 1:
            raise KVMMError("The caches of a batch belong to one model: these have different numbers of layers.")
        if any(getattr(cache, "batch_size", 1) > 1 for cache in caches):
            raise KVMMError("Every cache of a batch holds one sequence.")
        if counts is not None:
            if len(counts) != len(caches) or min(counts) < 2 or graphs is not None:
                raise KVMMError("A batch reads at least two tokens of each of its caches, and no graph captures that.")
            if not all(able_to_read_together(cache) for cache in caches):
                raise KVMMError("Prompts are read together where every layer of their caches is a packed one.")
        self.caches, self._counts = list(caches), None if counts is None else list(counts)
        layers = [BatchLayer(self.caches, index, graphs, self._counts) for index in range(len(caches[0].layers))]
        super().__init__(layers=layers)

    @property
    def batch_size(self) -> int:
        """Number of sequences."""
        return len(self.caches)

    def announce(self, input_ids: torch.Tensor | None, *args: Any, **described: Any) -> None:
        """Tell every cache what its new tokens are; the model's pre-hook calls it, as for one cache.

        A placeholder of a medium that a model generates is stored as that medium. Without ids tokens are text.

        Raises ``KVMMError`` for another number of sequences, or of tokens.
        """
        packed = [cache for cache in self.caches if isinstance(cache, KVMMCache)]
        if input_ids is None or not packed or not packed[0].placeholders:
            return
        _check_shape(*input_ids.shape, self.caches, self._counts)
        codes = label_ids(input_ids, packed[0].placeholders)
        if packed[0].table.static is not None:
            codes = codes.cpu()  # where the tables are: one wait for all
        rows = codes.split(1) if self._counts is None else codes.split(self._counts, 1)
        for cache, row in zip(self.caches, rows, strict=True):
            if isinstance(cache, KVMMCache):
                cache.step.modality = row


def able_to_read_together(cache: Cache) -> bool:
    """Whether prompts are read into a cache in one call with others: no layer looks at tokens outside of attention, or
    at some of the newest alone."""
    return isinstance(cache, KVMMCache) and not cache.offloading and len(cache.packed_layers) == len(cache.layers)


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


def _check_shape(rows: int, count: int, caches: Sequence[Cache], counts: Sequence[int] | None) -> None:
    """Raise ``KVMMError`` unless ``count`` tokens in each of ``rows`` rows are what a batch takes."""
    if (rows, count) != ((len(caches), 1) if counts is None else (1, sum(counts))):
        taken = "one token of each" if counts is None else f"{sum(counts)} tokens in one row"
        raise KVMMError(f"A batch of {len(caches)} caches takes {taken}, not {count} of {rows} sequences.")


def _attend(query: torch.Tensor, key: Any, value: Any, scaling: float) -> torch.Tensor:
    """Attention of one sequence ``[1, H_q, q, D]``, over a handle or exact keys and values ``[1, H_kv, T, D]``."""
    if isinstance(key, PackedHandle):
        layer = key.layer
        if layer.packed:
            return layer.attend(query, None, scaling)
        key, value = layer.observe(query)
    count, length = query.shape[2], key.shape[2]
    mask = None
    if 1 < count < length:
        mask = torch.ones(count, length, dtype=torch.bool, device=query.device).tril(length - count)
    return scaled_dot_product_attention(
        query, key, value, mask, is_causal=count == length > 1, scale=scaling, enable_gqa=True
    )


__all__ = ["BatchLayer", "CacheBatch", "able_to_graph", "able_to_read_together", "keep_in_place"]
