"""Page stores: the packed tensors of one modality in one layer, append only."""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvmm.cache.codecs.base import Codec, EncodeContext, Packed


class _Peers:
    """The stores that share buffers, known weakly: who is gone no longer shares."""

    def __init__(self) -> None:
        self.stores: weakref.WeakSet[PageStore] = weakref.WeakSet()

    def __deepcopy__(self, memo: dict) -> None:
        return None  # a deep copy has copied the buffers


class PageStore:
    """The pages of one tensor (keys or values), all of one codec.

    The first append keeps the encoder's tensors as they are, so a prompt is stored without slack; later ones write
    behind it into buffers that grow by an eighth, so appending costs amortised constant time a page.

    Forks share buffers. A subclass that writes into ``buffers`` calls :meth:`own` first, and one whose appends do more
    than add behind what is there sets ``rewinds`` to False.
    """

    rewinds = True  # whether the last appends can be taken back
    observes = False  # whether ``observe`` wants to see queries and probabilities
    dropped = False  # whether some of the pages are gone

    def __init__(self, codec: Codec, page_size: int):
        self.codec = codec
        self.page_size = page_size
        self.buffers: dict[str, torch.Tensor] = {}
        self.sizes: dict[str, int] = {}
        self.page_group: torch.Tensor | None = None
        self.num_groups = 0
        self._view: Packed | None = None
        self._past: list[tuple[dict[str, int], int, int]] = []  # sizes, groups and grouped pages after each append
        self._peers: _Peers | None = None

    @classmethod
    def for_codec(cls, codec: Codec, page_size: int) -> PageStore:
        """The store of a codec: its own class if it has one."""
        return (codec.store_class or cls)(codec, page_size)

    def append(
        self,
        x: torch.Tensor,
        valid: torch.Tensor | None = None,
        query_moment: torch.Tensor | None = None,
        keys: torch.Tensor | None = None,
    ) -> None:
        """Encode ``x`` ``[B, H, T, D]`` into new pages; the rest as in :class:`EncodeContext`."""
        previous = self.packed if self.buffers else None
        new = self.codec.encode(x, EncodeContext(self.page_size, valid, query_moment, previous, keys))
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
                    shape[2] = max(needed, used + used // 8)
                    grown = buffer.new_zeros(shape)
                    grown[:, :, :used] = buffer[:, :, :used]
                    self.buffers[name] = buffer = grown
                buffer[:, :, used:needed] = tensor
            self.sizes[name] = needed
        if new.page_group is not None:
            shifted = new.page_group + self.num_groups
            self.page_group = shifted if self.page_group is None else torch.cat((self.page_group, shifted))
            self.num_groups = max(self.num_groups, int(shifted.max()) + 1)
        self._remember()
        self._view = None

    def _remember(self) -> None:
        grouped = 0 if self.page_group is None else len(self.page_group)
        self._past.append((dict(self.sizes), self.num_groups, grouped))

    def rewind(self, appends: int) -> None:
        """Keep only what the first ``appends`` (at least 1) of all appends stored."""
        if appends >= len(self._past):
            return
        del self._past[appends:]
        sizes, self.num_groups, grouped = self._past[-1]
        self.sizes = dict(sizes)
        if self.page_group is not None:
            self.page_group = self.page_group[:grouped].clone() if grouped else None
        buffers = {name: self.buffers[name][:, :, :size] for name, size in sizes.items()}
        # copying frees the rest, unless another fork holds it
        self.buffers = buffers if self.shared else {name: buffer.clone() for name, buffer in buffers.items()}
        self._view = None

    @property
    def packed(self) -> Packed:
        """Views of what is stored."""
        if self._view is None:
            tensors = {name: buffer[:, :, : self.sizes[name]] for name, buffer in self.buffers.items()}
            self._view = Packed(tensors, self.page_size, self.page_group)
        return self._view

    def decode(self) -> torch.Tensor:
        """float32 ``[B, H, P * page_size, D]``."""
        return self.codec.decode(self.packed)

    def index_batch(self, index: torch.Tensor) -> None:
        """Keep, repeat or reorder sequences: ``index`` is int64 ``[B_new]``."""
        self._replace({name: buffer.index_select(0, index) for name, buffer in self.buffers.items()})

    # -- copies -------------------------------------------------------------------------------------------------

    def fork(self) -> PageStore:
        """A store that reads the same buffers; whichever of the two writes first copies them."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(twin, name, value.clone())
            elif isinstance(value, (dict, list, np.ndarray)):
                setattr(twin, name, value.copy())
        if self._peers is None:
            self._peers = twin._peers = _Peers()
            self._peers.stores.add(self)
        self._peers.stores.add(twin)
        twin._view = None
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
        self._view = None

    def to(self, device: torch.device | str) -> None:
        """Move everything to ``device``."""
        device = torch.device(device)
        if any(buffer.device != device for buffer in self.buffers.values()):
            self._replace({name: buffer.to(device) for name, buffer in self.buffers.items()})
        if self.page_group is not None:
            self.page_group = self.page_group.to(device)

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
        self._remember()

    def nbytes(self) -> dict[str, int]:
        """Bytes of every tensor that exists, by name."""
        sizes = {name: buffer.nbytes for name, buffer in self.buffers.items()}
        if self.page_group is not None:
            sizes["page_table"] = self.page_group.nbytes
        return sizes

    def shared_nbytes(self) -> int:
        """Bytes of buffers that another fork reads too."""
        return sum(buffer.nbytes for buffer in self.buffers.values()) if self.shared else 0


@dataclass
class Part:
    """The key pages and the value pages of one modality."""

    key: PageStore
    value: PageStore

    @property
    def stores(self) -> tuple[PageStore, PageStore]:
        """Both stores."""
        return self.key, self.value

    def fork(self) -> Part:
        """Both stores forked."""
        return Part(self.key.fork(), self.value.fork())
