"""The bit planes of codes with a number of bits per channel: two-bit planes and one one-bit plane.

A channel of ``2 n`` bits has lanes in the first ``n`` two-bit planes; a channel of one bit has a lane in the one-bit
plane. Channels are in the order of falling bits, so each two-bit plane covers a first run of channels and the stored
tensors are dense: ``codes`` uint8, the two-bit planes one after the other, and ``codes_1bit`` uint8.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache

import torch

from kvmm.errors import KVMMError
from kvmm.kernels.quantize.reference import pack_planes, unpack_planes

STORED_BITS = {"codes": 2, "codes_1bit": 1}  # of the stored tensors
_ALIGNMENT = 16  # lanes


class PlaneLayout:
    """The bit planes of a site's channels, which are in the order of falling bits.

    Attributes:
        bits: int64 ``[D]``.
        coded: channels with any bits, the first of all.
        two_bit_planes: ``(plane, channels)`` for each two-bit plane, which has a lane for each of its first channels.
        one_bit: the range of channels of one bit.
    """

    def __init__(self, bits: torch.Tensor):
        if bool((bits[1:] > bits[:-1]).any()):
            raise KVMMError("The channels of a calibration do not fall in variance: make it again.")
        self.bits = bits
        self.coded = int((bits > 0).sum())
        self.two_bit_planes = [(plane, n) for plane in range(4) if (n := int((bits >= 2 * plane + 2).sum()))]
        self.one_bit = range(int((bits >= 2).sum()), self.coded)
        self._levels: dict[torch.device, torch.Tensor] = {}
        self._planes: dict[torch.device, list[tuple[str, int, torch.Tensor, torch.Tensor]]] = {}

    def levels(self, device: torch.device) -> torch.Tensor:
        """float32 ``[D]``, the highest code of each channel; do not modify, it is shared."""
        if device not in self._levels:
            self._levels[device] = (2**self.bits - 1).to(device, torch.float32)
        return self._levels[device]

    @cached_property
    def widths(self) -> dict[str, int]:
        """Lanes of each stored tensor that exists, by name."""
        widths = {"codes": sum(n for _, n in self.two_bit_planes), "codes_1bit": len(self.one_bit)}
        return {name: width for name, width in widths.items() if width}

    def stored_widths(self) -> dict[str, tuple[int, ...]]:
        """By name the widths that a stored tensor may have: with and without padded lanes."""
        return {name: (width, -(-width // _ALIGNMENT) * _ALIGNMENT) for name, width in self.widths.items()}

    def planes(self, device: torch.device) -> list[tuple[str, int, torch.Tensor, torch.Tensor]]:
        """Per stored tensor: name, bits per lane, and for each lane its channel (int64) and plane weight (float32)."""
        if device not in self._planes:
            runs = {
                "codes": [(4.0**plane, range(n)) for plane, n in self.two_bit_planes],
                "codes_1bit": [(1.0, self.one_bit)],
            }
            self._planes[device] = [
                (
                    name,
                    STORED_BITS[name],
                    torch.tensor([channel for _, run in runs[name] for channel in run], device=device),
                    torch.tensor([weight for weight, run in runs[name] for _ in run], device=device),
                )
                for name in self.widths
            ]
        return self._planes[device]

    def padded_widths(
        self, device: torch.device, previous: Mapping[str, torch.Tensor] | None, dim: int
    ) -> dict[str, int]:
        """The lanes to store: a multiple of 16 on a GPU, whose loads are 16 bytes wide, the last ones zeros; or as many
        as the previous tensors have. ``dim`` as in :meth:`pack`.
        """
        if previous is not None:
            return {name: previous[name].shape[-3 - dim] for name in self.widths}
        step = _ALIGNMENT if device.type == "cuda" else 1
        return {name: -(-width // step) * step for name, width in self.widths.items()}

    def pack(
        self, codes: torch.Tensor, dim: int, padded_widths: Mapping[str, int] | None = None
    ) -> dict[str, torch.Tensor]:
        """Bytes of uint8 codes ``[..., N, C]``, packed along tokens; ``dim`` -2 keeps, -1 swaps the last two.

        ``padded_widths`` are the lanes of each tensor, the last ones zeros; by default nothing is padded.
        """
        stored = {}
        if self.two_bit_planes:
            stored["codes"] = torch.cat([codes[..., :n] >> (2 * plane) & 3 for plane, n in self.two_bit_planes], -1)
        if self.one_bit:
            stored["codes_1bit"] = codes[..., self.one_bit.start :]
        for name, lanes in stored.items():
            if padded_widths is not None and (padding := padded_widths[name] - lanes.shape[-1]):
                stored[name] = torch.nn.functional.pad(lanes, (0, padding))
        if dim == -1:
            stored = {name: c.transpose(-1, -2).contiguous() for name, c in stored.items()}
        return {name: pack_planes(c, STORED_BITS[name], dim) for name, c in stored.items()}

    def unpack(self, tensors: Mapping[str, torch.Tensor], dim: int) -> torch.Tensor:
        """float32 codes, keys (``dim`` -2) ``[B, H, P, N, C]``, values (``dim`` -1) ``[B, H, P, C, N]``."""
        channels = -3 - dim  # the other one of the last two dimensions
        lanes = unpack_planes(tensors["codes"], 2, dim) if self.two_bit_planes else None
        parts, start = [], 0
        for plane, n in self.two_bit_planes:
            plane_codes = lanes.narrow(channels, start, n)
            start += n
            if plane:
                parts[0].narrow(channels, 0, n).add_(plane_codes, alpha=4**plane)
            else:
                parts.append(plane_codes.float())
        if self.one_bit:
            lanes = unpack_planes(tensors["codes_1bit"], 1, dim)
            parts.append(lanes.narrow(channels, 0, len(self.one_bit)).float())
        return torch.cat(parts, channels)


def merge_slots(old: torch.Tensor, new: torch.Tensor, slots: torch.Tensor, dim: int, bits: int | None) -> torch.Tensor:
    """A page tensor with some slots of another.

    Args:
        old, new: bytes of codes ``[..., N * bits / 8, J]`` (``dim`` -2) or ``[..., J, N * bits / 8]`` (-1), packed
            along tokens; without ``bits`` a number a token, ``[..., N]``.
        slots: bool ``[N]``, those to take from ``new``.
        dim: the token dimension of codes.
        bits: of a code.
    """
    if bits is None:
        return torch.where(slots, new, old)
    mask = pack_planes(slots.to(torch.uint8) * (2**bits - 1), bits, -1)
    mask = mask[:, None] if dim == -2 else mask
    return old & ~mask | new & mask


def check_bits(bits: torch.Tensor) -> None:
    """Raise :class:`KVMMError` unless bits ``[B, H, 1, D]`` of a file are one layout for all heads."""
    if not bits.numel() or bool((bits != bits[:1, :1]).any()) or bool((bits.int().diff(dim=-1) > 0).any()):
        raise KVMMError("bits: must be the same for all heads and fall from channel to channel")


@lru_cache(maxsize=256)
def layout_of(bits: tuple[int, ...]) -> PlaneLayout:
    """The layout of channels with these bits, one for all that ask."""
    return PlaneLayout(torch.tensor(bits))
