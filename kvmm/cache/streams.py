"""Packing the layers of a prompt on CUDA streams of their own.

Behind a long prompt the host has launched everything while the GPU still reads, and could launch the packing meanwhile.
But a stream takes about a thousand launches and then lets its host wait for each one; those of the prompt fill it, and
packing all layers takes hundreds more. Several streams have room for them, and small kernels of different layers run at
the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import torch

from kvmm.cache.plan import Plan

_STREAMS = 6
_LEAST = 4096  # tokens; of fewer the GPU is not behind the host


class Packs(Protocol):
    """A :class:`kvmm.cache.layer.KVMMLayer`."""

    device: torch.device
    is_initialized: bool
    packed: bool
    offloaded: bool
    dense_key: torch.Tensor | None
    codecs: dict[int, tuple[Any, Any]]

    def apply(self, plan: Plan) -> None:
        """Carry out a plan."""

    def apply_on(self, stream: torch.cuda.Stream, plan: Plan) -> None:
        """Carry out a plan on another stream."""


def apply_plan(layers: Sequence[Packs], plan: Plan) -> None:
    """Carry out ``plan`` in all layers, those of a GPU in turn on several streams if it packs a long prompt.

    The current stream of every GPU waits for them. Once there are pages, which it may have allocated itself, it packs
    what comes. What the streams allocate stays theirs: packed pages cannot take the place of keys and values that were
    freed a layer before.
    """
    long = sum(move.index.numel() for move in plan.moves) >= _LEAST
    used: set[torch.device] = set()
    known = set()  # kinds of layers whose shared tables exist: the first one makes them before streams part
    try:
        for number, layer in enumerate(layers):
            first = long and layer.is_initialized and not layer.packed and not layer.offloaded
            if not first or layer.device.type != "cuda":
                layer.apply(plan)
            elif (kind := _kind(layer)) not in known:
                layer.apply(plan)
                known.add(kind)
            else:
                used.add(layer.device)
                layer.apply_on(_side_streams(layer.device)[number % _STREAMS], plan)
    finally:
        for device in used:
            for stream in _side_streams(device):
                torch.cuda.current_stream(device).wait_stream(stream)


def _kind(layer: Packs) -> tuple[Any, ...]:
    """What the tables of a layer depend on: device, heads, channels, dtype, and the codecs by modality."""
    key = layer.dense_key
    specs = repr([(modality, *(codec.spec for codec in pair)) for modality, pair in layer.codecs.items()])
    return layer.device, key.shape[1], key.shape[-1], key.dtype, specs


@lru_cache(maxsize=16)
def _side_streams(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(_STREAMS))


__all__ = ["Packs", "apply_plan"]
