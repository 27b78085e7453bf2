"""When a layer's call is captured, replayed and given up; a fake capture runs the work anew at every replay.

:mod:`tests.cache.test_default_on_a_gpu` has what a GPU captures.
"""

from __future__ import annotations

import copy

import pytest
import torch

from kvmm.cuda_graphs import layer as layer_graph
from kvmm.cuda_graphs.layer import WARM_UP, LayerGraph


class Replay:
    """What a graph does: the same work on the same addresses, into the same output."""

    def __init__(self, work):
        self.work, self.output = work, work()

    def replay(self):
        self.output.copy_(self.work())


@pytest.fixture(autouse=True)
def outside_a_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with torch.no_grad():
        yield


@pytest.fixture
def captured(monkeypatch):
    """Replays made so far; captures run on a CPU."""
    made = []

    def capture(stream, work, pool=None):
        made.append(Replay(work))
        return made[-1], made[-1].output

    monkeypatch.setattr(layer_graph, "capture", capture)
    return made


class POOL:
    """What a CPU has of a :class:`kvmm.cuda_graphs.layer.GraphPool`."""

    stream = handle = None


BUFFER, SCALING = object(), 0.125


def call(graph, x, reads=(BUFFER, SCALING), work=torch.neg):
    return graph.run((x,), reads, POOL, work)


def warm(graph):
    for _ in range(WARM_UP):
        assert call(graph, torch.ones(2)) is None


def test_replays_after_warm_up_with_outputs_of_the_callers_own(captured):
    graph = LayerGraph()
    warm(graph)
    first, second = call(graph, torch.tensor([1.0, 2.0])), call(graph, torch.tensor([3.0, 4.0]))
    assert first.tolist() == [-1, -2]
    assert second.tolist() == [-3, -4]
    assert (graph.captures, graph.replays, len(captured)) == (1, 2, 1)


@pytest.mark.parametrize(
    ("x", "reads", "captures"),
    [
        (torch.ones(2), (BUFFER, float("0.125")), 1),  # another float of the same value
        (torch.ones(2), (BUFFER, 0.25), 2),
        (torch.ones(2), (object(), SCALING), 2),
        (torch.ones(2), (BUFFER, SCALING, BUFFER), 2),
        (torch.ones(3), (BUFFER, SCALING), 2),
        (torch.ones(2, dtype=torch.float64), (BUFFER, SCALING), 2),
    ],
)
def test_captured_anew_when_something_else_is_read(captured, x, reads, captures):
    """After as many calls that run as usual: kernels of the new case may not be compiled yet."""
    graph = LayerGraph()
    warm(graph)
    call(graph, torch.ones(2))
    for _ in range(WARM_UP if captures > 1 else 0):
        assert call(graph, x, reads) is None
    assert torch.equal(call(graph, x, reads), -x)
    assert graph.captures == captures


def test_what_cannot_be_captured_runs_as_usual_from_then_on(monkeypatch):
    def fail(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(layer_graph, "capture", fail)
    graph = LayerGraph()
    warm(graph)
    assert [call(graph, torch.ones(2)) for _ in range(3)] == [None] * 3
    assert (graph.captures, graph.replays, graph._inputs) == (0, 0, [])
    assert "not permitted" in graph.reason
    assert "not permitted" in graph.fork().reason


def test_nothing_is_captured_with_gradients(captured):
    """Inputs that live on would keep the history of every step."""
    graph = LayerGraph()
    warm(graph)
    with torch.enable_grad():
        assert call(graph, torch.ones(2)) is None


def test_nothing_inside_somebody_elses_capture(captured, monkeypatch):
    graph = LayerGraph()
    warm(graph)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert call(graph, torch.ones(2)) is None
    assert not captured


def test_a_copy_and_a_dropped_graph_hold_nothing(captured):
    graph = LayerGraph()
    warm(graph)
    call(graph, torch.ones(2))
    assert copy.deepcopy(graph)._graph is None
    graph.drop()
    assert (graph._graph, graph._reads, graph._output) == (None, (), None)
    assert call(graph, torch.ones(2)) is None  # warms up again
