"""The room of a cache with static buffers: how many tokens they have space for, and how much of that is in use.

A captured step (a CUDA graph) reads fixed addresses and no number of the host's. So text pages and full-precision
columns are allocated with space for tokens to come when the prompt is packed, and what grows lives on the device: the
column of the newest token, the columns and the pages in use, and what to add to the scores of slots that hold no token.
The host knows the same numbers without asking: one token per step and sequence. Space that runs out is extended by an
eighth, 512 to 2048 tokens, so that moving buffers and capturing anew takes a small part of the time of these tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from kvmm.cuda_graphs.layer import GraphPool
from kvmm.modality import TEXT
from kvmm.policy import KVPolicy

MASKED = -1e30  # as in the token table
_SLACK = 8  # columns
_STEP, _LARGEST_STEP = 512, 2048  # tokens that the capacity grows by, in between an eighth of what there is


class Slots(Protocol):
    """What capacities follow from: a :class:`kvmm.cache.table.TokenTable`."""

    policy: KVPolicy
    length: int
    modality: torch.Tensor | None
    dense: torch.Tensor | None
    stores: dict[int, torch.Tensor]
    page_sizes: dict[int, int]
    num_sinks: int


@dataclass
class Counters:
    """What a step reads on one device.

    Attributes:
        position: int64 ``[1]``, the column of the newest token.
        dense_length: int32 ``[1]``, full-precision columns in use.
        num_pages: int32 ``[1]``, text pages in use.
        bias: float32 ``[B, 1, 1, N]`` over all slots there is room for, pages in order of modality, then the columns;
            None while every slot in use holds a token.
    """

    position: torch.Tensor
    dense_length: torch.Tensor
    num_pages: torch.Tensor
    bias: torch.Tensor | None = None

    @cached_property
    def pool(self) -> GraphPool:
        """What the graphs of this cache's layers share."""
        return GraphPool(self.position.device)

    def advance(self) -> None:
        """One token more in every sequence; on the device, so that it can be captured."""
        self.position.add_(1)
        self.dense_length.add_(1)


class Room:
    """Capacities of a cache's buffers and the counters of every device that holds layers.

    Args:
        max_length: tokens, padding included, that the first buffers have space for; None if nobody knows.

    Attributes:
        capacity: tokens, padding included, that there is space for; more make the buffers grow.
        text_pages: text pages there is room for.
        page_size: tokens a text page.
        dense_columns: full-precision columns there is room for.
    """

    def __init__(self, max_length: int | None = None):
        self._asked = max_length or 0
        self.clear()

    def clear(self) -> None:
        """Forget everything but what was asked for."""
        self.capacity = self._asked
        self.text_pages = 0
        self.page_size = 0
        self.dense_columns = 0
        self._counters: dict[torch.device, Counters] = {}

    @property
    def ready(self) -> bool:
        """Whether buffers are laid out, which happens when the prompt is packed."""
        return self.dense_columns > 0

    def ask(self, max_length: int) -> bool:
        """Have space for ``max_length`` tokens from the next layout on; whether that is more than there was."""
        more = max_length > self.capacity
        self._asked, self.capacity = max(self._asked, max_length), max(self.capacity, max_length)
        return more

    def fork(self) -> Room:
        """The same room for another cache, with counters of its own."""
        twin = Room(self._asked)
        twin.capacity = self.capacity
        twin.text_pages, twin.page_size, twin.dense_columns = self.text_pages, self.page_size, self.dense_columns
        return twin

    def lay_out(self, table: Slots, turn: bool = False) -> None:
        """Decide capacities for what a packed table holds and the tokens that may still come.

        Args:
            table: of the cache.
            turn: its newest tokens are a turn that is packed as a whole: columns of its own hold it until then.
        """
        if table.length >= self.capacity:
            self.capacity = table.length + max(_STEP, min(table.length // 8, _LARGEST_STEP))
        page = table.page_sizes.get(TEXT) or 32  # what text that comes token by token begins with
        held = _slots(table, TEXT) // page
        valid = table.dense >= 0
        modality = table.modality.gather(1, table.dense.clamp_min(0).long())
        text = int((valid & (modality == TEXT)).sum(1).max()) if table.dense.numel() else 0
        coming = self.capacity - table.length
        # one page more than can be filled: its last slot is where codecs put what counts for nothing
        pages = held + max(0, -(-(text + coming - table.policy.residual_length) // page)) + 1
        if page != self.page_size or pages > self.text_pages:
            self.page_size, self.text_pages = page, pages
        if turn and self.dense_columns:
            return
        width = table.dense.shape[1]
        columns = max(table.num_sinks + table.policy.residual_length + 2 * page, width + page)
        columns = min(columns, width + coming) + _SLACK
        if not columns <= self.dense_columns <= 2 * columns:
            self.dense_columns = columns

    def slots(self, table: Slots) -> list[tuple[torch.Tensor | None, int]]:
        """Positions int32 ``[B, n]`` in use (None: nothing) and slots there are, for each store and the columns."""
        found = []
        for modality in sorted({TEXT, *table.stores}):
            used = table.stores.get(modality)
            size = self.text_pages * self.page_size if modality == TEXT else used.shape[1]
            found.append((used, size))
        return [*found, (table.dense, self.dense_columns)]

    def on(self, device: torch.device, table: Slots) -> Counters:
        """The counters of a device, made on first use."""
        if device not in self._counters:
            with torch.inference_mode(False):
                number = torch.zeros(1, dtype=torch.int32, device=device)
                self._counters[device] = Counters(number.long(), number, number.clone())
            self._write(self._counters[device], table, self._bias(table))
        return self._counters[device]

    def advance(self) -> None:
        """:meth:`Counters.advance` on every device."""
        for counters in self._counters.values():
            counters.advance()

    def sync(self, table: Slots) -> None:
        """Write the host's numbers to all devices, after anything but a step of one token."""
        bias = self._bias(table) if self._counters else None
        for counters in self._counters.values():
            self._write(counters, table, bias)

    def _write(self, counters: Counters, table: Slots, bias: torch.Tensor | None) -> None:
        width = table.dense.shape[1]
        counters.position.fill_(width - 1)
        counters.dense_length.fill_(width)
        counters.num_pages.fill_(_slots(table, TEXT) // self.page_size)
        if bias is None:
            counters.bias = None
        elif counters.bias is not None and counters.bias.shape == bias.shape:
            counters.bias.copy_(bias)
        else:
            with torch.inference_mode(False):
                counters.bias = bias.to(counters.position.device, copy=True)

    def _bias(self, table: Slots) -> torch.Tensor | None:
        """float32 ``[B, 1, 1, N]`` on the CPU, or None if every slot in use holds a token."""
        layout = self.slots(table)
        if all(used is None or bool((used >= 0).all()) for used, _ in layout):
            return None
        bias = torch.zeros(table.dense.shape[0], sum(size for _, size in layout))
        start = 0
        for used, size in layout:
            if used is not None:
                bias[:, start : start + used.shape[1]].masked_fill_(used < 0, MASKED)
            start += size
        return bias[:, None, None]

    def nbytes(self) -> int:
        """Bytes of the counters."""
        counters = self._counters.values()
        tensors = [t for c in counters for t in vars(c).values() if isinstance(t, torch.Tensor)]
        return sum(t.nbytes for t in tensors)


def _slots(table: Slots, modality: int) -> int:
    store = table.stores.get(modality)
    return 0 if store is None else store.shape[1]
