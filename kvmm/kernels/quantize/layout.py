"""Where the bits of codes lie whose channels have different numbers of them: two-bit digits and one-bit codes.

A channel of ``2 n`` bits has ``n`` digits; one of a single bit has a code in a tensor of its own. With the channels in
the order of falling bits, the digits of one place are those of the first so many channels, so that what is stored is a
few dense runs: ``codes`` uint8, the digits one place behind the other, and ``codes_1bit`` uint8.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache

import torch

from kvmm.errors import KVMMError
from kvmm.kernels.quantize.reference import pack_planes, unpack_planes

DIGIT_BITS = {"codes": 2, "codes_1bit": 1}  # of the stored tensors
_ALIGNMENT = 16  # digits


class Layout:
    """Where the bits of a site's channels lie. Channels come in the order of falling bits.

    Attributes:
        bits: int64 ``[D]``.
        coded: channels with any bits, the first of all.
        digits: ``(place, channels)`` of the two-bit digits: the digit of that place of the first so many channels.
        one_bit: the range of channels of one bit.
    """

    def __init__(self, bits: torch.Tensor):
        if bool((bits[1:] > bits[:-1]).any()):
            raise KVMMError("The channels of a calibration do not fall in variance: make it again.")
        self.bits = bits
        self.coded = int((bits > 0).sum())
        self.digits = [(place, n) for place in range(4) if (n := int((bits >= 2 * place + 2).sum()))]
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
        """PackedFormat a stored tensor has for every token: names of those that exist, and their number."""
        widths = {"codes": sum(n for _, n in self.digits), "codes_1bit": len(self.one_bit)}
        return {name: width for name, width in widths.items() if width}

    def stored_widths(self) -> dict[str, tuple[int, ...]]:
        """By name the widths that a stored tensor may have: with and without the digits that only pad."""
        return {name: (width, -(-width // _ALIGNMENT) * _ALIGNMENT) for name, width in self.widths.items()}

    def planes(self, device: torch.device) -> list[tuple[str, int, torch.Tensor, torch.Tensor]]:
        """For every stored tensor its name, bits a digit, and of each digit the channel (int64) and place (float32)."""
        if device not in self._planes:
            runs = {
                "codes": [(4.0**place, range(n)) for place, n in self.digits],
                "codes_1bit": [(1.0, self.one_bit)],
            }
            self._planes[device] = [
                (
                    name,
                    DIGIT_BITS[name],
                    torch.tensor([channel for _, run in runs[name] for channel in run], device=device),
                    torch.tensor([worth for worth, run in runs[name] for _ in run], device=device),
                )
                for name in self.widths
            ]
        return self._planes[device]

    def room(self, device: torch.device, previous: Mapping[str, torch.Tensor] | None, dim: int) -> dict[str, int]:
        """The widths to store: a multiple of 16 digits on a GPU, whose loads are 16 bytes wide, the last ones zeros; or
        as wide as what the store already holds. ``dim`` as in :meth:`pack`.
        """
        if previous is not None:
            return {name: previous[name].shape[-3 - dim] for name in self.widths}
        step = _ALIGNMENT if device.type == "cuda" else 1
        return {name: -(-width // step) * step for name, width in self.widths.items()}

    def pack(self, codes: torch.Tensor, dim: int, room: Mapping[str, int] | None = None) -> dict[str, torch.Tensor]:
        """Bytes of uint8 codes ``[..., N, C]``, packed along tokens; ``dim`` -2 keeps, -1 swaps the last two.

        ``room`` says how many digits a tensor has room for, the last ones zeros; by default there is none to spare.
        """
        found = {}
        if self.digits:
            found["codes"] = torch.cat([codes[..., :n] >> (2 * place) & 3 for place, n in self.digits], -1)
        if self.one_bit:
            found["codes_1bit"] = codes[..., self.one_bit.start :]
        for name, digits in found.items():
            if room is not None and (spare := room[name] - digits.shape[-1]):
                found[name] = torch.nn.functional.pad(digits, (0, spare))
        if dim == -1:
            found = {name: c.transpose(-1, -2).contiguous() for name, c in found.items()}
        return {name: pack_planes(c, DIGIT_BITS[name], dim) for name, c in found.items()}

    def unpack(self, tensors: Mapping[str, torch.Tensor], dim: int) -> torch.Tensor:
        """float32 codes, keys (``dim`` -2) ``[B, H, P, N, C]``, values (``dim`` -1) ``[B, H, P, C, N]``."""
        channels = -3 - dim  # the other one of the last two dimensions
        digits = unpack_planes(tensors["codes"], 2, dim) if self.digits else None
        parts, start = [], 0
        for place, n in self.digits:
            digit = digits.narrow(channels, start, n)
            start += n
            if place:
                parts[0].narrow(channels, 0, n).add_(digit, alpha=4**place)
            else:
                parts.append(digit.float())
        if self.one_bit:
            digits = unpack_planes(tensors["codes_1bit"], 1, dim)
            parts.append(digits.narrow(channels, 0, len(self.one_bit)).float())
        return torch.cat(parts, channels)


def check_bits(bits: torch.Tensor) -> None:
    """Raise :class:`KVMMError` unless bits ``[B, H, 1, D]`` of a file are one layout for all heads."""
    if not bits.numel() or bool((bits != bits[:1, :1]).any()) or bool((bits.int().diff(dim=-1) > 0).any()):
        raise KVMMError("bits: must be the same for all heads and fall from channel to channel")


@lru_cache(maxsize=256)
def layout_of(bits: tuple[int, ...]) -> Layout:
    """The layout of channels with these bits, one for all that ask."""
    return Layout(torch.tensor(bits))
