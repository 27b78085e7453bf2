"""A cache as its parts know it: what measures it, writes it to a file and lowers its pages."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from kvmm.cache.token_table import TokenTable
from kvmm.calibration import Calibration
from kvmm.cuda_graphs.decode import StepGraph
from kvmm.policy import KVPolicy


class CacheState(Protocol):
    """What :class:`kvmm.KVMMCache` holds.

    Attributes:
        policy, calibration: what it was made with.
        table: which token lies where.
        layers: of the decoder; those of ``packed_layers`` are :class:`kvmm.cache.layer.KVMMLayer`.
        packed_layers: their indices.
        graph: of its decode steps, or None.
        retention: the :class:`kvmm.cache.retention.RetentionController`, or None without a budget.
        metadata: of whoever saved it.
    """

    policy: KVPolicy
    calibration: Calibration | None
    table: TokenTable
    layers: list[Any]
    packed_layers: list[int]
    graph: StepGraph | None
    retention: Any
    metadata: dict[str, Any]

    @property
    def model(self) -> nn.Module | None:
        """The model it was made for, if that still exists."""

    @property
    def is_packed(self) -> bool:
        """Whether the prompt has been packed."""

    def _changed(self, turn: bool = False) -> None:
        """Give static buffers their capacity, and the device the host's numbers."""


__all__ = ["CacheState"]
