"""Steps of several caches whose layers are captured: the tokens' logits of uncaptured steps, and when graphs fit.

A fake capture runs the work anew at every replay, as in :mod:`tests.cuda_graphs.test_layer_graph`.
"""

from __future__ import annotations

import pytest
import torch

from kvmm import KVMMCache
from kvmm.cache.batch import CacheBatch, able_to_graph, keep_in_place
from kvmm.cuda_graphs import layer as layer_graph
from kvmm.cuda_graphs.batch import BatchGraphs
from kvmm.cuda_graphs.layer import WARM_UP, GraphPool
from tests.cache.test_cache_batch import LENGTHS, TOLERANCES, read, step
from tests.tiny_models.families import build

STEPS = 40  # pages of text are packed on the way, at different steps


class Replay:
    """What a graph does: the same work on the same addresses, into the same output."""

    def __init__(self, work):
        self.work, self.output = work, work()

    def replay(self):
        self.output.copy_(self.work())


@pytest.fixture
def captures(monkeypatch):
    """Captures made so far, on a CPU."""
    made = []

    def capture(stream, work, pool=None):
        # capturing runs nothing: what the warm-up would write again is the same token at the same place
        made.append(Replay(work))
        return made[-1], made[-1].output

    monkeypatch.setattr(layer_graph, "capture", capture)
    monkeypatch.setattr(GraphPool, "stream", None)
    monkeypatch.setattr(GraphPool, "handle", None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return made


def graphed(model, policy):
    caches = [read(model, policy, length) for length in LENGTHS]
    for (cache, _), length in zip(caches, LENGTHS, strict=True):
        keep_in_place(cache, length + STEPS)
    return caches


@pytest.mark.parametrize("policy", ["oscar4-2", "kivi2", "bf16"])
@pytest.mark.parametrize("family", ["llama", "qwen2_vl", "qwen2_5_omni"])
def test_replayed_steps_compute_what_each_cache_would(family, policy, captures) -> None:
    model = build(family)
    alone, together = [read(model, policy, length) for length in LENGTHS], graphed(model, policy)
    graphs = BatchGraphs(torch.device("cpu"))
    tokens = torch.tensor([[41], [42], [43]])
    for k in range(STEPS):
        places = [positions[..., n + k : n + k + 1] for (_, positions), n in zip(alone, LENGTHS, strict=True)]
        expected = [step(model, one, tokens[b : b + 1], places[b]) for b, (one, _) in enumerate(alone)]
        batch = CacheBatch([cache for cache, _ in together], graphs)
        found = step(model, batch, tokens, torch.cat(places, -2))
        for row, other in zip(found, expected, strict=True):
            torch.testing.assert_close(row, other[0], atol=TOLERANCES[policy], rtol=0)
        tokens = torch.cat([row.argmax(-1)[None] for row in expected])
    layers = len(together[0][0].layers)
    assert all(graphs.layers[index].replays == STEPS - WARM_UP for index in range(layers))
    assert len(captures) < 6 * layers, "graphs are captured anew where buffers stayed in place"
    for (one, _), (other, _) in zip(alone, together, strict=True):
        assert one.get_seq_length() == other.get_seq_length()
        assert one.table.dense.tolist() == other.table.dense.tolist()


def test_graphs_do_not_fit_buffers_that_moved(captures) -> None:
    model = build("llama")
    together = graphed(model, "oscar4-2")
    graphs = BatchGraphs(torch.device("cpu"))
    caches = [cache for cache, _ in together]

    def take(k):
        places = [positions[..., n + k : n + k + 1] for (_, positions), n in zip(together, LENGTHS, strict=True)]
        step(model, CacheBatch(caches, graphs), torch.tensor([[41], [42], [43]]), torch.cat(places, -2))

    for k in range(WARM_UP + 2):
        take(k)
    before, same = len(captures), graphs.layers[1]
    assert graphs.fits(1)
    caches[1].extend(4096)  # its pages of text move
    take(WARM_UP + 2)
    assert not same.is_captured or len(captures) > before
    assert caches[1].get_seq_length() == LENGTHS[1] + WARM_UP + 3


def test_what_cannot_be_captured_is_not_tried() -> None:
    cache, _ = read(build("llama"), "oscar4-2", 24)
    assert not able_to_graph(cache), "there are no graphs on a CPU"
    dynamic, _ = read(build("llama"), "dynamic", 24)
    assert not able_to_graph(dynamic)


def test_forks_read_on_when_one_of_them_keeps_its_buffers_in_place() -> None:
    model = build("llama")
    cache, places = read(model, "oscar4-2", 70)
    cache.pack()
    fork, lone = cache.fork(), cache.fork()
    keep_in_place(fork, 70 + STEPS)
    token = torch.tensor([[41]])
    for k in range(STEPS):
        place = places[..., 70 + k : 71 + k]
        torch.testing.assert_close(step(model, fork, token, place), step(model, lone, token, place), atol=0.1, rtol=0)
    assert cache.get_seq_length() == 70
    again = fork.pack().fork()
    assert torch.isfinite(step(model, again, token, places[..., -1:])).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("policy", ["oscar4-2", "kivi2"])
def test_a_gpu_replays_what_it_would_compute(policy) -> None:
    model = build("llama").to("cuda")

    def begun():
        found = []
        for length in LENGTHS:
            ids = torch.randint(40, 60, (1, length), generator=torch.Generator().manual_seed(length)).cuda()
            cache = KVMMCache.for_model(model, policy, graph=False)
            with torch.no_grad():
                model(input_ids=ids, past_key_values=cache, use_cache=True)
            found.append(cache)
        return found

    alone, together = begun(), begun()
    for cache, length in zip(together, LENGTHS, strict=True):
        assert able_to_graph(cache)
        keep_in_place(cache, length + STEPS)
    graphs = BatchGraphs(torch.device("cuda"))
    tokens = torch.tensor([[41], [42], [43]], device="cuda")
    for k in range(STEPS):
        places = torch.tensor([[length + k] for length in LENGTHS], device="cuda")
        expected = step(model, CacheBatch(alone), tokens, places)
        found = step(model, CacheBatch(together, graphs), tokens, places)
        torch.testing.assert_close(found, expected, atol=TOLERANCES[policy], rtol=0)
        tokens = expected.argmax(-1)[:, None]
    assert all(graph.replays >= STEPS // 2 and graph.reason is None for graph in graphs.layers.values())
