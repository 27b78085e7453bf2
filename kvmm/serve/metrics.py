"""Counters, gauges and histograms in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Counter:
    """A number that only grows, by label values."""

    def __init__(self, name: str, text: str, *labels: str):
        self.name, self.text, self.labels = name, text, labels
        self._guard = threading.Lock()
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, amount: float = 1.0, *values: str) -> None:
        """Add to the counter of these label values."""
        with self._guard:
            self._values[values] = self._values.get(values, 0.0) + amount

    def value(self, *values: str) -> float:
        """The counter of these label values."""
        with self._guard:
            return self._values.get(values, 0.0)

    def lines(self) -> list[str]:
        """In Prometheus' format."""
        with self._guard:
            found = sorted(self._values.items())
        return [*_head(self.name, self.text, "counter"), *(_line(self.name, v, self.labels, k) for k, v in found)]


class Gauge:
    """A number that is read when it is asked for."""

    def __init__(self, name: str, text: str, read: Callable[[], float], kind: str = "gauge"):
        self.name, self.text, self.read, self.kind = name, text, read, kind

    def lines(self) -> list[str]:
        """In Prometheus' format."""
        return [*_head(self.name, self.text, self.kind), _line(self.name, self.read())]


class Histogram:
    """How often a value was at most each of some bounds."""

    def __init__(self, name: str, text: str, bounds: Sequence[float] = SECONDS):
        self.name, self.text, self.bounds = name, text, tuple(bounds)
        self._guard = threading.Lock()
        self._counts, self._sum = [0] * (len(self.bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Add a value."""
        with self._guard:
            self._counts[bisect.bisect_left(self.bounds, value)] += 1
            self._sum += value

    def lines(self) -> list[str]:
        """In Prometheus' format."""
        with self._guard:
            counts, total = list(self._counts), self._sum
        lines, below = _head(self.name, self.text, "histogram"), 0
        for bound, count in zip([*(f"{b:g}" for b in self.bounds), "+Inf"], counts, strict=True):
            below += count
            lines.append(_line(f"{self.name}_bucket", below, ("le",), (bound,)))
        return [*lines, _line(f"{self.name}_sum", total), _line(f"{self.name}_count", below)]


class Metrics:
    """What a server counts itself; :meth:`gauge` adds what others know."""

    def __init__(self) -> None:
        self.requests = Counter("kvmm_requests_total", "Chat completions by status.", "status")
        self.prompt_tokens = Counter("kvmm_prompt_tokens_total", "Tokens of all prompts.")
        self.cached_tokens = Counter("kvmm_cached_tokens_total", "Tokens of prompts that a kept prefix held.")
        self.generated_tokens = Counter("kvmm_generated_tokens_total", "Generated tokens.")
        self.steps = Counter("kvmm_decode_steps_total", "Decode steps, of one token in every running answer.")
        self.joint_reads = Counter(
            "kvmm_joint_reads_total", "Pieces of prompts that were read in one call with others."
        )
        self.drafted_tokens = Counter("kvmm_drafted_tokens_total", "Drafted tokens that were checked.")
        self.accepted_tokens = Counter("kvmm_accepted_tokens_total", "Drafted tokens that were right.")
        self.first_token = Histogram("kvmm_time_to_first_token_seconds", "From the request to its first token.")
        self.duration = Histogram("kvmm_request_seconds", "From the request to the end of its answer.")
        own = (self.requests, self.prompt_tokens, self.cached_tokens, self.generated_tokens, self.steps)
        own += (self.joint_reads, self.drafted_tokens, self.accepted_tokens)
        self._all: list[Counter | Gauge | Histogram] = [*own, self.first_token, self.duration]

    def gauge(self, name: str, text: str, read: Callable[[], float], kind: str = "gauge") -> None:
        """Also show what ``read`` returns; ``kind`` is "gauge" or "counter"."""
        self._all.append(Gauge(name, text, read, kind))

    def text(self) -> str:
        """All of them."""
        return "\n".join(line for one in self._all for line in one.lines()) + "\n"


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _line(name: str, value: float, labels: Sequence[str] = (), values: Sequence[str] = ()) -> str:
    pairs = ",".join(f'{label}="{one}"' for label, one in zip(labels, values, strict=True))
    shown = f"{{{pairs}}}" if pairs else ""
    return f"{name}{shown} {value:.17g}"


__all__ = ["CONTENT_TYPE", "SECONDS", "Counter", "Gauge", "Histogram", "Metrics"]
