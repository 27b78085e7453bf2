"""Which group each page of a store belongs to, where groups of tokens are longer than a page."""

from __future__ import annotations

import torch


class PageGroups:
    """Group numbers, integer ``[capacity]``, one a page.

    Args:
        buffer: the numbers; :attr:`used` of them count.
        used: all of them if None.

    Attributes:
        buffer: stays where it is as long as it has space.
        used: pages in use, as the host knows it.
    """

    def __init__(self, buffer: torch.Tensor, used: int | None = None):
        self.buffer = buffer
        self.used = len(buffer) if used is None else used

    @property
    def in_use(self) -> torch.Tensor:
        """The numbers of the pages in use, a view."""
        return self.buffer if self.used == len(self.buffer) else self.buffer[: self.used]

    def write(self, groups: torch.Tensor) -> bool:
        """Put ``groups`` behind those in use, which do not count before :attr:`used` says so.

        Returns:
            whether there was space for them; if not, the buffer is another one.
        """
        end = self.used + len(groups)
        if end <= len(self.buffer):
            self.buffer[self.used : end] = groups
            return True
        self.buffer = torch.cat((self.in_use, groups)) if self.used else groups
        return False

    def allocate(self, pages: int) -> PageGroups:
        """The same numbers in a buffer for ``pages`` pages, zeros behind them."""
        buffer = self.buffer.new_zeros(pages)
        if self.used:
            buffer[: self.used] = self.in_use
        return PageGroups(buffer, self.used)

    def cut(self, used: int) -> PageGroups | None:
        """The first ``used`` numbers alone, copied; None without any."""
        return PageGroups(self.buffer[:used].clone()) if used else None

    def fork(self) -> PageGroups:
        """A copy that is written by itself."""
        return PageGroups(self.buffer.clone(), self.used)

    def to(self, device: torch.device | str) -> None:
        """Move the numbers to a device."""
        self.buffer = self.buffer.to(device)


__all__ = ["PageGroups"]
