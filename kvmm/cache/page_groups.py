"""Which group each page of a store belongs to, where groups of tokens are longer than a page."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvmm.kernels.append import with_rows


@dataclass(frozen=True, eq=False)
class PageGroups:
    """Group numbers, one a page. The numbers are written in place, the object never changes.

    Attributes:
        buffer: integer ``[capacity]``, of which the first ``used`` count.
        used: pages in use, as the host knows it.
    """

    buffer: torch.Tensor
    used: int

    @classmethod
    def of(cls, groups: torch.Tensor) -> PageGroups:
        """All of ``groups`` ``[P]``, without space for more."""
        return cls(groups, len(groups))

    @property
    def in_use(self) -> torch.Tensor:
        """The numbers of the pages in use, a view."""
        return self.buffer if self.used == len(self.buffer) else self.buffer[: self.used]

    def written(self, groups: torch.Tensor) -> PageGroups:
        """With ``groups`` ``[n]`` behind the pages in use, which do not count yet; in place where there is space."""
        end = self.used + len(groups)
        if end > len(self.buffer):
            return PageGroups(torch.cat((self.in_use, groups)) if self.used else groups, self.used)
        self.buffer[self.used : end] = groups
        return self

    def counting(self, used: int) -> PageGroups:
        """The same buffer, with ``used`` pages in use."""
        return PageGroups(self.buffer, used)

    def allocated(self, pages: int) -> PageGroups:
        """The same numbers in a buffer for ``pages`` pages, zeros behind them."""
        return PageGroups(with_rows([(self.in_use[None, None], pages, 0)])[0][0, 0], self.used)

    def cut(self, used: int) -> PageGroups | None:
        """The first ``used`` numbers alone, copied; None without any."""
        return PageGroups.of(self.buffer[:used].clone()) if used else None

    def fork(self) -> PageGroups:
        """A copy in a buffer of its own."""
        return PageGroups(self.buffer.clone(), self.used)

    def to(self, device: torch.device | str) -> PageGroups:
        """The numbers on a device."""
        return PageGroups(self.buffer.to(device), self.used)


__all__ = ["PageGroups"]
