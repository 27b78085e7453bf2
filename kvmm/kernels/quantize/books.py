"""Scalar code books: the codes of the coordinates of unit vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class ScalarBook:
    """How vectors are coded whose lengths are stored: each coordinate of a direction by the borders between its codes.

    Attributes:
        runs: number of neighbouring channels and the ascending borders between their codes, float32; the first run has
            the more codes. A code is the number of borders below the coordinate.
        low_bits: bits of the first plane of codes, which all channels have.
        high_bits, high_channels: bits of the second plane, and how many channels, the first, have it; 0 and 0 if none.
        split: the directions of the first run and of the others are apart, with a length each; if False, a vector has
            one.
    """

    runs: tuple[tuple[int, tuple[float, ...]], ...]
    low_bits: int
    high_bits: int = 0
    high_channels: int = 0
    split: bool = False

    @property
    def parts(self) -> list[slice]:
        """The channels of each length."""
        dim = sum(count for count, _ in self.runs)
        first = self.runs[0][0]
        return [slice(0, first), slice(first, dim)] if self.split else [slice(0, dim)]


@lru_cache(maxsize=64)
def borders_on(borders: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """float32 ``[K]``; do not modify, it is shared."""
    with torch.inference_mode(False):
        return torch.tensor(borders, dtype=torch.float32, device=device)
