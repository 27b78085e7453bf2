"""What transformers documents of a cache beside ``update``: length, batch, iteration, copies."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import torch
from transformers.cache_utils import Cache, DynamicLayer

from kvmm.attention import install_attention
from kvmm.cache.layer import KVMMLayer
from kvmm.errors import KVMMError

if TYPE_CHECKING:
    from kvmm.cache.step_state import StepState
    from kvmm.cache.token_table import TokenTable
    from kvmm.cuda_graphs.decode import StepGraph


class ContractMixin(Cache):
    """Operations on all layers at once, which share a token table; :class:`KVMMCache` has the rest."""

    table: TokenTable
    graph: StepGraph | None
    retention: Any  # a RetentionController, or None without a budget
    packed_layers: list[int]
    metadata: dict[str, Any]
    step: StepState

    def _changed(self, turn: bool = False) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]]:
        """Keys, values ``[B, H, T, D]`` and the sliding window, layer by layer, as a ``DynamicCache`` gives them.

        What is packed comes decoded, one layer at a time: reading all of it takes the time of a dense cache, and its
        memory if all is kept.
        """
        for layer in self.layers:
            yield layer.keys, layer.values, getattr(layer, "_sliding_window_tensor", None)

    @property
    def batch_size(self) -> int:
        """Number of sequences, -1 while empty."""
        return -1 if self.table.modality is None else self.table.modality.shape[0]

    def reset(self) -> None:
        """Forget all tokens; the cache can be used for a new prompt."""
        super().reset()
        for layer in self.layers:
            if isinstance(layer, DynamicLayer) and layer.is_initialized:
                # older versions of transformers leave zeros, which the next prompt would follow
                layer.keys = layer.values = None
                layer.is_initialized = False
        self.table.clear()
        if self.retention is not None:
            self.retention.clear()
        self.step.clear()
        if self.graph is not None:
            self.graph.drop()

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens, also from pages.

        Slots of a page that lose their token stay empty; only what was packed last and loses all its tokens is freed.
        What remains may be packed at the next step, whatever its length: drafts of several tokens are decode steps, and
        assisted decoding crops after each.

        Args:
            tokens_to_remove: a negative number of tokens to remove; a positive number is the length to keep.

        Raises:
            KVMMError: if a sliding-window layer has dropped tokens that would now come back, or a layer has a recurrent
                state, which cannot go back.
        """
        tokens_to_remove = int(tokens_to_remove)  # assisted decoding passes a tensor
        count = -tokens_to_remove if tokens_to_remove <= 0 else max(self.table.length - tokens_to_remove, 0)
        count = min(count, self.table.length)
        if count and count == self.table.length:
            self.reset()
            return
        states = [index for index, layer in enumerate(self.layers) if not getattr(layer, "is_croppable", True)]
        if count and states:
            raise KVMMError(
                f"Layer {states[0]} has a recurrent state, which cannot forget its newest tokens: fork the cache "
                "before they come, and go on with the fork."
            )
        self.step.cropped = True
        for index, layer in enumerate(self.layers):
            if index not in self.packed_layers:
                try:
                    layer.crop(-count)
                except RuntimeError as error:
                    raise KVMMError(
                        f"Layer {index} no longer holds the tokens that {count} fewer would need; call "
                        "cache.activate_past_recording() before generating."
                    ) from error
        if count:
            layers = [self.layers[index] for index in self.packed_layers]
            stores = [store for layer in layers for store in layer.segments.stores]
            cut = self.table.crop(count, all(store.truncates for store in stores))
            for layer in layers:
                layer.truncate(cut)
            self._changed()

    def _index_batch(self, index: torch.Tensor) -> None:
        if self.table.modality is None:
            return
        if self.retention is not None and index.tolist() != [0]:
            raise KVMMError("A cache with a budget holds one sequence and cannot be repeated; leave budget out.")
        self.table.index_batch(index.to(self.table.modality.device))
        for i in self.packed_layers:
            layer = self.layers[i]
            if layer.is_initialized:
                layer.index_batch(index.to(layer.device))
        self._changed()

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorder the sequences for beam search: ``beam_idx`` int64 ``[B]``."""
        self._index_batch(beam_idx)
        for index, layer in enumerate(self.layers):
            if index not in self.packed_layers:
                layer.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence ``repeats`` times, in place."""
        if self.table.modality is not None:
            batch = self.table.modality.shape[0]
            self._index_batch(torch.arange(batch).repeat_interleave(repeats))
        for index, layer in enumerate(self.layers):
            if index not in self.packed_layers:
                layer.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only the sequences ``indices`` (int64, or a bool mask ``[B]``)."""
        indices = torch.as_tensor(indices)
        self._index_batch(indices.nonzero().flatten() if indices.dtype == torch.bool else indices)
        for index, layer in enumerate(self.layers):
            if index not in self.packed_layers:
                layer.batch_select_indices(indices)

    # -- copies -----------------------------------------------------------------------------------------------------

    def fork(self) -> Self:
        """A cache that goes on from here on its own; the packed past is shared until one of the two adds to it.

        Sinks, residual and sliding windows are copied. Adding to the pages of a modality copies those pages, so a fork
        that asks another question about the same document shares the document's pages for good.
        """
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))  # copy.copy would leave out the model, as a pickle does
        twin.table = self.table.fork()
        twin.step = copy.copy(self.step)
        twin.layers = [
            layer.fork(twin.table, twin.step) if isinstance(layer, KVMMLayer) else copy.deepcopy(layer)
            for layer in self.layers
        ]
        twin.graph = copy.deepcopy(self.graph)
        twin.metadata = dict(self.metadata)
        twin.retention = copy.deepcopy(self.retention)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = memo[id(self)] = type(self).__new__(type(self))
        vars(twin).update(copy.deepcopy(vars(self), memo))  # a reference to a model is not followed
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_model": None}  # a pickled cache belongs to no model: see attach()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        install_attention()
