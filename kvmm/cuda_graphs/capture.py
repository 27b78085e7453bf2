"""Work that is captured as a CUDA graph: warmed up and watched on the stream that captures it later."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def beside(stream: torch.cuda.Stream, work: Callable[[], T], watch: bool) -> tuple[T, str | None]:
    """Run ``work`` on the stream that captures it later, as warm-ups must be.

    Args:
        stream: the current stream waits for it afterwards.
        work: launches kernels.
        watch: find out whether it asks the device something on the way: that cannot be captured, and failing in a
            capture leaves torch's allocator in disorder.

    Returns:
        what ``work`` returned, and where it waited for the device (``file:line``), or None.
    """
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream), warnings.catch_warnings(record=True) as caught:
        before = torch.cuda.get_sync_debug_mode()
        if watch:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
        try:
            result = work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    current.wait_stream(stream)
    found = [w for w in caught if "synchronizing CUDA operation" in str(w.message)]
    return result, f"{found[0].filename}:{found[0].lineno}" if watch and found else None


def capture(stream: torch.cuda.Stream, work: Callable[[], T], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, T]:
    """Capture ``work``: a graph that launches its kernels, and what it returned. Nothing is run.

    Unlike ``torch.cuda.graph`` this returns cached memory to the device only if the capture runs out of it: that takes
    longer than capturing.

    Args:
        stream: not the default stream.
        work: launches kernels.
        pool: of memory (``torch.cuda.graph_pool_handle()``) shared with graphs that never run at the same time.
    """
    try:
        return _capture(stream, work, pool)
    except torch.OutOfMemoryError:  # memory that the allocator keeps is not available to a capture
        torch.cuda.empty_cache()
        return _capture(stream, work, pool)


def _capture(stream: torch.cuda.Stream, work: Callable[[], T], pool: Any) -> tuple[torch.cuda.CUDAGraph, T]:
    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        # other threads may use CUDA meanwhile (an app that measures memory)
        graph.capture_begin(*(() if pool is None else (pool,)), capture_error_mode="thread_local")
        try:
            result = work()
        finally:  # a capture must not stay open, whatever happened in it
            graph.capture_end()
    return graph, result


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error) or repr(error)).strip().splitlines()[0]
