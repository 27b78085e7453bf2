"""Page stores: the packed tensors of one modality in one layer, append only."""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvmm.cache.page_groups import PageGroups
from kvmm.codecs.base import Codec, EncodeContext, Packed
from kvmm.errors import KVMMError
from kvmm.kernels.append import with_rows
from kvmm.kernels.attention.call import Reader

if TYPE_CHECKING:
    from kvmm.cache.capacity import PageCursor

_SLACK_PAGES = 8


@dataclass(frozen=True)
class Growth:
    """What an append adds to a store.

    Attributes:
        rows: of every tensor.
        pages: of ``page_group``, 0 if the codec stores none.
        shared_group: as in :class:`Packed`, counted from the groups that the store held before.
    """

    rows: dict[str, int]
    pages: int = 0
    shared_group: int | None = None

    @classmethod
    def of(cls, new: Packed) -> Growth:
        """What the tensors of ``encode`` add."""
        pages = 0 if new.page_group is None else len(new.page_group)
        return cls({name: tensor.shape[2] for name, tensor in new.tensors.items()}, pages, new.shared_group)


class _Peers:
    """The stores that share buffers, known weakly: who is gone no longer shares."""

    def __init__(self) -> None:
        self.stores: weakref.WeakSet[PageStore] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a deep copy or a pickle has copied the buffers: nobody shares them


