"""The control: pages in the model's own dtype, without loss."""

from __future__ import annotations

import torch

from kvmm.cache.codecs.base import Codec, EncodeContext, Packed
from kvmm.kernels.decode.digits import Dense


class BF16(Codec):
    """Keys or values as they are (bf16, or whatever dtype the model has), in the same pages as every other codec."""

    name = "bf16"
    pages_stand_alone = True
    static_encode = True
    bits = (16,)

    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        page_size = context.page_size
        missing = -x.shape[2] % page_size
        if missing:
            x = torch.cat((x, x[:, :, -1:].expand(-1, -1, missing, -1)), 2)
        else:
            x = x.clone(memory_format=torch.contiguous_format)  # of a view of a layer's columns nothing may be kept
        return Packed({"values": x.unflatten(2, (-1, page_size))}, page_size)

    def decode(self, packed: Packed) -> torch.Tensor:
        return packed["values"].flatten(2, 3).float()

    def digits(self, packed: Packed) -> Dense:
        return Dense(packed["values"], packed.page_size)

    def scores(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        return query @ self.decode(packed).transpose(-1, -2)

    def mix(self, probabilities: torch.Tensor, packed: Packed) -> torch.Tensor:
        return probabilities @ self.decode(packed)
