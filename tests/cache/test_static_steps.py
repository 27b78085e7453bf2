"""A step with static buffers is fit to be captured: it reads every changing number from the device."""

from __future__ import annotations

import copy

import pytest
import torch

from kvmm import KVMMCache, attention
from kvmm.cuda_graphs import decode as graphs
from kvmm.cuda_graphs.decode import StepGraph
from kvmm.kernels.attention.backends.cpu import kernel as native
from kvmm.modality import AUDIO, IMAGE, TEXT
from tests.cache.harness import Harness, layout
from tests.cache.static import FIELDS, TOKENS, dynamic, make
from tests.tiny_models import build, generate, inputs


class Recorder(StepGraph):
    """Keeps the callable of the first step and calls that one ever after, as a captured graph would: what a step
    computes may depend on buffers only, whose addresses must not change either.
    """

    def drop(self):
        super().drop()
        self.kept = None
        self.frozen = []

    def _run(self, model, forward, cache):
        if self.kept is None:
            self.kept = [layer.addresses() for layer in cache.layers]
        assert [layer.addresses() for layer in cache.layers] == self.kept
        # the host's numbers lie: nothing in a step may read them
        table, length = cache.table, cache.table.length
        dense, stores = table.dense, table.stores
        table.length, table.dense, table.stores = 7, dense[:, :3], {}
        try:
            return super()._run(model, forward, cache)
        finally:
            table.length, table.dense, table.stores = length, dense, stores


@pytest.mark.parametrize("policy", ["oscar2", "kivi2", "rd2", "calibquant2", "kitty", "turboquant2", "bf16"])
@pytest.mark.parametrize(("family", "batch"), [("qwen3", 1), ("qwen2_5_omni", 1), ("qwen2_5_omni", 2)])
def test_a_step_reads_buffers_only(family, batch, policy):
    model, arguments = build(family), inputs(family, batch)
    tokens = generate(model, arguments, past_key_values=dynamic(model, policy), max_new_tokens=TOKENS)
    cache = make(model, policy)
    cache.graph = Recorder()
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), tokens)
    assert cache.graph.eager == TOKENS - 1


def test_no_question_to_the_device_in_a_step(monkeypatch):
    """Nothing is read back in a step of one sequence or of a padded batch: neither numbers nor tensors."""
    monkeypatch.setattr(native, "readable", lambda *_: True)  # the CPU library's own check, which no GPU makes
    model, arguments = build("qwen2_5_omni"), inputs("qwen2_5_omni", 2)
    cache = make(model)
    asked = []

    class Watching(StepGraph):
        def _run(self, *args):
            with monkeypatch.context() as patch:
                for name in ("item", "tolist", "__bool__", "__int__", "__float__", "nonzero", "numpy", "cpu"):
                    patch.setattr(torch.Tensor, name, lambda *a, name=name, **k: asked.append(name))
                return super()._run(*args)

    cache.graph = Watching()
    generate(model, arguments, past_key_values=cache, max_new_tokens=60)
    assert cache.graph.eager == 59
    assert not asked


def test_layer_with_room_reads_like_dynamic():
    """Attention over room against attention over exact views, batch of ragged modalities."""
    policy = KVMMCache.for_model(build("llama"), "oscar2", **FIELDS).policy
    h = Harness(policy)
    h.cache = KVMMCache(h.config, policy, max_length=400)
    h.layer = h.cache.layers[0]
    h.feed(
        [
            layout((TEXT, 20), (IMAGE, 70), (TEXT, 9), (AUDIO, 40), (TEXT, 11)),
            layout((-1, 30), (TEXT, 80), (AUDIO, 33), (TEXT, 7)),
        ]
    )
    worst = 0.0
    for _ in range(100):
        h.feed([[TEXT], [TEXT]])
        assert h.layer.residual.in_place
        worst = max(worst, h.compare(1))
    assert worst < 1e-4
    assert h.cache.table.stores[TEXT].shape[1] > 32


@pytest.mark.parametrize("family", ["qwen3", "qwen2_5_omni"])
def test_compiled_layers(family, monkeypatch):
    """One compiled form serves all layers; the model is as it was between steps."""
    counters = pytest.importorskip("torch._dynamo.utils").counters
    monkeypatch.setattr(graphs, "BACKEND", "eager")
    graphs._compiled.cache_clear()
    torch._dynamo.reset()
    counters.clear()
    model, arguments = build(family), inputs(family, 2)
    tokens = generate(model, arguments, past_key_values=dynamic(model), max_new_tokens=60)
    cache = make(model, graph="compile")
    functions = KVMMCache.update, attention.read_packed
    try:
        assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=60), tokens)
    finally:
        graphs._compiled.cache_clear()
    assert cache.graph.report()["eager"] == 59
    assert (KVMMCache.update, attention.read_packed) == functions
    assert 3 <= counters["stats"]["unique_graphs"] <= 6
    assert all("forward" not in layer.__dict__ for layer in graphs.decoder_layers(model))
    before = counters["stats"]["calls_captured"]
    assert torch.equal(generate(model, arguments, past_key_values=dynamic(model), max_new_tokens=60), tokens)
    assert counters["stats"]["calls_captured"] == before


def _longrope(original):
    config = copy.deepcopy(build("qwen3").config)
    half = config.head_dim // 2
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * half,
        "long_factor": [1.0 + 3 * i / half for i in range(half)],
        "original_max_position_embeddings": original,
        "factor": 4.0,
    }
    config.original_max_position_embeddings = original
    torch.manual_seed(0)
    return type(build("qwen3"))(config).eval()


@pytest.mark.parametrize("batch", [1, 2])
def test_longrope_switches_at_the_same_token(batch):
    """Short frequencies become long ones while tokens are generated, also when another prompt ran in between."""
    model, arguments = _longrope(60), inputs("qwen3", batch)
    expected = generate(model, arguments, past_key_values=dynamic(model), max_new_tokens=90)
    cache = make(model)
    seen = []

    class Watching(StepGraph):
        def _run(self, model, forward, cache):
            output = super()._run(model, forward, cache)
            seen.append(self._long)
            return output

    cache.graph = Watching()
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=90), expected)
    assert len(seen) == 89
    assert seen == sorted(seen)
    assert set(seen) == {False, True}
    assert model.model.rotary_emb.rope_type == "longrope"

    tokens = expected[:, : arguments["input_ids"].shape[1] + 10]
    caches = [dynamic(model), make(model)]
    rows = []
    for each in caches:
        with torch.no_grad():
            model(**arguments, past_key_values=each)
            model(input_ids=torch.ones(1, 100, dtype=torch.long))
            step = {"input_ids": tokens[:, -1:], "past_key_values": each}
            rows.append([model(**step).logits, model(**step).logits])
    for mine, theirs in zip(*rows, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
