"""Which calls the dispatcher replays, which run as usual, and what a model on a GPU gets by default."""

from __future__ import annotations

import copy
import gc
import json
import weakref

import pytest
import torch

from kvmm import KVMMCache
from kvmm.cache import support
from kvmm.cuda_graphs import decode as graphs
from kvmm.cuda_graphs.decode import StepGraph, install_dispatcher
from tests.cache.static import FAMILIES, FIELDS, dynamic, make
from tests.tiny_models import build, generate, inputs


def _prefilled(model, arguments, **options):
    cache = make(model, **options)
    ids = generate(model, arguments, past_key_values=cache, max_new_tokens=5)
    return cache, ids


def test_output_is_the_model_s_own_class():
    model, arguments = build("qwen3"), inputs("qwen3")
    cache, ids = _prefilled(model, arguments)
    twin = dynamic(model)
    generate(model, arguments, past_key_values=twin, max_new_tokens=5)
    with torch.no_grad():
        expected = model(input_ids=ids[:, -1:], past_key_values=twin)
        found = model(input_ids=ids[:, -1:], past_key_values=cache)
        later = model(input_ids=ids[:, -2:-1], past_key_values=cache)
    assert type(found) is type(expected)
    assert found.past_key_values is cache
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-4, rtol=1e-4)
    assert found.logits.data_ptr() != later.logits.data_ptr()
    assert json.dumps(cache.graph.report())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"output_hidden_states": True}, "output_hidden_states"),
        ({"return_dict": False}, "return_dict"),
        ({"mask": "own"}, "one's own"),
        ({"mask": "4d"}, "another form"),
        ({"attention": "decoded"}, "read decoded"),
        ({"attention": "weights"}, "attention weights"),
    ],
)
def test_other_calls_run_as_usual(change, reason):
    model, arguments = build("llama"), inputs("llama")
    cache, ids = _prefilled(model, arguments)
    twin = dynamic(model)
    generate(model, arguments, past_key_values=twin, max_new_tokens=5)
    call, length = {"input_ids": ids[:, -1:]}, ids.shape[1]
    config = model.config
    if "mask" in change:
        mask = torch.ones(1, length, dtype=torch.long)
        mask[:, 5:9] = 0
        call["attention_mask"] = mask if change["mask"] == "own" else mask[:, None, None].bool()
    elif "attention" in change:
        cache.step.reads_decoded = change["attention"] == "decoded"
        config._output_attentions = change["attention"] == "weights"
    else:
        call |= change
    try:
        with torch.no_grad():
            found, expected = (model(**call, past_key_values=c) for c in (cache, twin))
    finally:
        cache.step.reads_decoded = config._output_attentions = False
    torch.testing.assert_close(found[0], expected[0], atol=1e-4, rtol=1e-4)
    assert reason in cache.graph.reason
    with torch.no_grad():
        found, expected = (model(input_ids=ids[:, -2:-1], past_key_values=c) for c in (cache, twin))
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-4, rtol=1e-4)
    assert cache.graph.reason is None


def test_other_caches_and_other_models_are_left_alone():
    model, arguments = build("llama"), inputs("llama")
    tokens = generate(model, arguments)
    install_dispatcher(model)
    install_dispatcher(model)
    assert torch.equal(generate(model, arguments), tokens)
    twin = copy.deepcopy(model)
    assert twin.forward._model() is twin
    with torch.no_grad():
        twin.lm_head.weight.zero_()
        assert not model(**arguments).logits.eq(0).all()
        assert twin(**arguments).logits.eq(0).all()
    cache = make(model)
    with torch.no_grad():
        twin(**arguments, past_key_values=cache)
        twin(input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=cache)
    assert "another model" in cache.graph.reason


def test_everything_goes_with_the_cache():
    model, arguments = build("llama"), inputs("llama")
    cache, _ = _prefilled(model, arguments)
    gone = weakref.ref(cache), weakref.ref(cache.graph)
    del cache
    gc.collect()
    assert gone[0]() is None
    assert gone[1]() is None


def test_model_is_not_kept_alive():
    model = copy.deepcopy(build("llama"))
    make(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_graphs_that_never_pay_are_given_up():
    graph = StepGraph("auto")
    assert graph.report()["reason"] is None
    for _ in range(graphs._IDLE + 1):
        graph.captures += 1
        graph.note_capture()
    assert graph._idle == graphs._IDLE
    graph.replays += 5
    graph.captures += 1
    graph.note_capture()
    assert graph._idle == 0


@pytest.fixture
def gpu(monkeypatch):
    """Caches take every model to be on a GPU; steps then run uncaptured through the same buffers."""
    monkeypatch.setattr(support, "_on_gpu", lambda model: True)


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_are_the_default(gpu, family):
    model, arguments = build(family), inputs(family)
    expected = generate(model, arguments, past_key_values=make(model), max_new_tokens=60)
    cache = KVMMCache.for_model(model, "oscar2", **FIELDS)
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=60), expected)
    report = cache.graph.report()
    assert (report["mode"], report["eager"], report["reason"]) == ("auto", 59, None)
    assert KVMMCache.for_model(model, "oscar2", graph=False).graph is None


def test_default_leaves_out_what_cannot_stay(gpu):
    model = build("qwen3")
    for options in ({"offloading": True}, {"budget": 10**6}):
        cache = KVMMCache.for_model(model, "oscar2", **options)
        assert cache.graph is None
        assert cache.table.static is None


def test_tensor_parallel_models_are_asked(gpu, monkeypatch):
    model = build("qwen3")
    monkeypatch.setattr(model, "_tp_size", 2, raising=False)
    cache = KVMMCache.for_model(model, "oscar2")
    assert cache.graph is None
    assert cache.table.static is not None
    assert KVMMCache.for_model(model, "oscar2", graph=True).graph is not None


@pytest.mark.parametrize("mode", ["auto", True])
def test_default_falls_back_silently(mode, recwarn):
    graph = StepGraph(mode)
    graph._give_up("no reason")
    assert graph.report()["reason"] == "no reason"
    assert len(recwarn) == (mode is True)


def test_saved_caches_go_on_with_graphs(gpu, tmp_path):
    model, arguments = build("qwen3"), inputs("qwen3")
    cache = KVMMCache.for_model(model, "kivi2", **FIELDS)
    ids = generate(model, arguments, past_key_values=cache, max_new_tokens=60)
    cache.save(tmp_path / "cache.safetensors")
    loaded = KVMMCache.load(tmp_path / "cache.safetensors", model)
    found = generate(model, {"input_ids": ids}, past_key_values=loaded, max_new_tokens=50)
    assert torch.equal(found, generate(model, {"input_ids": ids}, past_key_values=cache, max_new_tokens=50))
    assert loaded.graph.report()["eager"] >= 49
