"""How large the static buffers of a cache are, and how much of them every device knows to be in use.

A captured step (a CUDA graph) reads fixed addresses and no number of the host's. So text pages and residual tokens
(:mod:`kvmm.cache.buffers`) get capacity for tokens to come when the prompt is packed (:class:`StaticCapacity`), and
what grows lies on the device (:class:`DeviceLengths`): the place of the newest token, the residual tokens and the pages
in use, and what to add to the scores of slots that hold no token. The host knows the same numbers without asking: one
token per step and sequence. Capacity that runs out grows by an eighth, 512 to 2048 tokens, so that moving buffers and
capturing anew takes a small part of the time of these tokens.

The device's numbers are written in two ways only: a step of one token adds one where the graph runs
(:meth:`DeviceLengths.advance`), and everything else has the host write them (:meth:`StaticCapacity.sync`). Both write
in place, because graphs hold the addresses; only a bias of another shape is a new tensor, and graphs see that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from kvmm.cache.plan import sent
from kvmm.cache.tokens import stored_as
from kvmm.cuda_graphs.layer import GraphPool
from kvmm.modality import TEXT
from kvmm.policy import KVPolicy

MASKED = -1e30  # as in the token table
_SLACK = 8  # residual tokens
_STEP, _LARGEST_STEP = 512, 2048  # tokens that the capacity grows by, in between an eighth of what there is


class CountingTable(Protocol):
    """A :class:`kvmm.cache.token_table.TokenTable`, which counts the tokens of all layers."""

    policy: KVPolicy
    length: int
    modality: torch.Tensor | None
    dense: torch.Tensor | None
    stores: dict[int, torch.Tensor]
    page_sizes: dict[int, int]
    num_sinks: int
    static: StaticCapacity | None
    adds_tokens: bool
    filled: int

    def text_page(self) -> tuple[int, int]:
        """The size of a page of text, and how many tokens are packed at a time."""


class PageCursor:
    """Where the next page of text goes, by the device's own count of pages, so that the same captured kernels write
    every page.

    Args:
        num_pages: int32 ``[1]``, text pages in use.
        held: the same number, as the host knows it while kernels are launched.
        filled: int32 ``[1]``, slots in use of the last of them, if it is the page to write; else 0.
        begun: whether it is, as the host knows it.
    """

    def __init__(self, num_pages: torch.Tensor, held: int, filled: torch.Tensor, begun: bool = False):
        self.filled, self.begun = filled, begun
        self._num_pages = num_pages - (filled > 0).int()
        self._held = held - begun
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


@dataclass
class DeviceLengths:
    """How much is in use, as a step reads it on one device.

    Attributes:
        position: int64 ``[1]``, the place of the newest token among the residual ones.
        dense_length: int32 ``[1]``, residual tokens in use.
        num_pages: int32 ``[1]``, text pages in use.
        filled: int32 ``[1]``, slots in use of the last of them, if tokens can be added to it; else 0.
        bias: float32 ``[B, 1, 1, N]`` over all slots that there is capacity for, pages in order of modality, then the
            residual tokens; None while every slot in use holds a token.
    """

    position: torch.Tensor
    dense_length: torch.Tensor
    num_pages: torch.Tensor
    filled: torch.Tensor
    bias: torch.Tensor | None = None

    @cached_property
    def pool(self) -> GraphPool:
        """What the graphs of this cache's layers share."""
        return GraphPool(self.position.device)

    def advance(self) -> None:
        """One token more in every sequence; on the device, so that it can be captured."""
        self.position.add_(1)
        self.dense_length.add_(1)

    def next_page(self, held: int, begun: bool = False) -> PageCursor:
        """Where the page behind ``held`` pages of text goes, or (``begun``) what is added to the last of them, for one
        piece of work to be captured."""
        return PageCursor(self.num_pages, held, self.filled, begun)

    def addresses(self) -> tuple[int, ...]:
        """What identifies where a captured step reads these numbers, but for :attr:`bias`."""
        return self.position.data_ptr(), self.num_pages.data_ptr()


