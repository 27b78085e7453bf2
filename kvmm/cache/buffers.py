"""Where a layer keeps its residual tokens: the sinks, the newest ones, and a turn that waits to be packed.

Two kinds of buffer stand behind one interface, :class:`ResidualBuffer`, as transformers' ``DynamicLayer`` and
``StaticLayer`` do. A layer asks its buffer and never which kind it is.

- :class:`DynamicBuffer` grows, so its tensors move, and counts its tokens itself. Every layer begins with one: a prompt
  is stored without slack.
- :class:`StaticBuffer` stays in place: a captured step (a CUDA graph) reads fixed addresses and no number of the
  host's. It has capacity for tokens to come. The host reads its length from the token table, which counts for all
  layers; a step of one token reads it on the device. What does not fit (a long turn) lies in tensors of its own until
  packing brings the buffer back in place.

When a prompt is packed and the cache wants static buffers, :meth:`ResidualBuffer.allocate` turns the first kind into
the second. The capacities, and the lengths on every device, are those of
:mod:`kvmm.cache.capacity`, one for the whole cache.

A step of one token into a buffer in place launches nothing by itself: its keys and values wait for the query, because
appending and attending are captured together. Attention takes them with :meth:`ResidualBuffer.take_pending`; who reads
or moves the tokens in any other way calls :meth:`ResidualBuffer.flush` first.

What a captured graph relies on, and no change may break: while :attr:`ResidualBuffer.in_place` holds, ``key`` and
``value`` are the same tensor objects (graphs compare identities as well as addresses), a step of one token is appended
by :func:`kvmm.kernels.append.append_tokens` at the device's position, and :meth:`ResidualBuffer.keep` writes keys
before values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from kvmm.cache.capacity import CountingTable
from kvmm.cache.tokens import growth, with_capacity
from kvmm.kernels.append import append_tokens, with_rows
from kvmm.kernels.exact import to_exact

Pair = tuple[torch.Tensor, torch.Tensor]


class ResidualBuffer(ABC):
    """Keys and values of one layer's residual tokens.

    Attributes:
        key, value: ``[B, H, capacity, D]``, of which the first :attr:`length` tokens are in use.
        length: tokens in use.
        seen: tokens that the layer has got in all, padding and packed ones included.
        in_place: whether a step of one token may be captured: it writes and reads the whole buffers, at places that the
            device knows.
    """

    key: torch.Tensor
    value: torch.Tensor
    length: int
    seen: int
    in_place: bool

    @property
    def pair(self) -> Pair:
        """Keys and values ``[B, H, length, D]``, views."""
        return self.key[:, :, : self.length], self.value[:, :, : self.length]

    @abstractmethod
    def append(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Add keys and values ``[B, H, q, D]`` in any float dtype behind those in use, at once or when flushed."""

    @abstractmethod
    def flush(self) -> None:
        """Write a token that waits for its query, which did not come."""

    @property
    def is_pending(self) -> bool:
        """Whether a token waits for its query."""
        return False

    @abstractmethod
    def take_pending(self) -> Pair | None:
        """The token ``[B, H, 1, D]`` that waits for its query, for a step that writes it itself."""

    @abstractmethod
    def keep(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Hold ``[B, H, n, D]`` instead of what was held, in the dtype of these tensors where that is still open."""

    @abstractmethod
    def crop(self, length: int, seen: int) -> None:
        """Keep the first ``length`` tokens, of ``seen`` that the layer then has got in all."""

    @abstractmethod
    def index_batch(self, index: torch.Tensor) -> None:
        """Keep, repeat or reorder sequences: ``index`` is int64 ``[B_new]``."""

    @abstractmethod
    def allocate(self, table: CountingTable, capacity: int) -> StaticBuffer:
        """A buffer with the same tokens that stays in place; this one, if it is already one of ``capacity`` tokens."""

    @abstractmethod
    def fork(self, table: CountingTable) -> ResidualBuffer:
        """A copy for the layer of another cache, whose table is ``table``."""

    @abstractmethod
    def to(self, device: torch.device | str) -> None:
        """Move the tokens to a device."""

    def tensors(self) -> list[torch.Tensor]:
        """All tensors, for counting bytes: those in use, and those that only have capacity."""
        return [self.key, self.value]


class DynamicBuffer(ResidualBuffer):
    """A buffer that grows by an eighth, 8 to 128 tokens (:func:`kvmm.cache.tokens.growth`), so that its tensors move.

    Args:
        key, value: ``[B, H, n, D]`` that it begins with, all in use.
        seen: as :attr:`ResidualBuffer.seen`.
    """

    in_place = False

    def __init__(self, key: torch.Tensor, value: torch.Tensor, seen: int = 0):
        self.key, self.value = key, value
        self.length, self.seen = key.shape[2], seen

    @classmethod
    def empty(cls, key: torch.Tensor, value: torch.Tensor) -> DynamicBuffer:
        """An empty buffer for tokens of the shape, dtype and device of ``[B, H, n, D]``."""
        return cls(*(x.new_empty(*x.shape[:2], 0, x.shape[3]) for x in (key, value)))

    def append(self, key: torch.Tensor, value: torch.Tensor) -> None:
        end = self.length + key.shape[2]
        if end > self.key.shape[2]:
            # a prompt is stored without slack, a decode step leaves space for the next ones
            slack = 0 if self.length == 0 else growth(end)
            self.key = with_capacity(self.key, self.length, end + slack)
            self.value = with_capacity(self.value, self.length, end + slack)
        self.key[:, :, self.length : end] = to_exact(key, self.key.dtype)
        self.value[:, :, self.length : end] = to_exact(value, self.value.dtype)
        self.length = end
        self.seen += key.shape[2]

    def flush(self) -> None:
        """Nothing waits: every token is written at once."""

    def take_pending(self) -> None:
        return None

    def keep(self, key: torch.Tensor, value: torch.Tensor) -> None:
        self.key, self.value = key, value
        self.length = key.shape[2]

    def crop(self, length: int, seen: int) -> None:
        self.length, self.seen = length, seen

    def index_batch(self, index: torch.Tensor) -> None:
        self.key, self.value = self.key.index_select(0, index), self.value.index_select(0, index)

    def allocate(self, table: CountingTable, capacity: int) -> StaticBuffer:
        return StaticBuffer(table, *self.pair, capacity)

    def fork(self, table: CountingTable) -> DynamicBuffer:
        twin = DynamicBuffer(self.key.clone(), self.value.clone(), self.seen)
        twin.length = self.length
        return twin

    def to(self, device: torch.device | str) -> None:
        self.key, self.value = self.key.to(device), self.value.to(device)


class StaticBuffer(ResidualBuffer):
    """A buffer of fixed capacity, whose tensors stay where they are.

    Args:
        table: of the cache; it counts the tokens of all layers, before they are appended.
        key, value: ``[B, H, n, D]`` that it begins with, copied.
        capacity: tokens that there is space for, at least ``n``.
    """

    def __init__(self, table: CountingTable, key: torch.Tensor, value: torch.Tensor, capacity: int):
        self._table = table
        self._static: Pair = tuple(with_rows([(x, capacity, 0) for x in (key, value)]))
        self._overflow: Pair | None = None  # what holds the tokens while they are more than fit
        self._pending: Pair | None = None  # the newest token, until its query comes

    @property
    def in_place(self) -> bool:
        return self._overflow is None

    @property
    def key(self) -> torch.Tensor:
        return (self._overflow or self._static)[0]

    @property
    def value(self) -> torch.Tensor:
        return (self._overflow or self._static)[1]

    @property
    def length(self) -> int:
        """As the table counts: a captured step runs no Python of this layer."""
        return self._table.dense.shape[1]

    @property
    def seen(self) -> int:
        return self._table.length

    @property
    def capacity(self) -> int:
        """Tokens that there is space for in place."""
        return self._static[0].shape[2]

    def append(self, key: torch.Tensor, value: torch.Tensor) -> None:
        if self.in_place and key.shape[2] == 1:
            self._pending = key, value
        else:
            self._append(key, value)

    def flush(self) -> None:
        if (pending := self.take_pending()) is not None:
            self._append(*pending)

    @property
    def is_pending(self) -> bool:
        return self._pending is not None

    def take_pending(self) -> Pair | None:
        pending, self._pending = self._pending, None
        return pending

    def _append(self, key: torch.Tensor, value: torch.Tensor) -> None:
        count, end = key.shape[2], self.length  # the table has counted the new tokens already
        if self.in_place and count == 1:
            position = self._table.static.lengths_on(self.key.device, self._table).position
            append_tokens(self.key, self.value, key, value, position)
            return
        if end > self.key.shape[2]:  # a long turn leaves the buffer until it is packed
            self._overflow = (
                with_capacity(self.key, end - count, end),
                with_capacity(self.value, end - count, end),
            )
        self.key[:, :, end - count : end] = to_exact(key, self.key.dtype)
        self.value[:, :, end - count : end] = to_exact(value, self.value.dtype)

    def keep(self, key: torch.Tensor, value: torch.Tensor) -> None:
        if key.shape[2] <= self.capacity:
            self._write(key, value)
        else:
            self._overflow = key, value

    def _write(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put tokens at the beginning of the buffer in place, and go on with that."""
        for buffer, tokens in zip(self._static, (key, value), strict=True):
            buffer[:, :, : tokens.shape[2]] = tokens
        self._overflow = None

    def crop(self, length: int, seen: int) -> None:
        """The table counts; a token that waits was read, or is cut off."""
        self._pending = None

    def index_batch(self, index: torch.Tensor) -> None:
        key, value = self.key.index_select(0, index), self.value.index_select(0, index)
        if self.in_place and len(key) == len(self._static[0]):
            self._write(key, value)
        else:
            self._static, self._overflow = (key, value), None

    def allocate(self, table: CountingTable, capacity: int) -> StaticBuffer:
        if capacity == self.capacity:
            return self
        moved = StaticBuffer(table, *self.pair, capacity)
        moved._pending = self._pending
        return moved

    def fork(self, table: CountingTable) -> StaticBuffer:
        twin = type(self).__new__(type(self))
        twin._table = table
        twin._pending = self._pending
        twin._static = tuple(x.clone() for x in self._static)
        twin._overflow = None if self._overflow is None else tuple(x.clone() for x in self._overflow)
        return twin

    def to(self, device: torch.device | str) -> None:
        key, value = self.key.to(device), self.value.to(device)
        if key is not self.key:  # elsewhere the tokens lie in tensors of their own
            self._overflow = key, value

    def tensors(self) -> list[torch.Tensor]:
        return [*self._static, *(self._overflow or ())]


__all__ = ["DynamicBuffer", "ResidualBuffer", "StaticBuffer"]
