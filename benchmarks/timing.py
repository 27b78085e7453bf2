"""Timing on a GPU, and what the memory of the machine can do; on a CPU the same calls with a plain clock."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

Call = Callable[[], Any]
_MIN_CALLS = 8  # calls a graph, so that launching the graph does not count


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median, mean, fastest and slowest of ``runs`` measurements."""

    median: float
    mean: float
    fastest: float
    slowest: float
    runs: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        return cls(statistics.median(seconds), statistics.fmean(seconds), min(seconds), max(seconds), len(seconds))

    def to_dict(self) -> dict[str, float]:
        """For JSON, in microseconds."""
        return {f"{k}_us" if k != "runs" else k: v * 1e6 if k != "runs" else v for k, v in asdict(self).items()}


def synchronize(device: torch.device | str) -> None:
    """Wait for the GPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def free_memory() -> None:
    """Give cached GPU memory back, so that the next row starts alike."""
    import gc

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def bandwidth(device: torch.device | str, nbytes: int = 2**31) -> dict[str, float]:
    """Bytes a second of a large copy (bytes read plus bytes written) and of a large sum (bytes read)."""
    size = nbytes if torch.device(device).type == "cuda" else 2**24
    a = torch.zeros(size // 8, dtype=torch.int64, device=device)
    b = torch.empty_like(a)
    copy = time_calls([lambda: b.copy_(a)], device, runs=20, graph=False).median
    read = time_calls([lambda: a.sum()], device, runs=20, graph=False).median
    return {"copy": 2 * size / copy, "read": size / read}


def l2_bytes(device: torch.device | str) -> int:
    """Size of the GPU's second-level cache; 0 on a CPU."""
    if torch.device(device).type != "cuda":
        return 0
    return torch.cuda.get_device_properties(device).L2_cache_size


def time_calls(calls: Sequence[Call], device: torch.device | str, runs: int = 50, graph: bool = True) -> Timing:
    """Seconds of one call of several that do the same on different data.

    Args:
        calls: called in turn; together they should touch more memory than the second-level cache holds.
        device: where they run.
        runs: measurements, each of a whole graph, or of one call.
        graph: replay a CUDA graph of the calls, which leaves host time out; without effect on a CPU.
    """
    if torch.device(device).type != "cuda":
        return Timing.of([_clock(calls[i % len(calls)]) for i in range(-1, min(runs, 3))][1:])
    if not graph:
        return Timing.of(_event_times(calls, runs))
    captured, count = capture(calls)
    seconds = [t / count for t in _event_times([captured.replay], runs)]
    del captured
    return Timing.of(seconds)


def capture(calls: Sequence[Call]) -> tuple[torch.cuda.CUDAGraph, int]:
    """A CUDA graph of all calls, repeated to at least eight, and how many it holds. Each was called twice before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    repeats = -(-_MIN_CALLS // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    return graph, repeats * len(calls)


def _clock(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _event_times(calls: Sequence[Call], runs: int) -> list[float]:
    for call in calls[:4]:
        call()
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * runs)]
    for i in range(runs):
        events[2 * i].record()
        calls[i % len(calls)]()
        events[2 * i + 1].record()
    torch.cuda.synchronize()
    return [events[2 * i].elapsed_time(events[2 * i + 1]) * 1e-3 for i in range(runs)]


def step_times(step: Call, steps: int, device: torch.device | str) -> list[float]:
    """Seconds from the end of one step to the end of the next, without waiting in between."""
    if torch.device(device).type != "cuda":
        return [_clock(step) for _ in range(steps)]
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e-3 for a, b in itertools.pairwise(events)]


def kernel_times(call: Call, runs: int = 20) -> dict[str, dict[str, float]]:
    """By kernel: microseconds and launches of one call, from torch's profiler, the slowest kernel first."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(runs):
            call()
        torch.cuda.synchronize()
    found = {
        event.key[:80]: {"us": event.self_device_time_total / runs, "launches": event.count / runs}
        for event in profiler.key_averages()
        if event.self_device_time_total > 0
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]["us"]))
