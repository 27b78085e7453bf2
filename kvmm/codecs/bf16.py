"""The control: pages of tokens as they are, in 16 bits."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kvmm.codecs.base import Codec, EncodeContext, Packed, StoreShape
from kvmm.fields import Field
from kvmm.kernels.attention.format import DenseFormat
from kvmm.kernels.exact import to_exact


class BF16(Codec):
    """Keys or values as they are, in ``KVPolicy.exact_dtype``, in the same pages as every other codec."""

    name = "bf16"
    pages_stand_alone = True
    static_encode = True
    opens_pages = True
    bits = (16,)

    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        page_size = context.page_size
        missing, given = -x.shape[2] % page_size, x
        x = to_exact(x, context.exact_dtype)
        if missing:
            x = torch.cat((x, x[:, :, -1:].expand(-1, -1, missing, -1)), 2)
        elif x is given:
            x = x.clone(memory_format=torch.contiguous_format)  # of a view of a layer's columns nothing may be kept
        return Packed({"values": x.unflatten(2, (-1, page_size))}, page_size)

    def merge_pages(
        self, old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor], slots: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return {"values": torch.where(slots[:, None], new["values"], old["values"])}

    def fields(self, store: StoreShape, tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
        shape = (store.batch, store.heads, store.pages, store.page_size, store.dim)
        return {"values": Field(store.exact_dtype, shape)}

    def decode(self, packed: Packed) -> torch.Tensor:
        return packed["values"].flatten(2, 3).float()

    def packed_format(self, packed: Packed) -> DenseFormat:
        return DenseFormat(packed["values"], packed.page_size)

    def scores(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        return query @ self.decode(packed).transpose(-1, -2)

    def weighted_values(self, probabilities: torch.Tensor, packed: Packed) -> torch.Tensor:
        return probabilities @ self.decode(packed)
