"""Which tokens of a span share a scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch


class TokenGroups:
    """The groups of tokens that share a scale: ``group_size`` tokens each, or all of a span if None.

    A *unit* is the part of a group inside one page; statistics are taken per unit, then reduced over
    the pages of a group.

    Attributes:
        unit: tokens a unit.
        pages: pages of the span.
        pages_per_group: 1 if groups lie inside pages.
        page_group: int32 ``[P]``, the group of each page where groups are longer than pages, else None.
    """

    def __init__(self, pages: int, page_size: int, group_size: int | None, device: torch.device):
        self.pages = pages
        self.unit = page_size if group_size is None else min(group_size, page_size)
        self.pages_per_group = pages if group_size is None else max(1, group_size // page_size)
        self._long = self.pages_per_group > 1 or group_size is None
        self._device = device

    @cached_property
    def page_group(self) -> torch.Tensor | None:
        if not self._long:
            return None
        return torch.arange(self.pages, dtype=torch.int32, device=self._device) // self.pages_per_group

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, H, P, N, ...]`` to units ``[B, H, U, unit, ...]``."""
        return x.flatten(2, 3).unflatten(2, (-1, self.unit))

    def reduce(
        self, units: torch.Tensor, reduction: Callable[[torch.Tensor], torch.Tensor], fill: bool, run: int = 1
    ) -> torch.Tensor:
        """Reduce statistics of units ``[B, H, U, D]`` into groups ``[B, H, G, D]``.

        ``fill`` says whether a last, short group may be filled with copies of its last page (minima and maxima) or must
        be filled with zeros (sums). ``reduction`` reduces dimension 3. Where groups are longer than pages,
        statistics may be of runs of ``run`` pages.
        """
        per_group = -(-self.pages_per_group // run)
        if per_group == 1:
            return units
        missing = -units.shape[2] % per_group
        if missing:
            last = units[:, :, -1:] if fill else torch.zeros_like(units[:, :, -1:])
            units = torch.cat((units, last.expand(-1, -1, missing, -1)), 2)
        return reduction(units.unflatten(2, (-1, per_group)))

    def minimum(self, units: torch.Tensor, run: int = 1) -> torch.Tensor:
        """Minima of units ``[B, H, U, D]`` to groups ``[B, H, G, D]``."""
        return self.reduce(units, lambda u: u.amin(3), fill=True, run=run)

    def maximum(self, units: torch.Tensor, run: int = 1) -> torch.Tensor:
        """Maxima of units ``[B, H, U, D]`` to groups ``[B, H, G, D]``."""
        return self.reduce(units, lambda u: u.amax(3), fill=True, run=run)

    def sum(self, units: torch.Tensor, run: int = 1) -> torch.Tensor:
        """Sums of units ``[B, H, U, D]`` to groups ``[B, H, G, D]``."""
        return self.reduce(units, lambda u: u.sum(3), fill=False, run=run)

    def merge_pages(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, H, P, N, ...]`` to whole groups ``[B, H, G, n, ...]``, a last, short one filled with zeros."""
        if self.pages_per_group == 1:
            return self.split(x)
        missing = -x.shape[2] % self.pages_per_group
        if missing:
            x = torch.cat((x, torch.zeros_like(x[:, :, :1]).expand(-1, -1, missing, *x.shape[3:])), 2)
        return x.unflatten(2, (-1, self.pages_per_group)).flatten(3, 4)

    @property
    def whole(self) -> bool:
        """Whether the pages fill every group."""
        return self.pages % self.pages_per_group == 0

    def expand_groups(self, groups: torch.Tensor) -> torch.Tensor:
        """``[B, H, G, D]`` to ``[B, H, U, 1, D]``, the parameters of every unit."""
        if self.pages_per_group > 1:
            groups = groups.repeat_interleave(self.pages_per_group, dim=2)[:, :, : self.pages]
        return groups.unsqueeze(3)
