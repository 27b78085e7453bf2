"""Packing the layers of a prompt on CUDA streams of their own.

Behind a long prompt the host has launched everything while the GPU still reads, and could launch the packing meanwhile.
But a stream takes about a thousand launches and then lets its host wait for each one, and packing all layers can be
several thousand. Several streams take as many more, and small kernels of different layers run at the same time.
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
    offloaded: bool
    codecs: dict[int, tuple[Any, Any]]

    def apply(self, plan: Plan) -> None:
        """Carry out a plan."""

    def apply_on(self, stream: torch.cuda.Stream, plan: Plan) -> None:
        """Carry out a plan on another stream."""


def apply_plan(layers: Sequence[Packs], plan: Plan) -> None:
    """Carry out ``plan`` in all layers, those of a GPU in turn on several streams if it is long.

    The current stream of every GPU waits for them. What they allocate stays theirs: packed pages cannot take the place
    of keys and values that were freed a layer before.
    """
    long = sum(move.index.numel() for move in plan.moves) >= _LEAST
    streams: dict[torch.device, list[torch.cuda.Stream]] = {}
    known = set()  # kinds of layers whose shared tables exist: the first one makes them before streams part
    try:
        for number, layer in enumerate(layers):
            if not long or not layer.is_initialized or layer.device.type != "cuda" or layer.offloaded:
                layer.apply(plan)
            elif (kind := (layer.device, _specs(layer))) not in known:
                layer.apply(plan)
                known.add(kind)
            else:
                if layer.device not in streams:
                    streams[layer.device] = _behind(layer.device)
                layer.apply_on(streams[layer.device][number % _STREAMS], plan)
    finally:
        for device, side in streams.items():
            for stream in side:
                torch.cuda.current_stream(device).wait_stream(stream)


def _specs(layer: Packs) -> str:
    """The codecs of a layer, by modality."""
    return repr([(modality, *(codec.spec for codec in pair)) for modality, pair in layer.codecs.items()])


def _behind(device: torch.device) -> list[torch.cuda.Stream]:
    """Streams that go on where the current one is."""
    streams = list(_side_streams(device))
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream(device))
    return streams


@lru_cache(maxsize=16)
def _side_streams(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(_STREAMS))


__all__ = ["Packs", "apply_plan"]
