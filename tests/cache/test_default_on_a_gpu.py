"""Caches as ``for_model`` makes them on a GPU: graphs and growing buffers, and calls of layers where a step is not
captured. Needs a GPU; :mod:`tests.cache.test_static_tokens` has what a CPU can show.
"""

from __future__ import annotations

import copy

import pytest
import torch

from kvmm import KVMMCache
from kvmm.cache import capacity
from tests.tiny_models import build, generate, inputs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FIELDS = {"residual_length": 16, "flush_length": 32, "num_sink_tokens": 2}
TOKENS = 120  # several pages of 32


def on_gpu(family, batch=1, dtype=torch.float32):
    model = copy.deepcopy(build(family)).to("cuda", dtype)
    arguments = {name: x.cuda() for name, x in inputs(family, batch).items()}
    return model, {n: x.to(dtype) if x.is_floating_point() else x for n, x in arguments.items()}


def plain(model, policy, **fields):
    """A cache with the same buffers, whose kernels are launched one by one."""
    return KVMMCache.for_model(model, policy, graph="never", **{**FIELDS, **fields})


@pytest.mark.parametrize("policy", ["oscar2", "kivi2", "kitty", "bf16"])
def test_same_tokens_while_buffers_grow(policy, monkeypatch):
    monkeypatch.setattr(capacity, "_STEP", 24)
    model, arguments = on_gpu("qwen3")
    expected = generate(model, arguments, past_key_values=plain(model, policy), max_new_tokens=TOKENS)
    cache = KVMMCache.for_model(model, policy, **FIELDS)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), expected)
    report = cache.graph.report()
    assert (report["mode"], report["reason"], report["plain"]) == ("auto", None, 0)
    assert report["captures"] >= 3 and report["replays"] > 80
    assert cache.layers[0].keys.shape[2] == cache.get_seq_length()


@pytest.mark.parametrize("policy", ["oscar2", "kivi2", "kitty", "calibquant1", "turboquant2"])
@pytest.mark.parametrize("family", ["qwen3", "qwen2_5_omni"])
def test_layers_replay_without_a_step_graph(family, policy, monkeypatch):
    """The same tokens; calls of a layer but the first ones are replayed, over pages that fill and buffers that grow."""
    monkeypatch.setattr(capacity, "_STEP", 60)
    model, arguments = on_gpu(family)
    expected = generate(model, arguments, past_key_values=plain(model, policy), max_new_tokens=TOKENS)
    cache = KVMMCache.for_model(model, policy, graph=False, **FIELDS)
    assert cache.graph is None
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), expected)
    graph = cache.layers[0]._graph
    assert graph.reason or graph.replays > 70
    assert graph.reason is None or policy not in ("oscar2", "kivi2", "kitty", "calibquant1")


def test_sliding_layers_fall_back_silently(recwarn):
    model, arguments = on_gpu("gemma3")
    expected = generate(model, arguments, past_key_values=plain(model, "oscar2"), max_new_tokens=60)
    cache = KVMMCache.for_model(model, "oscar2", **FIELDS)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=60), expected)
    assert "sliding window" in cache.graph.report()["reason"]
    assert cache.layers[cache.packed_layers[0]]._graph.replays > 40
    assert not [w for w in recwarn if "graph" in str(w.message)]


def test_left_padding_and_batches():
    model, arguments = on_gpu("qwen2_5_omni", batch=2)
    expected = generate(model, arguments, past_key_values=plain(model, "oscar2"), max_new_tokens=TOKENS)
    for graph in (None, False):
        cache = KVMMCache.for_model(model, "oscar2", graph=graph, **FIELDS)
        assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), expected)


@pytest.mark.parametrize("policy", ["oscar4-2", "calibquant1", "kitty", "spherical-high", "ott2", "bf16"])
def test_forks_and_crops(policy):
    """Forks, crops and a second turn of caches with graphs give what caches without them give."""
    model, arguments = on_gpu("qwen2_5_omni")
    found = []
    for cache in (plain(model, policy), KVMMCache.for_model(model, policy, **FIELDS)):
        ids = generate(model, arguments, past_key_values=cache, max_new_tokens=60)
        twin = cache.fork()
        cache.crop(-7)
        rest = [generate(model, {"input_ids": ids[:, :-6]}, past_key_values=cache, max_new_tokens=20)]
        rest.append(generate(model, {"input_ids": ids}, past_key_values=twin, max_new_tokens=20))
        found.append([ids, *rest])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_beams_do_not_capture_in_every_step():
    model, arguments = on_gpu("qwen2_5_omni")
    cache = KVMMCache.for_model(model, "oscar2", **FIELDS)
    expected = generate(model, arguments, past_key_values=plain(model, "oscar2"), max_new_tokens=60, num_beams=3)
    found = generate(model, arguments, past_key_values=cache, max_new_tokens=60, num_beams=3)
    assert torch.equal(found, expected)
    assert cache.graph.report()["captures"] <= 4


def test_a_graph_of_the_callers_own():
    """Inside somebody's capture nothing is replayed or captured; the step is captured with everything else."""
    model, arguments = on_gpu("qwen3")
    cache = KVMMCache.for_model(model, "oscar2", graph=False, **FIELDS)
    ids = generate(model, arguments, past_key_values=cache, max_new_tokens=40)
    layer = cache.layers[0]
    before = layer._graph.replays
    query, key = torch.randn(1, 4, 1, 32, device="cuda"), torch.randn(1, 2, 1, 32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        handle, _ = layer.update(key, key)
        out = handle.layer.attend(query, None, 0.2)
    graph.replay()
    assert out.isfinite().all()
    assert layer._graph.replays == before > 0
    assert ids.shape[1] == cache.get_seq_length() + 1
