"""Chunks of one size: of each the most bits whose entropy-coded bytes fit.

For stores that read as many bytes as they were told, not as many as were written.
"""

from __future__ import annotations

import numpy as np
import torch

from kvmm.calibration.data import Calibration
from kvmm.codecs.rd.chunks import ChunkCodec
from kvmm.errors import KVMMError

RUNGS = tuple(n / 4 for n in range(2, 25))  # bits that are tried, .5 to 6
_SLACK = 0.88  # of the size; a chunk that leaves more room lets the next one begin a rung higher
_CODES = 0.8  # of their bits that codes take once they are coded, about


class FixedChunkCodec:
    """Encodes chunks as bytes whose number follows from the shape alone.

    Args:
        calibration, modality, levels: as of :class:`ChunkCodec`.
        ratio: how many times fewer bytes than the keys and values have, 2.5 to 24.

    Raises:
        KVMMError: as :class:`ChunkCodec`, or for another ratio.
    """

    def __init__(self, calibration: Calibration, ratio: float = 8, modality: str = "text", levels: str = "span"):
        if not 2.5 <= ratio <= 24:
            raise KVMMError(f"ratio: must be 2.5 to 24, not {ratio!r}.")
        self.ratio = float(ratio)
        self._given = (calibration, modality, levels)
        self._codecs: dict[float, ChunkCodec] = {}
        wanted = 16 / self.ratio / _CODES
        self._rung = max(0, sum(bits <= wanted for bits in RUNGS) - 1)  # where the next chunk begins
        self._codec(RUNGS[self._rung])

    def _codec(self, bits: float) -> ChunkCodec:
        if bits not in self._codecs:
            calibration, modality, levels = self._given
            self._codecs[bits] = ChunkCodec(calibration, bits, modality, levels)
        return self._codecs[bits]

    def check_shape(self, shape: torch.Size | tuple[int, ...]) -> int:
        """As :meth:`ChunkCodec.check_shape`."""
        return self._codec(RUNGS[self._rung]).check_shape(shape)

    def nbytes(self, shape: torch.Size | tuple[int, ...], itemsize: int) -> int:
        """The bytes of every chunk of a shape."""
        self.check_shape(shape)
        return int(torch.Size(shape).numel() * itemsize / self.ratio)

    def encode(self, kv: torch.Tensor) -> np.ndarray:
        """As :meth:`ChunkCodec.encode`, padded with zeros.

        Raises:
            KVMMError: as there, or if not even half a bit a channel fits.
        """
        size, rung, best = self.nbytes(kv.shape, kv.dtype.itemsize), self._rung, None
        while best is None:
            data = self._codec(RUNGS[rung]).encode(kv)
            if len(data) <= size:
                best = data
            elif rung == 0:
                raise KVMMError(
                    f"A chunk of {kv.shape[2]} tokens does not fit {size} bytes with {RUNGS[0]} bits a channel, but "
                    f"{len(data)}: ask for a lower ratio or for longer chunks."
                )
            else:
                rung -= 1
        higher = rung + (len(best) < _SLACK * size)
        self._rung = min(higher, len(RUNGS) - 1)
        padded = np.zeros(size, np.uint8)
        padded[: len(best)] = best
        return padded

    def decode(self, data: np.ndarray, shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """As :meth:`ChunkCodec.decode`."""
        bits = ChunkCodec.bits_of(data)
        if bits is not None and bits not in RUNGS:
            raise KVMMError(f"The chunk has {bits:g} bits a channel, which kvmm does not write in chunks of one size.")
        return self._codec(RUNGS[self._rung] if bits is None else bits).decode(data, shape, dtype)


__all__ = ["RUNGS", "FixedChunkCodec"]
