"""Copies of a cache by Python's own means, and the rest of what transformers documents of a ``DynamicCache``."""

import copy
import io
import pickle

import pytest
import torch
from transformers import DynamicCache

from kvmm import KVMMCache, KVMMError
from tests.tiny_models import build, generate, inputs

POLICIES = ["bf16", "balanced", "oscar2", "kivi2", "rd2", "spherical-high", "turboquant2.5", "kitty-pro"]


def saved(cache):
    buffer = io.BytesIO()
    torch.save(cache, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


WAYS = {"pickle": lambda cache: pickle.loads(pickle.dumps(cache)), "torch.save": saved, "deepcopy": copy.deepcopy}


def more(ids):
    longer = torch.cat((ids, ids[:, :5]), 1)
    return {"input_ids": longer, "attention_mask": torch.ones_like(longer)}


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_goes_on_as_the_cache_does(way, policy, static, monkeypatch):
    monkeypatch.setattr("kvmm.cache.support._on_gpu", lambda model: static)
    model = build("qwen3")
    cache = KVMMCache.for_model(model, policy, residual_length=0, flush_length=32)
    ids = generate(model, inputs("qwen3", 1), past_key_values=cache)
    before = cache.memory()
    twin = WAYS[way](cache)
    assert (twin.model is model) is (way == "deepcopy")
    twin = twin.attach(model)
    assert twin.memory() == before and twin.table is not cache.table
    assert all(layer.table is twin.table and layer.step is twin.step for layer in twin.layers)
    expected = generate(model, more(ids), past_key_values=twin, max_new_tokens=8)
    assert cache.memory() == before  # the copy's own tensors
    assert torch.equal(generate(model, more(ids), past_key_values=cache, max_new_tokens=8), expected)
    if static:
        assert twin.graph is not cache.graph and twin.graph.eager > 0


@pytest.mark.parametrize("way", [*WAYS, "fork"])
def test_a_copy_reads_as_caches_do(way):
    """Made while the cache reads decoded keys or runs a step that is captured, it does neither."""
    model = build("qwen3")
    cache = KVMMCache.for_model(model, "balanced", residual_length=0, flush_length=32)
    generate(model, inputs("qwen3", 1), past_key_values=cache, max_new_tokens=3)
    with cache.reading_decoded(), cache.replaying():
        twin = ({"fork": KVMMCache.fork} | WAYS)[way](cache)
        assert cache.step.reads_decoded and cache.step.replaying
    assert not twin.step.reads_decoded and not twin.step.replaying and twin.layers[0].step is twin.step
    mask = torch.ones(1, cache.get_seq_length() + 1, dtype=torch.long)
    step = {"input_ids": torch.tensor([[5]]), "attention_mask": mask}
    with torch.no_grad():
        logits = [model(**step, past_key_values=c).logits for c in (twin.attach(model), cache)]
    assert torch.equal(*logits) and twin.get_seq_length() == mask.shape[1]


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_fork_has_pages_of_its_own(way):
    model = build("qwen3")
    cache = KVMMCache.for_model(model, "kivi2", residual_length=0, flush_length=32)
    ids = generate(model, inputs("qwen3", 1), past_key_values=cache)
    fork = cache.fork()
    twin = WAYS[way](fork).attach(model)
    assert fork.memory().shared_nbytes > 0 == twin.memory().shared_nbytes
    first = generate(model, more(ids), past_key_values=twin, max_new_tokens=40)
    assert torch.equal(generate(model, more(ids), past_key_values=fork, max_new_tokens=40), first)


@pytest.mark.parametrize("way", ["pickle", "torch.save"])
def test_caches_with_a_budget_and_empty_ones(way):
    model = build("llama")
    empty = WAYS[way](KVMMCache.for_model(model, "balanced")).attach(model)
    expected = generate(model, inputs("llama", 2))
    lossless = KVMMCache.for_model(model, "bf16", exact_dtype="model")
    assert torch.equal(generate(model, inputs("llama", 2), past_key_values=WAYS[way](lossless).attach(model)), expected)
    generate(model, inputs("llama", 2), past_key_values=empty)
    cache = KVMMCache.for_model(model, "spherical-high", budget=10**9, residual_length=0, flush_length=32)
    generate(model, inputs("llama", 1), past_key_values=cache)
    assert WAYS[way](cache).retention_report() == cache.retention_report()


def test_files_that_only_hold_weights_are_refused_with_torch_s_own_words():
    """A cache is an object: ``save`` and ``load`` are the way without unpickling."""
    buffer = io.BytesIO()
    torch.save(KVMMCache.for_model(build("llama"), "balanced"), buffer)
    buffer.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="weights_only"):
        torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral"])
