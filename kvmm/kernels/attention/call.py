"""One call of decode attention: new queries, the residual tokens they also see, and the packed segments."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kvmm.kernels.angle.format import AngleFormat
from kvmm.kernels.attention.format import DenseFormat, PackedFormat


class Reader:
    """The keys or the values of a segment, as backends read them.

    What is stored in one code is read through its codec, which is what these methods do. A store that is more than that
    (tiers of several codes) reads itself and says so in methods of its own.

    Attributes:
        codec: what made the codes; see :mod:`kvmm.codecs.base`.
        packed: the codes.
        observes: whether ``observe(query, probabilities, start, end)`` is told what attention the keys get.
        observes_all: whether it wants to see the probabilities of all slots besides, and not only its own.
    """

    codec: Any
    packed: Any
    observes: bool = False
    observes_all: bool = False

    @property
    def format(self) -> PackedFormat | DenseFormat | AngleFormat | None:
        """How kernels read the codes in place; None: only :meth:`scores` and :meth:`weighted_values` do."""
        return self.codec.packed_format(self.packed)

    @property
    def slots(self) -> int:
        """Tokens that there is space for."""
        return self.packed.slots

    @property
    def pages_in_use(self) -> torch.Tensor | None:
        """int32 ``[1]`` on the device, how many of the pages count; None if all do."""
        return self.packed.num_pages

    @property
    def transform_id(self) -> Hashable:
        """Readers with equal ids share one :meth:`transform_query`, or one :meth:`restore_output`."""
        return self.codec.transform_id

    def transform_query(self, query: torch.Tensor) -> torch.Tensor:
        """Apply the transform of the stored keys to queries ``[B, H, Q, D]``."""
        return self.codec.transform_query(query)

    def scores(self, query: torch.Tensor) -> torch.Tensor:
        """``q . k``: transformed queries ``[B, H, Q, D]`` to ``[B, H, Q, slots]``. For keys."""
        return self.codec.scores(query, self.packed)

    @property
    def calibrates_logits(self) -> bool:
        """Whether :meth:`calibrate_logits` does anything."""
        return self.codec.calibrates_logits

    def calibrate_logits(self, scores: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Calibrate the scaled scores ``[B, H, Q, slots]`` before the softmax.

        ``bias`` is ``[B, 1, q or 1, slots]``, very negative at slots that hold no token, or None.
        """
        return self.codec.calibrate_logits(scores, bias)

    def weighted_values(self, probabilities: torch.Tensor) -> torch.Tensor:
        """``sum_t p_t v_t``: ``[B, H, Q, slots]`` to transformed ``[B, H, Q, D]``. For values."""
        return self.codec.weighted_values(probabilities, self.packed)

    def restore_output(self, output: torch.Tensor) -> torch.Tensor:
        """Apply the inverse transform to weighted values ``[B, H, Q, D]``."""
        return self.codec.restore_output(output)


@dataclass
class PackedReader(Reader):
    """A reader of codes that lie somewhere else than in a store, or of a store at its capacity."""

    codec: Any
    packed: Any


class KVSegment(Protocol):
    """Some slots of a layer: keys and values."""

    key: Reader
    value: Reader


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of all backends.

    Attributes:
        query: ``[B, H_q, q, D]``.
        residual_key, residual_value: ``[B, H_kv, n, D]`` in any dtype, the residual tokens (sinks and the newest), new
            tokens last.
        bias: float32 ``[B, 1, q or 1, N]`` added to the scores of all ``N`` slots, of the call's segments and then of
            the residual tokens, or None.
        scaling: the softmax scale.
        residual_length: int32 ``[1]`` on the device, how many of the ``n`` residual tokens are in use, or None for all.
    """

    query: torch.Tensor
    residual_key: torch.Tensor
    residual_value: torch.Tensor
    bias: torch.Tensor | None
    scaling: float
    residual_length: torch.Tensor | None = None

    @property
    def num_kv_heads(self) -> int:
        """``H_kv``."""
        return self.residual_key.shape[1]

    @property
    def rows(self) -> int:
        """Query rows per KV head."""
        return self.query.shape[1] // self.num_kv_heads * self.query.shape[2]

    def without_residual(self) -> AttentionCall:
        """The same queries without the residual tokens."""
        none = (x[:, :, :0] for x in (self.residual_key, self.residual_value))
        return AttentionCall(self.query, *none, self.bias, self.scaling)

    def with_bias(self, pieces: Sequence[torch.Tensor]) -> AttentionCall:
        """The same call with the bias of other segments: those of their slots, one behind the other."""
        bias = torch.cat(tuple(pieces), -1)
        return AttentionCall(
            self.query, self.residual_key, self.residual_value, bias, self.scaling, self.residual_length
        )
