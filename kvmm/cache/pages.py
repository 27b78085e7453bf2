"""Page stores: the packed tensors of one modality in one layer, append only."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvmm.cache.codecs.base import Codec, EncodeContext, Packed


class PageStore:
    """The pages of one tensor (keys or values), all of one codec.

    The first append keeps the encoder's tensors as they are, so a prompt is stored without slack; later ones write
    behind it into buffers that grow by an eighth, so appending costs amortised constant time a page.
    """

    def __init__(self, codec: Codec, page_size: int):
        self.codec = codec
        self.page_size = page_size
        self.buffers: dict[str, torch.Tensor] = {}
        self.sizes: dict[str, int] = {}
        self.page_group: torch.Tensor | None = None
        self.num_groups = 0
        self._view: Packed | None = None

    @classmethod
    def for_codec(cls, codec: Codec, page_size: int) -> PageStore:
        """The store of a codec: its own class if it has one."""
        return (codec.store_class or cls)(codec, page_size)

    def append(
        self, x: torch.Tensor, valid: torch.Tensor | None = None, query_moment: torch.Tensor | None = None
    ) -> None:
        """Encode ``x`` ``[B, H, T, D]`` into new pages; the rest as in :class:`EncodeContext`."""
        previous = self.packed if self.buffers else None
        new = self.codec.encode(x, EncodeContext(self.page_size, valid, query_moment, previous))
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
            self.num_groups += int(new.page_group[-1]) + 1
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
        self.buffers = {name: buffer.index_select(0, index) for name, buffer in self.buffers.items()}
        self._view = None

    def nbytes(self) -> dict[str, int]:
        """Bytes of every tensor that exists, by name."""
        sizes = {name: buffer.nbytes for name, buffer in self.buffers.items()}
        if self.page_group is not None:
            sizes["page_table"] = self.page_group.nbytes
        return sizes


@dataclass
class Part:
    """The key pages and the value pages of one modality."""

    key: PageStore
    value: PageStore
