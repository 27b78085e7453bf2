"""Where a captured packing writes: what it reads of the device changes from page to page, its kernels do not."""

from __future__ import annotations

import torch


class NextPage:
    """Where the next page of text goes, by the device's own count of pages, so that the same captured kernels write
    every page.

    Args:
        num_pages: int32 ``[1]``, text pages in use.
        held: the same number, as the host knows it while kernels are launched.
    """

    def __init__(self, num_pages: torch.Tensor, held: int):
        self._num_pages = num_pages
        self._held = held
        # all layers ask for the same few
        self._numbers: dict[tuple[int, int], torch.Tensor] = {}
        self._rows: dict[tuple[int, int], torch.Tensor] = {}

    def number(self, used: int, step: int) -> torch.Tensor:
        """int32 ``[1]``: ``used`` of something that there are ``step`` more of with every page."""
        key = used - self._held * step, step
        if key not in self._numbers:
            self._numbers[key] = self._num_pages * step + key[0]
        return self._numbers[key]

    def rows(self, used: int, count: int) -> torch.Tensor:
        """int64 ``[count]``: the rows behind the ``used`` ones of a tensor that every page adds ``count`` rows to."""
        key = used - self._held * count, count
        if key not in self._rows:
            self._rows[key] = self.number(used, count) + torch.arange(count, device=self._num_pages.device)
        return self._rows[key]


__all__ = ["NextPage"]
