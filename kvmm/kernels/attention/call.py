"""One call of decode attention: new queries, the residual tokens they also see, and the packed segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kvmm.kernels.attention.format import DenseFormat, PackedFormat


class Reader(Protocol):
    """The keys or the values of a segment.

    Attributes:
        codec: what made them; see :mod:`kvmm.codecs.base` for what it answers.
        packed: what is stored, with ``slots``, the tokens that it has room for, and ``num_pages``.
        observes: whether ``observe(query, probabilities, start, end)`` is told what attention the keys get.
        observes_all: whether it wants to see the probabilities of all slots besides, and not only its own.
    """

    codec: Any
    packed: Any
    observes: bool
    observes_all: bool


class KVSegment(Protocol):
    """Some slots of a layer: keys and values, each of one codec."""

    key: Reader
    value: Reader


def format_of(side: Reader) -> PackedFormat | DenseFormat | None:
    """How kernels read keys or values in place; None: only their codec can read them."""
    return side.codec.packed_format(side.packed)


@dataclass(frozen=True)
class AttentionCall:
    """What all backends are asked.

    Attributes:
        query: ``[B, H_q, q, D]``.
        dense_key, dense_value: ``[B, H_kv, n, D]`` in any dtype, the residual tokens (sinks and the newest), the new
            tokens last.
        bias: float32 ``[B, 1, q or 1, N]`` added to the scores of all ``N`` slots, of the call's segments and then of
            the residual tokens, or None.
        scaling: the softmax scale.
        dense_length: int32 ``[1]`` on the device, how many of the ``n`` residual tokens are in use, or None if all are.
    """

    query: torch.Tensor
    dense_key: torch.Tensor
    dense_value: torch.Tensor
    bias: torch.Tensor | None
    scaling: float
    dense_length: torch.Tensor | None = None

    @property
    def heads(self) -> int:
        """``H_kv``."""
        return self.dense_key.shape[1]

    @property
    def rows(self) -> int:
        """Rows of queries a KV head."""
        return self.query.shape[1] // self.heads * self.query.shape[2]

    def without_dense(self) -> AttentionCall:
        """The same queries without the residual tokens."""
        none = (x[:, :, :0] for x in (self.dense_key, self.dense_value))
        return AttentionCall(self.query, *none, self.bias, self.scaling)

    def with_bias(self, pieces: Sequence[torch.Tensor]) -> AttentionCall:
        """The same call with the bias of other segments: those of their slots, one behind the other."""
        bias = torch.cat(tuple(pieces), -1)
        return AttentionCall(self.query, self.dense_key, self.dense_value, bias, self.scaling, self.dense_length)
