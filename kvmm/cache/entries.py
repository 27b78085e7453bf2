"""Pages in entries: one page of one KV head each, in the code of its tier, or dropped; and how attention reads them.

A plain :class:`PageStore` keeps all pages of a tensor in one code, and attention reads that through its codec. Entries
lie in several codes, so such a store reads itself: it has its own :meth:`EntryStore.scores` and
:meth:`EntryStore.weighted_values`, and no kernel's format. What moves entries is :mod:`kvmm.cache.tiers`.
"""

from __future__ import annotations

import numpy as np
import torch

from kvmm.cache.pages import PageStore
from kvmm.cache.token_table import MASKED
from kvmm.codecs.base import Codec, Packed

Tensors = dict[str, torch.Tensor]


class EntryStore(PageStore):
    """Entries of keys or values by tier, for one sequence.

    Buffers: ``<tier>.<name>`` ``[1, E, k, ...]``, the tensors of the codec with its pages as entries;
    ``<tier>.entries`` int32 ``[1, 1, E]``, ascending numbers ``page * H + head``; ``span.<name>`` ``[1, H, G, ...]``,
    what pages share.

    The places of a head's pages hold the slots of the token table in their order, or in one of the head's own.

    Args:
        tiers: their codecs, the policy's own first. All have its basis.
        page_size: tokens a page.

    Attributes:
        num_tiers: tiers with codes; the tier of that number means dropped.
        num_pages, num_heads, dim: ``P``, ``H`` and ``D``.
        order: int16 or int32 ``[H, P * page_size]``, the slot that each place of a head holds; None if place ``i`` of
            every head holds slot ``i``.
    """

    def __init__(self, tiers: list[Codec], page_size: int):
        super().__init__(tiers[0], page_size)
        self.tiers = tiers
        self.num_tiers = len(tiers)
        self.num_pages = 0
        self.num_heads = 0
        self.dim = 0
        self.order: torch.Tensor | None = None

    @property
    def slots(self) -> int:
        """Tokens of all pages."""
        return self.num_pages * self.page_size

    # -- contents ---------------------------------------------------------------------------------------------------

    def tier(self, tier: int) -> tuple[torch.Tensor, Packed]:
        """Entry numbers int64 ``[E]`` of a tier, and their codes as ``E`` heads of one page each."""
        entries = self.buffers[f"{tier}.entries"][0, 0].long()
        return entries, self._as_heads(self._named(f"{tier}."), entries, self.tiers[tier])

    def _named(self, prefix: str) -> Tensors:
        skip = len(prefix)
        return {n[skip:]: t for n, t in self.buffers.items() if n.startswith(prefix) and n[skip:] != "entries"}

    def _as_heads(self, tensors: Tensors, entries: torch.Tensor, codec: Codec | None = None) -> Packed:
        """Entries as heads of one page, with the rows of what pages share that ``codec`` stores; None: all of them."""
        span = self._named("span.")
        if codec is not None:
            span = {name: t for name, t in span.items() if name in codec.shared_tensors and name not in tensors}
        if not span:
            return Packed(tensors, self.page_size, None)
        page, head = entries // self.num_heads, entries % self.num_heads
        group = self.page_group.long()[page]
        span = {name: t[:, head, group].unsqueeze(2) for name, t in span.items()}
        return Packed(span | tensors, self.page_size, torch.zeros(1, dtype=torch.int32, device=entries.device))

    def _to_slots(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """``x`` ``[1, H, ...]`` with places along ``dim``, in the order of slots."""
        return x if self.order is None else x.scatter(dim, self._index(x, dim), x)

    def _from_slots(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """The inverse of :meth:`_to_slots`."""
        return x if self.order is None else x.gather(dim, self._index(x, dim))

    def _index(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        shape = [1] * x.dim()
        shape[1], shape[dim] = self.order.shape
        return self.order.long().view(shape).expand_as(x)

    def tier_map(self) -> np.ndarray:
        """int64 ``[P, H]``: the tier of every entry."""
        tiers = np.full(self.num_pages * self.num_heads, self.num_tiers, dtype=np.int64)
        for tier in range(self.num_tiers):
            tiers[self.buffers[f"{tier}.entries"][0, 0].cpu().numpy()] = tier
        return tiers.reshape(self.num_pages, self.num_heads)

    @property
    def packed(self) -> Packed:
        """Codes of several tiers are no one ``Packed``; see :meth:`tier`."""
        raise NotImplementedError("a store with tiers is read by its own scores() and weighted_values()")

    @property
    def dropped(self) -> bool:
        """Whether some entry is gone."""
        kept = sum(self.buffers[f"{tier}.entries"].shape[2] for tier in range(self.num_tiers))
        return kept < self.num_pages * self.num_heads

    def _held(self) -> torch.Tensor:
        """bool ``[P, H]``: the entries that are not gone."""
        held = torch.zeros(self.num_pages * self.num_heads, dtype=torch.bool, device=self.buffers["0.entries"].device)
        for tier in range(self.num_tiers):
            held[self.buffers[f"{tier}.entries"][0, 0].long()] = True
        return held.view(self.num_pages, self.num_heads)

    def decode(self) -> torch.Tensor:
        """float32 ``[1, H, P * page_size, D]``, zeros where entries were dropped."""
        shape = (self.num_pages * self.num_heads, self.page_size, self.dim)
        pages = torch.zeros(shape, device=self.buffers["0.entries"].device)
        for tier, codec in enumerate(self.tiers):
            entries, packed = self.tier(tier)
            if len(entries):
                pages[entries] = codec.page_decode(packed, entries % self.num_heads)[0]
        return self._to_slots(pages.unflatten(0, (-1, self.num_heads)).transpose(0, 1).flatten(1, 2).unsqueeze(0), 2)

    # -- how attention reads it -------------------------------------------------------------------------------------

    format = None  # no kernel knows tiers
    pages_in_use = None

    def scores(self, query: torch.Tensor) -> torch.Tensor:
        """Queries ``[1, H, Q, D]`` in the first tier's basis, which all share, to ``[1, H, Q, P * page_size]``."""
        scores = query.new_full((self.num_pages * self.num_heads, query.shape[2], self.page_size), MASKED)
        for tier, codec in enumerate(self.tiers):
            entries, packed = self.tier(tier)
            if len(entries):
                scores[entries] = codec.page_scores(query, packed, entries % self.num_heads)[0]
        scores = scores.unflatten(0, (-1, self.num_heads)).permute(1, 2, 0, 3).flatten(2).unsqueeze(0)
        return self._to_slots(scores, 3)

    def calibrate_logits(self, scores: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        gone = torch.where(scores <= MASKED / 2, MASKED, 0.0)
        return self.codec.calibrate_logits(scores, gone if bias is None else bias + gone)

    def weighted_values(self, probabilities: torch.Tensor) -> torch.Tensor:
        """``[1, H, Q, P * page_size]`` to ``[1, H, Q, D]``."""
        placed = self._from_slots(probabilities, 3)
        split = placed[0].unflatten(-1, (self.num_pages, -1)).permute(2, 0, 1, 3).flatten(0, 1)
        total = split.new_zeros(1, self.num_heads, split.shape[1], self.dim)
        for tier, codec in enumerate(self.tiers):
            entries, packed = self.tier(tier)
            if len(entries):
                piece = split.index_select(0, entries).unsqueeze(0)
                total += codec.page_weighted_values(piece, packed, entries % self.num_heads, self.num_heads)
        return total


__all__ = ["EntryStore"]
