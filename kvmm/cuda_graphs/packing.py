"""Packing text as a CUDA graph, between two replayed steps.

While tokens come one by one, some of the residual ones are packed every so many steps, and always in the same way: the
same tokens of every layer go into the next page, or the next slots of a page, and the others move to the front. The
host launches some thousand small kernels for that; captured, one graph does it for all layers. Where the tokens go the
device knows by itself (:class:`kvmm.cuda_graphs.captured.NextPage`); the host only notes that the stores have grown.

Everything else (a prompt, media, sequences that are not in step, codecs whose ``encode`` looks at what it encodes) is
packed as usual. Without CUDA the same work runs uncaptured.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from kvmm.cuda_graphs.capture import beside, capture, first_line
from kvmm.cuda_graphs.captured import CapturedCache, CapturedLayer, CapturedPlan
from kvmm.modality import TEXT

_BRANCHES = 8  # of the graph, each with a part of the layers: one page's kernels leave most of a GPU idle
_STRIKES = 2  # packings that wait for the device: the first one may fill tables that the others read


class PackingGraph:
    """The captured packing of one cache.

    Attributes:
        reason: why the last packing was not done here, or None.
        captures, replays, eager, plain: graphs captured, packings replayed from one, packings that ran the same work
            uncaptured, packings that ran as usual.
    """

    def __init__(self) -> None:
        self.captures = self.replays = self.eager = self.plain = 0
        self.reason: str | None = None
        self._off: str | None = None  # set when capturing failed: this cache goes on without
        self._strikes = 0
        self.drop()

    def drop(self) -> None:
        """Free the graph; packing begins anew with a warm-up."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = False
        self._plan: CapturedPlan | None = None  # which tokens go where, in the host's memory
        self._static: CapturedPlan | None = None  # the same on the device, read by the graph
        self._growths: list[tuple[Any, Any]] = []  # of the layers' stores with every page
        self._reads: list[Any] = []  # what identifies the addresses that the graph reads and writes
        self.stale = True

    def report(self) -> dict[str, Any]:
        """Counts, and ``reason``, for JSON."""
        return {name: getattr(self, name) for name in ("captures", "replays", "eager", "plain", "reason")}

    @torch.no_grad()
    def run(self, cache: CapturedCache, plan: CapturedPlan) -> bool:
        """Carry out ``plan`` in all layers, if it is a page of text like the ones before.

        Returns:
            whether that was done. If not, the cache is as it was.
        """
        layers = [cache.layers[index] for index in cache.packed_layers]
        self.reason = self._off or self._refusal(cache, plan, layers)
        if self.reason is None:
            device = layers[0].device
            if not self._repeats(plan):
                self.drop()
                with torch.inference_mode(False):
                    self._plan, self._static = plan, plan.to(device)
            if device.type == "cuda":
                with torch.cuda.device(device):
                    self._on_device(cache, layers)
            else:
                self._uncaptured(cache, layers)
        if self.reason is not None:
            self.plain += 1
            return False
        if not plan.moves[0].filled:
            for layer, growths in zip(layers, self._growths, strict=True):
                for store, growth in zip(layer.parts[TEXT].stores, growths, strict=True):
                    store.note(growth)
        return True

    def _repeats(self, plan: CapturedPlan) -> bool:
        """Whether a plan moves the same tokens as the one that the graph was captured with."""
        if self._plan is None:
            return False
        mine, other = self._plan.moves[0], plan.moves[0]
        return torch.equal(mine.index, other.index) and torch.equal(self._plan.stay, plan.stay)

    def _refusal(self, cache: CapturedCache, plan: CapturedPlan, layers: list[CapturedLayer]) -> str | None:
        static = cache.table.static
        if static is None or not static.ready or not cache.table.packed:
            return "the prompt was packed"
        if len(plan.moves) != 1 or plan.moves[0].modality != TEXT or plan.num_sinks != cache.table.num_sinks:
            return "more than text was packed"
        move = plan.moves[0]
        count = move.index.shape[1]
        whole = cache.table.text_page()[1] == count and move.filled + count <= move.page_size
        if not whole or move.valid is not None:
            return "not one full page in every sequence"
        if not all(layer.is_initialized for layer in layers) or len({layer.device for layer in layers}) > 1:
            return "layers on several devices"
        held = _pages(cache)
        if not all(layer.writes_pages(move.page_size, held) for layer in layers):
            return "a codec that looks at what it encodes, or no space"
        return None

    def _write(self, cache: CapturedCache, layers: list[CapturedLayer]) -> list[tuple[Any, Any]]:
        """The device's part, of all layers."""
        lengths = cache.table.static.lengths_on(layers[0].device, cache.table)
        cursor = lengths.next_page(_pages(cache), cache.table.filled > 0)
        return [layer.write_page(self._static, cursor) for layer in layers]

    def _write_apart(self, cache: CapturedCache, layers: list[CapturedLayer]) -> list[tuple[Any, Any]]:
        """:meth:`_write` of a part of the layers on a stream each; what is captured of them runs at the same time."""
        current = torch.cuda.current_stream()
        streams = [current, *_side_streams(layers[0].device)][: len(layers)]
        count, begin, found = len(streams), current.record_event(), [()] * len(layers)
        try:
            for branch, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    stream.wait_event(begin)
                    found[branch::count] = self._write(cache, layers[branch::count])
        finally:  # a capture that fails must not leave a stream behind
            for stream in streams[1:]:
                current.wait_stream(stream)
        return found

    def _uncaptured(self, cache: CapturedCache, layers: list[CapturedLayer]) -> None:
        self._growths = self._write(cache, layers)
        self.eager += 1

    def _on_device(self, cache: CapturedCache, layers: list[CapturedLayer]) -> None:
        stream = cache.graph.stream(layers[0].device)
        if self._graph is not None and self.stale and self._reads != self._read_now(cache, layers):
            self._graph, self._warm = None, False
        self.stale = False
        if not self._warm:
            self._growths, waits = beside(stream, lambda: self._write(cache, layers), watch=True)
            self.eager += 1
            self._warm = waits is None
            self._strikes += waits is not None
            if self._strikes >= _STRIKES:
                self._off = f"packing waits for the device ({waits})"
            return
        if self._graph is None:
            try:
                self._graph, self._growths = capture(stream, lambda: self._write_apart(cache, layers))
            except Exception as error:  # of any kind: what cannot be captured still runs
                self._off = self.reason = f"capturing failed: {first_line(error)}"
                return
            self._reads = self._read_now(cache, layers)
            self.captures += 1
        self._graph.replay()
        self.replays += 1

    def _read_now(self, cache: CapturedCache, layers: list[CapturedLayer]) -> list[Any]:
        """Where buffers lie, and where in them the first page would: what a captured packing depends on."""
        held = _pages(cache)
        found: list[Any] = [cache.table.static.lengths_on(layers[0].device, cache.table).num_pages.data_ptr()]
        for layer, growths in zip(layers, self._growths, strict=True):
            found.append(layer.addresses())
            found += [s.origins(g, held) for s, g in zip(layer.parts[TEXT].stores, growths, strict=True)]
        return found


@lru_cache(maxsize=16)
def _side_streams(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(_BRANCHES - 1))


def _pages(cache: CapturedCache) -> int:
    """Pages of text that the cache holds."""
    store, size = cache.table.stores.get(TEXT), cache.table.page_sizes.get(TEXT)
    return 0 if store is None or not size else store.shape[1] // size
