"""How attention reads pages of several tiers; see :mod:`kvmm.cache.tiers`."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from kvmm.cache.table import MASKED
from kvmm.codecs.base import Codec, Packed


class Entries(Protocol):
    """A :class:`kvmm.cache.tiers.TieredStore`, whose entries are pages of single heads."""

    page_size: int
    num_pages: int
    num_heads: int
    dim: int

    def tier(self, tier: int) -> tuple[torch.Tensor, Packed]:
        """Entries of a tier, int64 ``[E]``, and their pages as heads of one page each."""


class TierReader:
    """How attention reads a store of entries: a codec to :func:`kvmm.kernels.attention.attend`, without state."""

    def __init__(self, tiers: list[Codec]):
        self.tiers = tiers
        self.adjusts_scores = tiers[0].adjusts_scores

    @property
    def basis(self) -> Any:
        return self.tiers[0].basis

    def transform_query(self, query: torch.Tensor) -> torch.Tensor:
        return self.tiers[0].transform_query(query)

    def restore_output(self, output: torch.Tensor) -> torch.Tensor:
        return self.tiers[0].restore_output(output)

    def scores(self, query: torch.Tensor, store: Entries) -> torch.Tensor:
        """``[1, H, Q, D]`` to ``[1, H, Q, P * page_size]``."""
        rows, tokens = query.shape[2], store.page_size
        scores = query.new_full((store.num_pages * store.num_heads, rows, tokens), MASKED)
        for tier, codec in enumerate(self.tiers):
            entries, packed = store.tier(tier)
            if len(entries):
                scores[entries] = codec.page_scores(query, packed, entries % store.num_heads)[0]
        return scores.unflatten(0, (-1, store.num_heads)).permute(1, 2, 0, 3).flatten(2).unsqueeze(0)

    def adjust_scores(self, scores: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        gone = torch.where(scores <= MASKED / 2, MASKED, 0.0)
        return self.tiers[0].adjust_scores(scores, gone if bias is None else bias + gone)

    def mix(self, probabilities: torch.Tensor, store: Entries) -> torch.Tensor:
        """``[1, H, Q, P * page_size]`` to ``[1, H, Q, D]``."""
        split = probabilities[0].unflatten(-1, (store.num_pages, -1)).permute(2, 0, 1, 3).flatten(0, 1)
        total = split.new_zeros(1, store.num_heads, split.shape[1], store.dim)
        for tier, codec in enumerate(self.tiers):
            entries, packed = store.tier(tier)
            if len(entries):
                piece = split.index_select(0, entries).unsqueeze(0)
                total += codec.page_mix(piece, packed, entries % store.num_heads, store.num_heads)
        return total


__all__ = ["TierReader"]