def test_iteration_is_that_of_a_dynamic_cache(family):
    """Same tuples, so that a ``DynamicCache`` can be made of them; sliding windows come with theirs."""
    model, arguments = build(family), inputs(family, 1)
    dense = DynamicCache(config=model.config.get_text_config())
    expected = generate(model, arguments, past_key_values=dense)
    cache = KVMMCache.for_model(model, "bf16", residual_length=0, flush_length=32, exact_dtype="model")
    assert torch.equal(generate(model, arguments, past_key_values=cache), expected)
    assert len(list(cache)) == len(cache) == len(dense)
    for mine, theirs in zip(cache, dense, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert (a is None) is (b is None)
            if b is not None:
                torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    again = DynamicCache(list(cache), config=model.config.get_text_config())
    assert again.get_seq_length() == DynamicCache(list(dense), config=model.config.get_text_config()).get_seq_length()
    nothing = [(None, None), (None, None)]
    assert [x[:2] for x in KVMMCache.for_model(build("llama"), "balanced")] == nothing


def test_iteration_of_packed_layers_is_what_they_decode():
    model = build("qwen2_5_vl")
    cache = KVMMCache.for_model(model, "balanced", residual_length=0, flush_length=32)
    generate(model, inputs("qwen2_5_vl", 2), past_key_values=cache)
    for layer, (key, value, window) in zip(cache.layers, cache, strict=True):
        assert torch.equal(key, layer.dense()[0]) and torch.equal(value, layer.dense()[1]) and window is None
        assert key.shape[2] == cache.get_seq_length()


OPERATIONS = {
    "crop": (-3,),
    "reorder_cache": (torch.tensor([1, 0]),),
    "batch_repeat_interleave": (2,),
    "batch_select_indices": (torch.tensor([1]),),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("step", ["prompt", "packed"])
def test_operations_do_what_those_of_a_dynamic_cache_do(name, step):
    """On the same tokens, before anything is packed and after: same keys, values, lengths and masks."""
    model, arguments = build("llama"), inputs("llama", 2)
    caches = (
        DynamicCache(config=model.config),
        KVMMCache.for_model(model, "bf16", residual_length=0, flush_length=32, exact_dtype="model"),
    )
    for cache in caches:
        generate(model, arguments, past_key_values=cache, max_new_tokens=1 if step == "prompt" else 12)
        getattr(cache, name)(*OPERATIONS[name])
    dense, cache = caches
    assert cache.get_seq_length() == dense.get_seq_length()
    assert cache.get_mask_sizes(4, 0) == dense.get_mask_sizes(4, 0)
    hole = (cache.table.modality[:, : cache.table.length] < 0)[:, None, :, None]  # padding is not kept
    for mine, theirs in zip(cache, dense, strict=True):
        for a, b in zip(mine[:2], theirs[:2], strict=True):
            torch.testing.assert_close(a, b.masked_fill(hole, 0) if cache.is_packed else b)
    cache.reset()
    empty = DynamicCache(config=model.config)  # its own reset() leaves zeros in older versions
    assert cache.get_seq_length() == empty.get_seq_length() == 0
    assert cache.get_mask_sizes(4, 0) == empty.get_mask_sizes(4, 0)
    with pytest.raises(KVMMError, match=rf"call {name}\(\) of the cache"):
        getattr(cache.layers[0], name)(*OPERATIONS[name])
