"""What a cache knows of the call of the model that runs, or that comes next.

The life of a call: :meth:`KVMMCache.set_modality` may give a map of its tokens; the model's pre-hook announces the
inputs, which become a map at once, or, where the call is most likely replayed and needs none, only if it is not; the
first layer takes the map and finds out whether the call decodes. Everything else that lasts from call to call is in the
token table and in the layers. One :class:`StepState` a cache, which its layers read; none of it is stored or copied but
what the next call is to be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class StepState:
    """The state of one call.

    Attributes:
        given_modality: the map of the next call that the caller set himself, integer ``[B, q]``, unchecked.
        modality: the map int8 ``[B, q]`` of the call that was announced, until its first layer takes it.
        deferred_inputs: the inputs of the call, where ``modality`` is made from them only if it is needed.
        cropped: tokens were cropped since the last ones came: new ones decode (assisted decoding) and are no part of a
            prompt that goes on.
        decoding: the call is a decode step, of one token or with a draft.
        replaying: a captured step runs, or is captured: the host has done its part before.
        reads_decoded: packed layers give decoded keys and values to the model's own attention.
    """

    given_modality: torch.Tensor | None = None
    modality: torch.Tensor | None = None
    deferred_inputs: dict[str, Any] | None = None
    cropped: bool = False
    decoding: bool = False
    replaying: bool = False
    reads_decoded: bool = False

    def clear(self) -> None:
        """Forget what the next call was to be told, as all tokens are forgotten."""
        self.forget_inputs()
        self.given_modality = None
        self.cropped = False

    def defer(self, inputs: dict[str, Any]) -> None:
        """Note a call's inputs, of which a map is made only if the call needs one."""
        self.deferred_inputs, self.modality = inputs, None

    def forget_inputs(self) -> None:
        """The call that was announced needs no map."""
        self.deferred_inputs = self.modality = None

    def take_given_modality(self) -> torch.Tensor | None:
        """The map that the caller set, for one call."""
        given, self.given_modality = self.given_modality, None
        return given

    def take_modality(self, label: Callable[[dict[str, Any]], torch.Tensor]) -> torch.Tensor | None:
        """The map int8 ``[B, q]`` of the call, for its first layer; ``label`` makes it of deferred inputs.

        None if nobody announced the call.
        """
        if self.deferred_inputs is not None:
            inputs, self.deferred_inputs = self.deferred_inputs, None
            self.modality = label(inputs)
        modality, self.modality = self.modality, None
        return modality

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Inside, layers do the device's part of a step only."""
        self.replaying = True
        try:
            yield
        finally:
            self.replaying = False

    @contextmanager
    def read_decoded(self) -> Iterator[None]:
        """Inside, :attr:`reads_decoded`."""
        before, self.reads_decoded = self.reads_decoded, True
        try:
            yield
        finally:
            self.reads_decoded = before

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle holds: not what the call or the block that runs now does with the cache."""
        return vars(self) | {"replaying": False, "reads_decoded": False}


__all__ = ["StepState"]
