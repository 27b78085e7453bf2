"""Rates and factors of the product and angle codes, and their indices in planes of bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kvmm.codecs.spec import CodecSpec
from kvmm.errors import KVMMError
from kvmm.kernels.quantize import pack_planes, unpack_planes


@dataclass(frozen=True)
class Rate:
    """Channels a group, bits an index, and whether a length of 8 bits comes with it."""

    group: int
    index_bits: int
    radius: bool

    @property
    def bits(self) -> float:
        """Bits a channel."""
        total = self.index_bits + 8 * self.radius
        return total // self.group if total % self.group == 0 else total / self.group

    @property
    def name(self) -> str:
        """What its codebooks are called in a calibration file."""
        return f"{'angle' if self.radius else 'product'}-{self.group}-{self.index_bits}"


HIGH, MID, LOW = Rate(16, 6, True), Rate(16, 4, True), Rate(32, 3, True)  # 14, 12 and 5.5 bytes a key of 128 channels
PRODUCT2, PRODUCT1 = Rate(4, 8, False), Rate(8, 8, False)
RATES = {rate.bits: rate for rate in (HIGH, MID, LOW, PRODUCT2, PRODUCT1)}
_MAX_FACTOR = 4.0  # of a gain or a weight
LOWER = {HIGH: MID, MID: LOW, PRODUCT2: PRODUCT1}


def rate_of(spec: CodecSpec) -> Rate | None:
    """The rate a spec names; None if its options do not make one."""
    group, index_bits = spec.option("group"), spec.option("index_bits")
    if group is None and index_bits is None:
        return RATES.get(spec.bits)
    if not isinstance(group, int) or group < 2 or not isinstance(index_bits, int):
        return None
    return Rate(group, index_bits, spec.option("code") == "angle")


def divisor(dim: int, size: int) -> int:
    """The divisor of ``dim`` nearest to ``size``, the larger of two."""
    return min((d for d in range(1, dim + 1) if dim % d == 0), key=lambda d: (abs(d - size), -d))


def _planes(bits: int) -> list[int]:
    """The powers of two that make up a width, largest first: 6 is 4 + 2."""
    return [width for width in (8, 4, 2, 1) if bits & width]


def pack_indices(index: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack uint8 indices ``[..., N, J]`` into ``[..., N * bits / 8, J]``, the highest bits first."""
    pieces, left = [], bits
    for width in _planes(bits):
        left -= width
        pieces.append(pack_planes((index >> left) & (2**width - 1), width, -2))
    return torch.cat(pieces, -2)


def unpack_indices(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse of :func:`pack_indices`."""
    widths = _planes(bits)
    rows = packed.shape[-2] // bits
    index = None
    for width, piece in zip(widths, packed.split([rows * w for w in widths], -2), strict=True):
        codes = unpack_planes(piece, width, -2)
        index = codes if index is None else (index << width) | codes
    return index


def check_factors(spec: CodecSpec) -> None:
    """Raise :class:`KVMMError` if gain or weights are no factors."""

    def is_factor(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= _MAX_FACTOR

    if not is_factor(spec.option("gain", 1.0)):
        raise KVMMError(f"Codec {spec.codec}: gain must be above 0 and at most {_MAX_FACTOR:g}.")
    weights = spec.option("weights")
    if weights is not None and not (isinstance(weights, tuple) and all(map(is_factor, weights))):
        raise KVMMError(f"Codec {spec.codec}: weights must be a list of factors above 0 and at most {_MAX_FACTOR:g}.")
