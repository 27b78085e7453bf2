"""What the bytes of a slot mean: a token's keys and values of one layer, coded by levels that never change.

A slot of one head has, after each other: the key's codes, its norm, the value's codes and its norm; the value begins at
a multiple of 4 bytes where there is room. Codes are bits, lowest first and the channels one after the other, without
the highest bit of odd widths; these bits follow, so that all others lie in pairs. Then comes a bit that says that the
vector was coded about zero and not about the mean; all in whole bytes. Norms are float16 and are there only where a
side has them. The slots of a block lie ``stride`` bytes apart. The first token of a block is also kept exact: its key
and value lie behind the slots.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import torch

EPSILON = 1e-6  # of norms


@dataclass(frozen=True, eq=False)
class SlotSide:
    """How the keys or the values of a layer are coded: ``H`` heads of ``D`` channels, of which the first ``C`` have
    codes in the basis of the transform.

    Attributes:
        forward, inverse: float32 ``[H, D, D]``, of vectors to channels and back: ``channels = forward @ vector``.
        offset: float32 ``[H, D]``, the mean in the basis of the codes.
        zero_point: float32 ``[H, D]``, what code 0 stands for, and what channels without codes are; about the mean.
        steps: float32 ``[H, C]``, between codes.
        widths: int64 ``[C]``, bits of the codes, 1 to 8.
        norm: whether vectors are divided by their norm, which is stored.
    """

    forward: torch.Tensor
    offset: torch.Tensor
    zero_point: torch.Tensor
    steps: torch.Tensor
    widths: torch.Tensor
    inverse: torch.Tensor
    norm: bool

    @property
    def heads(self) -> int:
        """``H``."""
        return self.forward.shape[0]

    @property
    def dim(self) -> int:
        """``D``."""
        return self.forward.shape[-1]

    @property
    def coded(self) -> int:
        """``C``."""
        return self.widths.numel()

    @cached_property
    def code_bytes(self) -> int:
        """Of a slot's codes."""
        return -(-(int(self.widths.sum()) + 1) // 8)

    @property
    def nbytes(self) -> int:
        """Of a slot."""
        return self.code_bytes + 2 * self.norm

    @cached_property
    def paired(self) -> int:
        """Bits that lie in pairs of one code, before the others."""
        return int((self.widths // 2 * 2).sum())

    @cached_property
    def channel(self) -> torch.Tensor:
        """Whose code each bit of a slot belongs to, int64 ``[sum(widths)]``."""
        channels = torch.arange(self.coded, device=self.widths.device)
        return torch.cat((channels.repeat_interleave(self.widths // 2 * 2), channels[self.widths % 2 == 1]))

    @cached_property
    def place(self) -> torch.Tensor:
        """The number of each bit in its code, int64 ``[sum(widths)]``."""
        pairs = self.widths // 2 * 2
        bits = torch.arange(self.paired, device=self.widths.device)
        paired = bits - (pairs.cumsum(0) - pairs)[self.channel[: self.paired]]
        return torch.cat((paired, self.widths[self.widths % 2 == 1] - 1))

    @cached_property
    def values(self) -> torch.Tensor:
        """What each bit of a slot adds to the channels, float32 ``[H, 8 * code_bytes, D]``."""
        bits, device = len(self.channel), self.widths.device
        weights = torch.zeros(8 * self.code_bytes, self.coded, device=device)
        weights[torch.arange(bits, device=device), self.channel] = 2.0 ** self.place.float()
        values = torch.nn.functional.pad(weights * self.steps[:, None], (0, self.dim - self.coded))
        values[:, bits] = -self.offset
        return values

    @cached_property
    def byte_bits(self) -> torch.Tensor:
        """The bits of every byte, lowest first, float32 ``[256, 8]``."""
        device = self.widths.device
        return (torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device) & 1).float()

    def to(self, device: torch.device) -> SlotSide:
        """The same on another device."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return SlotSide(**{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in given.items()})


@dataclass(frozen=True, eq=False)
class SlotFormat:
    """The slots of a layer.

    Attributes:
        key, value: how each is coded.
        block_size: tokens of a block.
        dtype: of keys and values, and so of the exact tokens.
    """

    key: SlotSide
    value: SlotSide
    block_size: int
    dtype: torch.dtype

    @property
    def code_bytes(self) -> int:
        """Of a slot's key and value, norms included."""
        return self.key.nbytes + self.value.nbytes

    @property
    def exact_bytes(self) -> int:
        """Of a block's exact token."""
        return 2 * self.key.dim * self.dtype.itemsize

    @property
    def _exact_share(self) -> int:
        return -(-self.exact_bytes // self.block_size)

    @property
    def nbytes(self) -> int:
        """Of one head's slot and its share of the exact token, a multiple of 4."""
        return -(-(-(-self.code_bytes // 2) * 2 + self._exact_share) // 4) * 4

    @property
    def stride(self) -> int:
        """Bytes from a slot to the next: a multiple of 4 where there is room for that, else of 2."""
        room = self.nbytes - self._exact_share
        return room // 4 * 4 if room // 4 * 4 >= self.code_bytes else room // 2 * 2

    @property
    def starts(self) -> tuple[int, int]:
        """Bytes of a slot where key and value begin."""
        for unit in (4, 2):
            start = -(-self.key.nbytes // unit) * unit
            if start + self.value.nbytes <= self.stride:
                return 0, start
        return 0, self.key.nbytes

    def slots(self, cache: torch.Tensor) -> torch.Tensor:
        """The slots uint8 ``[blocks, H, block_size, stride]`` of a cache uint8 ``[blocks, H, block_size, nbytes]``, in
        which the bytes of a block's head lie one after the other."""
        flat = cache.view(*cache.shape[:2], -1)
        return flat[..., : self.block_size * self.stride].unflatten(-1, (self.block_size, self.stride))

    def exact(self, cache: torch.Tensor) -> torch.Tensor:
        """The bytes of the exact tokens, uint8 ``[blocks, H, exact_bytes]``: a key and a value of each block."""
        start = self.block_size * self.stride
        return cache.view(*cache.shape[:2], -1)[..., start : start + self.exact_bytes]


__all__ = ["EPSILON", "SlotFormat", "SlotSide"]
