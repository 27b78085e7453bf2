"""The packed pages of one layer: a :class:`kvmm.cache.part.Part` a modality, in the order that attention reads them.

With static buffers text has a part from the first packing on, whether or not a page of it exists: a captured step reads
its capacity, so that the first page of text that fills changes nothing but a number on the device. Until it has a page
that part is ``spare`` and no part of the cache's contents.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kvmm.cache.capacity import StaticCapacity
from kvmm.cache.pages import PageStore
from kvmm.cache.part import Part
from kvmm.cache.plan import Cut
from kvmm.cache.tiers import TieredStore
from kvmm.codecs import Codec
from kvmm.modality import TEXT
from kvmm.policy import RetentionSettings


class Segments:
    """The parts of a layer.

    Args:
        codecs: of keys and values, by modality.
        retention: how pages are lowered and dropped to meet a budget; None without one.

    Attributes:
        parts: those with pages, by modality, in ascending order.
        spare: text's, while it has no page; only with static buffers.
        exact_dtype: what pages keep exact tokens in; set before the first page comes.
    """

    def __init__(self, codecs: Mapping[int, tuple[Codec, Codec]], retention: RetentionSettings | None = None):
        self._codecs = codecs
        self._retention = retention
        self.parts: dict[int, Part] = {}
        self.spare: Part | None = None
        self.exact_dtype: torch.dtype | None = None

    @property
    def stores(self) -> list[PageStore]:
        """Keys and values of every part with pages, in order."""
        return [store for part in self.parts.values() for store in part.stores]

    @property
    def allocated(self) -> dict[int, Part]:
        """All parts in order, the spare one among them."""
        return self.parts if self.spare is None else dict(sorted((self.parts | {TEXT: self.spare}).items()))

    @property
    def allocated_stores(self) -> list[PageStore]:
        """Keys and values of every part, the spare one's among them."""
        return [store for part in self.allocated.values() for store in part.stores]

    def new_part(self, modality: int, page_size: int) -> Part:
        """An empty part, which the layer does not have yet."""
        return Part(*(self._new_store(codec, page_size) for codec in self._codecs[modality]))

    def _new_store(self, codec: Codec, page_size: int) -> PageStore:
        if self._retention is None:
            store = PageStore.for_codec(codec, page_size)
        else:
            store = TieredStore.for_settings(codec, page_size, self._retention)
        store.exact_dtype = self.exact_dtype
        return store

    def add(self, modality: int, part: Part) -> None:
        """Make ``part`` the one of its modality."""
        self.parts = dict(sorted((self.parts | {modality: part}).items()))

    def open(self, modality: int, page_size: int) -> Part:
        """The part that pages of ``page_size`` tokens can be appended to."""
        if modality not in self.parts:
            part = None
            if modality == TEXT:
                part, self.spare = self.spare, None
            if part is None or part.key.page_size != page_size:
                part = self.new_part(modality, page_size)
            self.add(modality, part)
        return self.parts[modality]

    def allocate(self, static: StaticCapacity, held: int, like: torch.Tensor) -> None:
        """Give text its capacity, where it has not.

        Args:
            static: the capacities.
            held: pages of text that there are.
            like: as in :meth:`PageStore.allocate`.
        """
        part = self.parts.get(TEXT) or self.spare
        if part is None or part.key.page_size != static.page_size:
            part = self.spare = self.new_part(TEXT, static.page_size)
        for store in part.stores:
            store.allocate(static.text_pages, held, like)

    def addresses(self) -> list[int | None]:
        """What a captured step would read of all stores."""
        return [x for store in self.allocated_stores for x in store.addresses()]

    def index_batch(self, index: torch.Tensor) -> None:
        """Keep, repeat or reorder sequences: ``index`` is int64 ``[B_new]``."""
        for store in self.allocated_stores:
            store.index_batch(index)

    def crop(self, cut: Cut) -> None:
        """Take back the appends that lost all their tokens."""
        for modality, appends in cut.appends.items():
            if not appends:
                del self.parts[modality]
                continue
            for store in self.parts[modality].stores:
                store.truncate(appends)

    def fork(self) -> Segments:
        """Parts of another layer, which share the pages of these until one of the two writes."""
        twin = Segments(self._codecs, self._retention)
        twin.exact_dtype = self.exact_dtype
        twin.spare = None if self.spare is None else self.spare.fork()
        twin.parts = {modality: part.fork() for modality, part in self.parts.items()}
        return twin

    def to(self, device: torch.device | str) -> None:
        """Move the pages to a device."""
        for store in self.stores:
            store.to(device)


__all__ = ["Segments"]
