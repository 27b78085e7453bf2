"""What is known of the entries of a store: the attention that they got, and what error each tier makes in them."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from kvmm.cache.entries import EntryStore, Tensors
from kvmm.codecs.base import Codec
from kvmm.policy import RetentionSettings


class ObservedStore(EntryStore):
    """Entries, and what is known of them.

    Attributes:
        settings: how entries are chosen; ``decay``, ``window``, ``margin_gate`` and ``selection`` matter here.
        importance: float32 ``[P, H]``, of each entry (keys): the moving average of its attention mass, of the largest
            among ``window`` steps at a time, or for H2O the sum; what an entry had when it was dropped.
        peak: float32 ``[P, H]``, the largest attention mass since the last update, with a ``window`` of several steps.
        since: steps since then.
        error, largest_error: float32 ``[num_tiers, P, H]``. Of keys, the mean square and the largest length of the
            error that a tier makes; of values that have tiers, the mean square error as a share of the mean square.
        margin: float32 ``[P, H]``, smallest distance between the two largest logits while one of the two was in the
            entry, since the margins were last read.
        energy: float32 ``[H]``, moving average of the mean square of a scaled query's channels.
        sparsity: float32 ``[1]``, the share of the layer's attention after the last image that VL-Cache's threshold
            takes for zero; None if nothing asked for it.
        changed, flips: int64 arrays ``[P, H]``, the controller's run in which an entry last changed its tier, and how
            often it did.
    """

    truncates = False
    observes = True

    def __init__(self, tiers: list[Codec], page_size: int, settings: RetentionSettings):
        super().__init__(tiers, page_size)
        self.settings = settings
        self.importance = self.margin = self.energy = self.error = self.largest_error = None
        self.peak = self.sparsity = None
        self.since = 0
        self.changed = self.flips = np.zeros((0, 0), dtype=np.int64)

    @property
    def gated(self) -> bool:
        """Whether margins are wanted."""
        return self.settings.margin_gate

    @property
    def observes_all(self) -> bool:
        """Whether :meth:`observe` has to see the probabilities of all slots: margins are between any two of them."""
        return self.gated

    # -- new pages --------------------------------------------------------------------------------------------------

    def _begin(self, pages: int) -> None:
        rows = np.zeros((pages, self.num_heads), dtype=np.int64)
        self.changed = rows - 1 if not self.changed.size else np.concatenate((self.changed, rows - 1))
        self.flips = rows if not self.flips.size else np.concatenate((self.flips, rows))

    def _note_errors(self, errors: torch.Tensor) -> None:
        """Add the errors ``[2, num_tiers, pages, H]`` of new pages."""
        self.error = _longer(self.error, errors[0])
        if self.codec.side == "key":
            self.largest_error = _longer(self.largest_error, errors[1])

    def _note_pages(self, pages: int, mass: torch.Tensor | None, device: torch.device) -> None:
        """Add what is known of new pages: their attention mass ``[1, H, T]``, or None."""
        heads = self.num_heads
        if self.gated:
            self.margin = _longer(self.margin, torch.full((pages, heads), torch.inf, device=device))
        if self.energy is None:
            self.energy = torch.full((heads,), torch.nan, device=device)
        if self.settings.window > 1:
            self.peak = _longer(self.peak, torch.zeros(pages, heads, device=device))
        if mass is not None:
            missing = -mass.shape[2] % self.page_size
            fresh = functional.pad(mass.float(), (0, missing))[0].unflatten(1, (pages, -1)).sum(-1).T
        elif self.importance is None:
            fresh = torch.full((pages, heads), 1.0 / pages, device=device)
        else:
            fresh = self.importance.mean(0, keepdim=True).expand(pages, -1)
        self.importance = _longer(self.importance, fresh.contiguous())

    # -- what attention shows ---------------------------------------------------------------------------------------

    def observe(self, query: torch.Tensor, probabilities: torch.Tensor, start: int, end: int) -> None:
        """Learn from one decode step.

        Args:
            query: ``[1, H, Q, D]``, multiplied by the softmax scale.
            probabilities: ``[1, H, Q, N]`` over all slots of the layer, or without :attr:`observes_all` over some of
                them, of which ``start`` to ``end`` are this store's.
        """
        own = self._from_slots(probabilities[:, :, :, start:end], 3)[0]
        mass = own.mean(1).unflatten(-1, (self.num_pages, -1)).sum(-1).T
        average = self._average(mass)
        # what is gone gets no attention, which says nothing about it
        self.importance = torch.where(self._held(), average, self.importance) if self.dropped else average
        self.note_energy(query)
        if self.gated and probabilities.shape[-1] > 1:
            self._note_margin(*probabilities[0].topk(2, dim=-1), start, end)

    def _average(self, mass: torch.Tensor) -> torch.Tensor:
        """The importance ``[P, H]`` after a step in which entries got ``mass``."""
        if self.settings.selection == "h2o":
            return self.importance + mass
        if self.settings.window > 1:
            self.peak = torch.maximum(self.peak, mass)
            self.since += 1
            if self.since < self.settings.window:
                return self.importance
            mass, self.peak, self.since = self.peak, torch.zeros_like(self.peak), 0
        return self.settings.decay * self.importance + (1 - self.settings.decay) * mass

    def _note_margin(self, largest: torch.Tensor, slots: torch.Tensor, start: int, end: int) -> None:
        """Note the distance between the two largest logits, ``[H, Q, 2]`` each, at the entries that hold them."""
        gap = (largest[..., :1].log() - largest[..., 1:].clamp_min(1e-30).log()).expand_as(largest)
        inside = (slots >= start) & (slots < end)
        place = torch.where(inside, slots - start, 0)
        if self.order is not None:
            ranks = torch.arange(self.order.shape[1], device=place.device).expand_as(self.order)
            place_of = torch.empty_like(ranks).scatter_(1, self.order.long(), ranks)
            place = place_of.gather(1, place.flatten(1)).view_as(place)
        page = place.div(self.page_size, rounding_mode="floor")
        head = torch.arange(self.num_heads, device=page.device).view(-1, 1, 1)
        index = (page * self.num_heads + head).flatten()
        gap = torch.where(inside, gap, torch.inf).flatten()
        self.margin = self.margin.flatten().scatter_reduce(0, index, gap, "amin").view_as(self.margin)

    def note_energy(self, query: torch.Tensor) -> None:
        """Learn the size of scaled queries ``[1, H, Q, D]``."""
        energy = query.float().square().mean((0, 2, 3))
        decay = self.settings.decay
        known = decay * self.energy + (1 - decay) * energy
        self.energy = torch.where(self.energy.isnan(), energy, known)

    # -- state ------------------------------------------------------------------------------------------------------

    def _state_tensors(self) -> Tensors:
        names = ("importance", "peak", "margin", "energy", "error", "largest_error", "sparsity", "order")
        return {name: tensor for name in names if (tensor := getattr(self, name)) is not None}


def _longer(old: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
    return new if old is None else torch.cat((old, new), -2)


__all__ = ["ObservedStore"]