class StaticCapacity:
    """Capacities of a cache's static buffers, and the lengths on every device that holds layers.

    Args:
        max_length: tokens, padding included, that the first buffers have space for; None if nobody knows.

    Attributes:
        capacity: tokens, padding included, that there is space for; more make the buffers grow.
        text_pages: text pages that there is space for.
        page_size: tokens a text page.
        residual_tokens: sinks and residual tokens that there is space for.
        lengths: of every device that holds layers.
    """

    def __init__(self, max_length: int | None = None):
        self._asked = max_length or 0
        self.clear()

    def clear(self) -> None:
        """Forget everything but what was asked for."""
        self.capacity = self._asked
        self.text_pages = 0
        self.page_size = 0
        self.residual_tokens = 0
        self.lengths: dict[torch.device, DeviceLengths] = {}

    @property
    def ready(self) -> bool:
        """Whether buffers are allocated, which happens when the prompt is packed."""
        return self.residual_tokens > 0

    def ask(self, max_length: int) -> bool:
        """Have space for ``max_length`` tokens from the next allocation on; whether that is more than there was."""
        more = max_length > self.capacity
        self._asked, self.capacity = max(self._asked, max_length), max(self.capacity, max_length)
        return more

    def fork(self) -> StaticCapacity:
        """The same capacities for another cache, with lengths of its own."""
        twin = StaticCapacity(self._asked)
        twin.capacity = self.capacity
        twin.text_pages, twin.page_size, twin.residual_tokens = self.text_pages, self.page_size, self.residual_tokens
        return twin

    def allocate(self, table: CountingTable, turn: bool = False) -> None:
        """Decide capacities for what a packed table holds and the tokens that may still come.

        Args:
            table: of the cache.
            turn: its newest tokens are a turn that is packed as a whole: tensors of its own hold it until then.
        """
        if table.length >= self.capacity:
            self.capacity = table.length + max(_STEP, min(table.length // 8, _LARGEST_STEP))
        page, unit = table.text_page()
        held = _slots(table, TEXT) // page
        valid = table.dense >= 0
        modality = stored_as(table.modality.gather(1, table.dense.clamp_min(0).long()), table.policy)
        text = int((valid & (modality == TEXT)).sum(1).max()) if table.dense.numel() else 0
        coming = self.capacity - table.length
        # one page more than can be filled: its last slot is where codecs put what counts for nothing
        pages = held + max(0, -(-(text + coming - table.policy.residual_length) // page)) + 1
        if page != self.page_size or pages > self.text_pages:
            self.page_size, self.text_pages = page, pages
        if turn and self.residual_tokens:
            return
        width = table.dense.shape[1]
        tokens = max(table.num_sinks + table.policy.residual_length + 2 * unit, width + unit)
        tokens = min(tokens, width + coming) + _SLACK
        if not tokens <= self.residual_tokens <= 2 * tokens:
            self.residual_tokens = tokens

    def slots(self, table: CountingTable) -> list[tuple[torch.Tensor | None, int]]:
        """Positions int32 ``[B, n]`` in use (None: nothing) and slots there are, of every store and of the residual."""
        found = []
        for modality in sorted({TEXT, *table.stores}):
            used = table.stores.get(modality)
            size = self.text_pages * self.page_size if modality == TEXT else used.shape[1]
            found.append((used, size))
        return [*found, (table.dense, self.residual_tokens)]

    def lengths_on(self, device: torch.device, table: CountingTable) -> DeviceLengths:
        """The lengths of a device, made on first use."""
        if device not in self.lengths:
            with torch.inference_mode(False):
                number = torch.zeros(1, dtype=torch.int32, device=device)
                self.lengths[device] = DeviceLengths(number.long(), number, number.clone(), number.clone())
            self._write(self.lengths[device], table, self._bias(table))
        return self.lengths[device]

    def advance(self) -> None:
        """:meth:`DeviceLengths.advance` on every device."""
        for lengths in self.lengths.values():
            lengths.advance()

    def sync(self, table: CountingTable) -> None:
        """Write the host's numbers to all devices, after anything but a step of one token."""
        bias = self._bias(table) if self.lengths else None
        for lengths in self.lengths.values():
            self._write(lengths, table, bias)

    def _write(self, lengths: DeviceLengths, table: CountingTable, bias: torch.Tensor | None) -> None:
        width = table.dense.shape[1]
        lengths.position.fill_(width - 1)
        lengths.dense_length.fill_(width)
        lengths.num_pages.fill_(_slots(table, TEXT) // self.page_size)
        lengths.filled.fill_(table.filled)
        if bias is None:
            lengths.bias = None
        elif lengths.bias is not None and lengths.bias.shape == bias.shape:
            lengths.bias.copy_(sent(bias, lengths.bias.device))
        else:
            with torch.inference_mode(False):
                lengths.bias = sent(bias, lengths.position.device).clone()

    def _bias(self, table: CountingTable) -> torch.Tensor | None:
        """float32 ``[B, 1, 1, N]`` on the CPU, or None if every slot in use holds a token."""
        layout = self.slots(table)
        # tokens that are added to a page change it, and what a captured step reads must stay
        if not table.adds_tokens and all(used is None or bool((used >= 0).all()) for used, _ in layout):
            return None
        bias = torch.zeros(table.dense.shape[0], sum(size for _, size in layout))
        start = 0
        for used, size in layout:
            if used is not None:
                bias[:, start : start + used.shape[1]].masked_fill_(used < 0, MASKED)
            start += size
        return bias[:, None, None]

    def nbytes(self) -> int:
        """Bytes of the lengths on all devices."""
        lengths = self.lengths.values()
        tensors = [t for c in lengths for t in vars(c).values() if isinstance(t, torch.Tensor)]
        return sum(t.nbytes for t in tensors)


def _slots(table: CountingTable, modality: int) -> int:
    store = table.stores.get(modality)
    return 0 if store is None else store.shape[1]
