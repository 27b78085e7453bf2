"""A cache as the graphs of its steps know it: the cache owns its graphs, so they do not import it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn


class NextPage(Protocol):
    """Where the next page goes, by the device's own count: a :class:`kvmm.cache.capacity.PageCursor`."""

    filled: torch.Tensor
    begun: bool

    def number(self, used: int, step: int) -> torch.Tensor:
        """int32 ``[1]``: how much is in use of what every page adds ``step`` to."""

    def rows(self, used: int, count: int) -> torch.Tensor:
        """int64 ``[count]``: where the rows go that the page adds to a tensor."""


class CapturedMove(Protocol):
    """Residual tokens that go into pages: a :class:`kvmm.cache.plan.Move`."""

    modality: int
    index: torch.Tensor
    valid: torch.Tensor | None
    page_size: int
    filled: int


class CapturedPlan(Protocol):
    """What one packing does in every layer: a :class:`kvmm.cache.plan.Plan`."""

    moves: Sequence[CapturedMove]
    stay: torch.Tensor
    num_sinks: int

    def to(self, device: torch.device) -> CapturedPlan:
        """The plan with what layers read of it on ``device``."""


class CapturedLayer(Protocol):
    """A :class:`kvmm.cache.layer.KVMMLayer`; ``parts`` have stores by modality."""

    device: torch.device
    is_initialized: bool
    parts: dict[int, Any]

    def addresses(self) -> Any:
        """What identifies where its buffers lie."""

    def writes_pages(self, page_size: int, held: int) -> bool:
        """Whether the next page can be written by the device's own count of pages."""

    def write_page(self, plan: CapturedPlan, cursor: NextPage) -> tuple[Any, Any]:
        """Write the next page; how its stores of keys and values have grown."""


class CapturedCache(Protocol):
    """A :class:`kvmm.KVMMCache`; ``table`` is its :class:`kvmm.cache.token_table.TokenTable`, ``step`` its
    :class:`kvmm.cache.step_state.StepState`, ``graph`` its step graph.
    """

    table: Any
    step: Any
    graph: Any
    layers: list[Any]
    packed_layers: list[int]
    model: nn.Module | None
    batch_size: int

    def begin_replay(self) -> None:
        """Do the host's part of a step of one token, whose captured part follows."""

    def replaying(self) -> AbstractContextManager[None]:
        """Inside, a forward pass does the device's part of a step only."""


__all__ = ["CapturedCache", "CapturedLayer", "CapturedMove", "CapturedPlan", "NextPage"]