class PageStore(Reader):
    """The pages of one tensor (keys or values), all of one codec.

    The first append keeps the encoder's tensors as they are, so a prompt is stored without slack; later ones write
    behind it into buffers that grow by an eighth, of a few pages at most: copying the codes of all pages once in so
    many pages is a small part of what attention reads of them in the steps between.

    With :meth:`allocate` the buffers have capacity for a number of pages and are written in place, so that their
    addresses hold.

    Forks share buffers. A subclass that writes into ``buffers`` calls :meth:`own` first, and one whose appends do more
    than add behind what is there sets ``truncates`` to False.
    """

    truncates = True  # whether the last appends can be taken back
    dropped = False  # whether some of the pages are gone

    def __init__(self, codec: Codec, page_size: int):
        self.codec = codec
        self.exact_dtype: torch.dtype | None = None  # of what the codec keeps as it is; None: as it comes
        self.page_size = page_size
        self.buffers: dict[str, torch.Tensor] = {}
        self.sizes: dict[str, int] = {}
        self.groups: PageGroups | None = None  # None: no group is longer than a page
        self.num_groups = 0
        self.capacity = 0  # pages that the buffers stay in place for; 0: they grow
        self._shared_group: int | None = None  # of all pages, where it is known
        self._view: Packed | None = None
        self._at_capacity: Packed | None = None
        self._past: list[tuple[dict[str, int], int, int]] = []  # sizes, groups and grouped pages after each append
        self._peers: _Peers | None = None

    @property
    def page_group(self) -> torch.Tensor | None:
        """Integer ``[P]``, the group of each page; None if no group is longer than a page."""
        return None if self.groups is None else self.groups.in_use

    @page_group.setter
    def page_group(self, groups: torch.Tensor | None) -> None:
        self.groups = None if groups is None else PageGroups.of(groups)

    @classmethod
    def for_codec(cls, codec: Codec, page_size: int) -> PageStore:
        """The store of a codec."""
        return cls(codec, page_size)

    def append(
        self,
        x: torch.Tensor,
        valid: torch.Tensor | None = None,
        query_moment: torch.Tensor | None = None,
        keys: torch.Tensor | None = None,
        filled: int = 0,
    ) -> None:
        """Encode ``x`` ``[B, H, T, D]`` into new pages; the rest as in :class:`EncodeContext`.

        ``filled``: slots in use of the last page, whose other slots get the first tokens; 0: none gets any.
        """
        if filled:
            count = min(x.shape[2], self.page_size - filled)
            self._fill(*(None if y is None else y[:, :, :count] for y in (x, keys)), filled)
            if count == x.shape[2]:
                return
            x, keys = (None if y is None else y[:, :, count:] for y in (x, keys))
            valid = None if valid is None else valid[:, count:]
        new = self._encode(x, valid, query_moment, keys)
        self.own()
        for name, tensor in new.tensors.items():
            used = self.sizes.get(name, 0)
            needed = used + tensor.shape[2]
            buffer = self.buffers.get(name)
            if buffer is None:
                self.buffers[name] = tensor
            else:
                if needed > buffer.shape[2]:
                    shape = list(buffer.shape)
                    rows = -(-tensor.shape[2] // -(-x.shape[2] // self.page_size))  # of one page
                    shape[2] = max(needed, used + min(used // 8, _SLACK_PAGES * rows))
                    grown = buffer.new_zeros(shape)
                    grown[:, :, :used] = buffer[:, :, :used]
                    self.buffers[name] = buffer = grown
                    self._at_capacity = None
                buffer[:, :, used:needed] = tensor
        if new.page_group is not None:
            self._append_groups(new.page_group + self.num_groups if self.num_groups else new.page_group)
        self.note(Growth.of(new))

    def _fill(self, x: torch.Tensor, keys: torch.Tensor | None, filled: int) -> None:
        """Encode ``x`` ``[B, H, n, D]`` into the last page, behind the slots in use."""
        self.own()
        _, new, slots = self._spread(x, keys, filled)
        old = {name: self.buffers[name][:, :, self.sizes[name] - 1 : self.sizes[name]] for name in new}
        for name, merged in self.codec.merge_pages(old, new, slots).items():
            old[name].copy_(merged)

    def _spread(
        self, x: torch.Tensor, keys: torch.Tensor | None, filled: int | torch.Tensor
    ) -> tuple[Packed, dict[str, torch.Tensor], torch.Tensor]:
        """Encode ``x`` ``[B, H, n, D]`` as a page that has it behind ``filled`` slots.

        Returns:
            the page, those of its tensors that have rows by page, and bool ``[page_size]``, where ``x`` is.
        """
        place = torch.arange(self.page_size, device=x.device) - filled
        source = place.clamp(0, x.shape[2] - 1)
        page = self._encode(x.index_select(2, source), keys=None if keys is None else keys.index_select(2, source))
        new = {name: y for name, y in page.tensors.items() if name not in self.codec.stored}
        return page, new, (place >= 0) & (place < x.shape[2])

    def _encode(
        self,
        x: torch.Tensor,
        valid: torch.Tensor | None = None,
        query_moment: torch.Tensor | None = None,
        keys: torch.Tensor | None = None,
    ) -> Packed:
        previous = self.packed if self._past else None
        return self.codec.encode(
            x, EncodeContext(self.page_size, valid, query_moment, previous, keys, self.exact_dtype)
        )

    def _append_groups(self, groups: torch.Tensor) -> None:
        before = self.groups
        self.groups = PageGroups(groups, 0) if before is None else before.written(groups)
        if self.groups is not before:
            self._at_capacity = None

    def note(self, growth: Growth) -> None:
        """The host's part of an append, whose tensors have been written."""
        for name, rows in growth.rows.items():
            self.sizes[name] = self.sizes.get(name, 0) + rows
        if growth.pages:
            self.groups = self.groups.counting(self.groups.used + growth.pages)
            shared = None if growth.shared_group is None else growth.shared_group + self.num_groups
            self._shared_group = shared if not self._past or shared == self._shared_group else None
            if self._at_capacity is not None and self._at_capacity.shared_group != self._shared_group:
                self._at_capacity = None  # kernels may have been chosen for pages that share one group
            self.num_groups = self.sizes[self._grouped]
        self._remember()
        self._view = None

    @property
    def _grouped(self) -> str:
        """The tensor that ``page_group`` points into."""
        for name, stored in self.codec.stored.items():
            if stored.rows == "group" and name in self.sizes:
                return name
        raise KVMMError(f"Codec {self.codec.name} groups pages and declares no tensor whose rows are groups (stored).")

    def _remember(self) -> None:
        grouped = 0 if self.groups is None else self.groups.used
        self._past.append((dict(self.sizes), self.num_groups, grouped))

    def truncate(self, appends: int) -> None:
        """Keep only what the first ``appends`` (at least 1) of all appends stored."""
        if appends >= len(self._past):
            return
        del self._past[appends:]
        sizes, self.num_groups, grouped = self._past[-1]
        self.sizes = dict(sizes)
        self._view = None
        if self.capacity:  # which stays
            self.groups = None if self.groups is None else self.groups.counting(grouped)
            return
        self.groups = None if self.groups is None else self.groups.cut(grouped)
        buffers = {name: self.buffers[name][:, :, :size] for name, size in sizes.items()}
        # copying frees the rest, unless another fork holds it
        self.buffers = buffers if self.shared else {name: buffer.clone() for name, buffer in buffers.items()}

    # -- capacity -----------------------------------------------------------------------------------------------------

    def allocate(self, pages: int, held: int, like: torch.Tensor) -> None:
        """Have space for ``pages`` pages in all, of which ``held`` are in use, in buffers that stay in place.

        Args:
            pages: more than ``held``.
            held: what is in the store; 0 if nothing was appended yet.
            like: ``[B, H, n, D]`` of the shape, dtype and device of what will be appended.
        """
        if self.capacity >= pages:
            return
        first, more = self._rows_of_a_page(like)
        if not self._past:
            self._shared_group = first.shared_group  # what the first page will say
        work, stored = [], self.codec.stored
        for name, tensor in first.tensors.items():
            used = self.sizes.setdefault(name, 0)
            rows = more[name] * (pages - held) + (used if held else max(0, tensor.shape[2] - more[name]))
            fill = stored[name].fill if name in stored else 0
            fill = pages * self.page_size - 1 if fill == "last slot" else fill
            work.append((self.buffers[name][:, :, :used] if held else tensor[:, :, :0], rows, fill))
        with torch.inference_mode(False):
            grown = with_rows(work)
            if first.page_group is not None:
                self.groups = (self.groups or PageGroups(first.page_group, 0)).allocated(pages)
        self._replace(dict(zip(first.tensors, grown, strict=True)))
        self.capacity = pages

    def _rows_of_a_page(self, like: torch.Tensor) -> tuple[Packed, dict[str, int]]:
        """What the next page appended stores, and how many rows of each tensor the one after it adds, by trial."""
        dim = like.shape[-1]
        first = self.packed if self._past else self.codec.encode(_trial(self.page_size, like), self._context())
        codec = self.codec
        # stores of one kind grow alike, whichever layer they belong to
        key = type(codec), codec.spec, codec.side, self.page_size, dim, tuple(first.tensors)
        if key not in _rows:
            second = codec.encode(_trial(self.page_size, like), self._context(first)).tensors
            _rows[key] = {name: second[name].shape[2] if name in second else 0 for name in first.tensors}
        return first, _rows[key]

    def _context(self, previous: Packed | None = None) -> EncodeContext:
        return EncodeContext(self.page_size, previous=previous, exact_dtype=self.exact_dtype)

    def at_capacity(self, num_pages: torch.Tensor) -> Packed:
        """What a step that may be captured reads: of a static store all pages that there is capacity for, of which
        ``num_pages`` (int32 ``[1]``, on the device) are in use; for attention only. A store that grows (media, to which
        no step adds) is read as it is.
        """
        if not self.capacity:
            return self.packed
        if self._at_capacity is None or self._at_capacity.num_pages is not num_pages:
            tensors, groups = dict(self.buffers), None if self.groups is None else self.groups.buffer
            self._at_capacity = Packed(tensors, self.page_size, groups, num_pages, self._shared_group)
        return self._at_capacity

    def writes_pages(self, page_size: int, held: int) -> bool:
        """Whether :meth:`write_page` can add a page of so many tokens behind ``held`` pages."""
        plain = type(self) is PageStore and self.codec.static_encode and not self.shared
        return plain and self.page_size == page_size and 0 < held < self.capacity

    def write_page(self, x: torch.Tensor, cursor: PageCursor) -> Growth:
        """The device's part of appending one page within the capacity, to be captured: what it writes does not depend
        on numbers of the host's that change from page to page. :meth:`note` is the host's part.

        Args:
            x: ``[B, H, n, D]``, a token in every slot, or fewer for a page that others are in or may be added to.
            cursor: where the page goes.

        Returns:
            what a page adds, whether or not this one began before.
        """
        if x.shape[2] < self.page_size:
            new, page, slots = self._spread(x, None, cursor.filled)
        else:
            new, page, slots = self._encode(x), {}, None
        growth, begun = Growth.of(new), int(cursor.begun)
        for name, tensor in new.tensors.items():
            if rows := tensor.shape[2]:
                index = cursor.rows(self.sizes[name] - begun * rows, rows)
                if name in page:
                    old = {name: self.buffers[name].index_select(2, index)}
                    tensor = self.codec.merge_pages(old, {name: tensor}, slots)[name]
                self.buffers[name].index_copy_(2, index, tensor)
        if growth.pages:
            groups = new.page_group + cursor.number(self.num_groups, growth.rows.get(self._grouped, 0))
            self.groups.buffer.index_copy_(0, cursor.rows(self.groups.used - begun, 1), groups)
        return growth

    def origins(self, growth: Growth, held: int) -> tuple[int, ...]:
        """Where the first page would begin in every tensor if all ``held`` pages had grown like this: what a captured
        :meth:`write_page` counts from."""
        found = [self.sizes[name] - held * rows for name, rows in growth.rows.items()]
        if growth.pages:
            found += [self.groups.used - held, self.num_groups - held * growth.rows.get(self._grouped, 0)]
        return tuple(found)

    def reserved_nbytes(self) -> dict[str, int]:
        """The part of :meth:`nbytes` that buffers have grown to, or were given, and that holds no page yet."""
        empty = {name: b.nbytes - b[:, :, : self.sizes[name]].nbytes for name, b in self.buffers.items()}
        if self.groups is not None:
            empty["page_table"] = self.groups.buffer.nbytes - self.groups.in_use.nbytes
        return empty

    def addresses(self) -> tuple[int | None, ...]:
        """What a captured step would read: where the buffers lie, how long they are, and what pages share."""
        tensors = [*self.buffers.values()] if self.groups is None else [*self.buffers.values(), self.groups.buffer]
        return (self._shared_group, *(x for t in tensors for x in (t.data_ptr(), t.numel())))

    # -- contents -------------------------------------------------------------------------------------------------

    @property
    def packed(self) -> Packed:
        """Views of what is stored."""
        if self._view is None:
            tensors = {name: buffer[:, :, : self.sizes[name]] for name, buffer in self.buffers.items()}
            self._view = Packed(tensors, self.page_size, self.page_group, shared_group=self._shared_group)
        return self._view

    def decode(self) -> torch.Tensor:
        """float32 ``[B, H, P * page_size, D]``."""
        return self.codec.decode(self.packed)

    def index_batch(self, index: torch.Tensor) -> None:
        """Keep, repeat or reorder sequences: ``index`` is int64 ``[B_new]``."""
        buffers = self.buffers.values()
        # in place, so that a captured step still fits: beams are reordered after every token
        writable = torch.is_inference_mode_enabled() or not any(buffer.is_inference() for buffer in buffers)
        if writable and not self.shared and all(len(index) == len(x) and x.is_contiguous() for x in buffers):
            for buffer in self.buffers.values():
                buffer.copy_(buffer.index_select(0, index))
            return
        self._replace({name: buffer.index_select(0, index) for name, buffer in self.buffers.items()})

    # -- copies -------------------------------------------------------------------------------------------------

    def fork(self) -> PageStore:
        """A store that reads the same buffers; whichever of the two writes first copies them.

        Static buffers are for writing, so they are copied at once.
        """
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(twin, name, value.clone())
            elif isinstance(value, (dict, list, np.ndarray)):
                setattr(twin, name, value.copy())
        twin.groups = None if self.groups is None else self.groups.fork()
        twin._view = twin._at_capacity = None
        if self.capacity:
            twin.buffers, twin._peers = {name: buffer.clone() for name, buffer in self.buffers.items()}, None
            return twin
        if self._peers is None:
            self._peers = twin._peers = _Peers()
            self._peers.stores.add(self)
        self._peers.stores.add(twin)
        return twin

    @property
    def shared(self) -> bool:
        """Whether another fork reads the same buffers."""
        return self._peers is not None and len(self._peers.stores) > 1

    def own(self) -> None:
        """Copy the buffers if another fork reads them; needed before writing into them."""
        if self.shared:
            self._replace({name: buffer[:, :, : self.sizes[name]].clone() for name, buffer in self.buffers.items()})

    def _replace(self, buffers: dict[str, torch.Tensor]) -> None:
        self.buffers = buffers
        if self._peers is not None:
            self._peers.stores.discard(self)
            self._peers = None
        self._view = self._at_capacity = None

    def to(self, device: torch.device | str) -> None:
        """Move everything to ``device``."""
        device = torch.device(device)
        if any(buffer.device != device for buffer in self.buffers.values()):
            self._replace({name: buffer.to(device) for name, buffer in self.buffers.items()})
        self.groups = None if self.groups is None else self.groups.to(device)

    # -- files --------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """What a file has to hold: tensors, and JSON values. A subclass with more state adds to both."""
        tensors = dict(self.packed.tensors)
        if self.page_group is not None:
            tensors["page_group"] = self.page_group
        return tensors, {"num_groups": self.num_groups}

    def restore(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Take what :meth:`state` gave, in an empty store."""
        tensors = dict(tensors)
        self.page_group = tensors.pop("page_group", None)
        self.buffers = tensors
        self.sizes = {name: tensor.shape[2] for name, tensor in tensors.items()}
        self.num_groups = int(values["num_groups"])
        self._shared_group = self.packed.only_group
        self._view = None
        self._remember()

    def nbytes(self) -> dict[str, int]:
        """Bytes of every tensor that exists, by name."""
        sizes = {name: buffer.nbytes for name, buffer in self.buffers.items()}
        if self.groups is not None:
            sizes["page_table"] = self.groups.buffer.nbytes
        return sizes

    def shared_nbytes(self) -> int:
        """Bytes of buffers that another fork reads too."""
        return sum(buffer.nbytes for buffer in self.buffers.values()) if self.shared else 0


_rows: dict[tuple, dict[str, int]] = {}  # of every tensor, that a page behind others adds, by the kind of store


def _trial(page_size: int, like: torch.Tensor) -> torch.Tensor:
    """``[B, H, page_size, D]`` to encode for the shapes that come out, with the shape, dtype and device of ``like``."""
    batch, heads, _, dim = like.shape
    trial = torch.linspace(0.5, 1.5, page_size * dim, device=like.device).to(like.dtype)
    return trial.view(1, 1, page_size, dim).expand(batch, heads, -1, -1)
