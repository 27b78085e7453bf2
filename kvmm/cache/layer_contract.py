"""What transformers documents of a cache layer beside ``update``: keys and values, length, offloading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from kvmm.cache.buffers import ResidualBuffer
from kvmm.cache.part import Part
from kvmm.cache.queries import PromptQueries
from kvmm.cache.segments import Segments
from kvmm.errors import KVMMError


class LayerContract(CacheLayerMixin):
    """The calls of transformers on one layer; :class:`kvmm.cache.layer.KVMMLayer` has the rest.

    Attributes:
        residual: the tokens that are not packed: sinks, residual, a turn that waits.
        segments: the packed pages.
        queries: of the prompt.
        offloaded: whether what is stored waits on the CPU.
    """

    is_compileable = False
    is_croppable = True
    is_sliding = False

    residual: ResidualBuffer | None
    segments: Segments
    queries: PromptQueries
    offloaded: bool
    _awaits_query: bool

    def _clear(self) -> None:
        raise NotImplementedError

    def dense(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[B, H, T, D]`` in the order of the sequence."""
        raise NotImplementedError

    @property
    def parts(self) -> dict[int, Part]:
        """Packed pages by modality."""
        return self.segments.parts

    @property
    def dense_key(self) -> torch.Tensor | None:
        """Keys of residual tokens ``[B, H, capacity, D]``, of which :attr:`num_dense` tokens are in use."""
        return None if self.residual is None else self.residual.key

    @property
    def dense_value(self) -> torch.Tensor | None:
        """Their values, like :attr:`dense_key`."""
        return None if self.residual is None else self.residual.value

    @property
    def num_dense(self) -> int:
        """Residual tokens in use."""
        return 0 if self.residual is None else self.residual.length

    @property
    def seen(self) -> int:
        """Tokens so far, padding included."""
        return 0 if self.residual is None else self.residual.seen

    @property
    def keys(self) -> torch.Tensor | None:
        """The keys ``[B, H, T, D]`` in the order of the sequence; decoded if packed, so do not read it in a loop."""
        return self.dense()[0] if self.is_initialized else None

    @property
    def values(self) -> torch.Tensor | None:
        """The values, like :attr:`keys`."""
        return self.dense()[1] if self.is_initialized else None

    @keys.setter
    def keys(self, value: None) -> None:
        self._refuse(value)

    @values.setter
    def values(self, value: None) -> None:
        self._refuse(value)

    def _refuse(self, value: None) -> None:
        if value is not None:
            raise AttributeError("the keys and values of a packed layer are written by update()")

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        return -1  # buffers grow

    @property
    def batch_size(self) -> int:
        """Number of sequences, -1 before the first update."""
        return self.dense_key.shape[0] if self.is_initialized else -1

    def reset(self) -> None:
        self._clear()

    # one table says for all layers which token lies where

    def crop(self, tokens_to_remove: int) -> None:
        self._refuse_alone("crop")

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._refuse_alone("reorder_cache")

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._refuse_alone("batch_repeat_interleave")

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._refuse_alone("batch_select_indices")

    def _refuse_alone(self, name: str) -> None:
        raise KVMMError(f"The layers of a KVMMCache share their tokens: call {name}() of the cache, not of a layer.")

    def offload(self) -> None:
        """Move what is stored to the CPU, packed as it is; while a handle waits for its queries, after they came."""
        self.offloaded = self.is_initialized and self.device.type != "cpu"
        if self.offloaded and not self._awaits_query:
            self._move("cpu")

    def prefetch(self) -> None:
        """Move what was offloaded back to the layer's device."""
        if self.offloaded:
            self._move(self.device)
            self.offloaded = False

    def _move(self, device: torch.device | str) -> None:
        self.residual.to(device)
        self.queries.to(device)
        self.segments.to(device)

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """What is stored is on the layer's device inside, and goes back to the CPU if it was offloaded.

        The device is also the current one, on which kernels are launched: a model may be spread over several.
        """
        offloaded = self.offloaded
        self.prefetch()
        try:
            with self._current_device():
                yield
        finally:
            if offloaded:
                self.offload()

    def _current_device(self) -> AbstractContextManager[Any]:
        """Inside, the layer's device is the current one."""
        if self.device.type != "cuda" or self.device.index == torch.cuda.current_device():
            return nullcontext()
        return torch.cuda.device(self.device)
