"""Who else uses a model that a cache was made for: nothing of it changes for them, with any attention of theirs."""

import copy
import functools
import gc
import inspect
import io
import pickle
import threading
import weakref

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from transformers import AttentionInterface, AutoModelForCausalLM, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kvmm import KVMMCache
from kvmm.cuda_graphs.decode import _Dispatcher
from kvmm.modality import PADDING, TEXT
from kvmm.policy import spec
from tests.cache.harness import Harness, layout, uniform
from tests.tiny_models import FAMILIES, build, generate, inputs

LOSSLESS = {"policy": "bf16", "residual_length": 0, "flush_length": 32, "num_sink_tokens": 2, "exact_dtype": "model"}


def fresh(family):
    """A model of its own: what a test does to it reaches no other test."""
    return build.__wrapped__(family)


def state(model):
    """What a model's configuration says, and what its instances hold beside parameters and modules."""
    config = model.config
    implementations = {name: getattr(config, name)._attn_implementation for name in config.sub_configs}
    modules = {name: sorted(set(vars(module)) - {"_is_full_backward_hook"}) for name, module in model.named_modules()}
    hooks = {name: (*m._forward_pre_hooks, *m._forward_hooks) for name, m in model.named_modules() if m is not model}
    return config.to_dict(), config._attn_implementation, implementations, modules, hooks


@pytest.mark.parametrize("family", FAMILIES)
def test_preparing_changes_nothing(family):
    model = build(family)
    generate(model, inputs(family), max_new_tokens=2)  # transformers' own hooks, which stay
    before, pickled = state(model), pickle.dumps(model.config)
    generate(model, inputs(family), past_key_values=KVMMCache.for_model(model, "balanced"), max_new_tokens=3)
    assert state(model) == before
    assert pickle.dumps(model.config) == pickled
    assert "kvmm" not in str(vars(copy.deepcopy(model.config)))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_other_calls_give_the_same_bits(implementation):
    """Logits, hidden states and attentions of a call without a cache, and tokens of one with a DynamicCache."""
    model, arguments = fresh("llama"), inputs("llama", 2)
    model.set_attn_implementation(implementation)
    model.generation_config.max_new_tokens = 4

    def seen():
        with torch.no_grad():
            out = model(**arguments, output_attentions=implementation == "eager", output_hidden_states=True)
        tokens = model.generate(**arguments, do_sample=False, past_key_values=DynamicCache(config=model.config))
        return [out.logits, *out.hidden_states, *(out.attentions or ()), tokens]

    before = seen()
    cache = KVMMCache.for_model(model, **LOSSLESS)
    packed = model.generate(**arguments, do_sample=False, past_key_values=cache)
    assert cache.is_packed and torch.equal(packed, before[-1])
    after = seen()
    assert len(after) == len(before)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_output_attentions_of_others_while_a_cache_is_in_use():
    """Threads: one packs and reads packed pages, the other asks the same model for attentions."""
    model, arguments = fresh("llama"), inputs("llama", 1)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**arguments, output_attentions=True)
    stop, errors = threading.Event(), []

    def talk():
        try:
            while not stop.is_set():
                generate(model, arguments, past_key_values=KVMMCache.for_model(model, **LOSSLESS))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        for _ in range(30):
            with torch.no_grad():
                found = model(**arguments, output_attentions=True)
            assert torch.equal(found.logits, expected.logits)
            assert all(torch.equal(a, b) for a, b in zip(found.attentions, expected.attentions, strict=True))
    finally:
        stop.set()
        thread.join()
    assert not errors


def test_release_takes_everything_away(monkeypatch):
    """Also what is installed where steps are captured; what somebody had put in place of ``forward`` comes back."""
    monkeypatch.setattr("kvmm.cache.support._on_gpu", lambda model: True)
    model = fresh("llama")
    KVMMCache.release(model)
    before = vars(model).keys() - {"_forward_pre_hooks"}
    own = model.forward

    def mine(*args, **kwargs):
        return own(*args, **kwargs)

    for forward in (None, mine):
        if forward is not None:
            model.forward = forward
        for _ in range(2):
            KVMMCache.for_model(model, "balanced")
        assert "forward" in vars(model) and len(model._forward_pre_hooks) == 1
        KVMMCache.release(model)
        KVMMCache.release(model)
        assert not model._forward_pre_hooks and not model._forward_pre_hooks_with_kwargs
        assert vars(model).get("forward") is forward
    del model.forward
    assert vars(model).keys() - {"_forward_pre_hooks"} == before


def test_copies_of_a_prepared_model(monkeypatch):
    """A deep copy announces its own calls once; a pickled model comes back with its class's ``forward``."""
    monkeypatch.setattr("kvmm.cache.support._on_gpu", lambda model: True)
    model = fresh("llama")
    KVMMCache.for_model(model, "balanced")
    twin = copy.deepcopy(model)
    cache = KVMMCache.for_model(twin, "balanced", graph=False)
    assert len(twin._forward_pre_hooks) == 1
    arguments = inputs("llama", 2)
    generate(twin, arguments, past_key_values=cache, max_new_tokens=3)
    assert cache.memory().tokens == int(arguments["attention_mask"].sum()) + 2 * 2  # padding was announced
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert torch.equal(loaded(**arguments).logits, model(**arguments).logits)
    assert loaded.forward.__self__ is loaded
    dead = weakref.ref(model)
    del model, twin, cache
    gc.collect()
    assert dead() is None


def _doubled(model, *args, **kwargs):
    out = type(model).forward(model, *args, **kwargs)
    out.logits = 2 * out.logits
    return out


def test_pickles_keep_a_forward_of_the_owner_s(monkeypatch):
    """What was put in place of ``forward`` before, such as hooks of accelerate, is pickled as it would be."""
    monkeypatch.setattr("kvmm.cache.support._on_gpu", lambda model: True)
    model, arguments = fresh("llama"), inputs("llama", 1)
    model.forward = functools.partial(_doubled, model)
    with torch.no_grad():
        expected = model(**arguments).logits
        KVMMCache.for_model(model, "balanced")
        assert isinstance(model.forward, _Dispatcher)
        loaded = pickle.loads(pickle.dumps(model))
        assert torch.equal(loaded(**arguments).logits, expected)
    assert loaded.forward.args == (loaded,) and loaded.forward.func is _doubled


@pytest.mark.parametrize("count", [1, 4])
def test_masks_of_any_attention(count):
    """The mask that FlashAttention, SDPA, eager or flex attention would get says the same to a packed layer."""
    h = Harness(uniform(spec("kivi", 4, 32), residual_length=16, flush_length=32))
    h.feed([layout((TEXT, 90)), layout((PADDING, 30), (TEXT, 60))])
    h.feed([[TEXT], [TEXT]])
    if count > 1:
        h.feed([[TEXT] * count, [TEXT] * count])
    query = h.random(2, 6, count, 64)
    visible, length = h.visible(count), h.valid.shape[1]

    def seen(batch, head, q, kv):
        return visible[batch, 0, q, kv]

    masks = [
        h.valid,
        visible,
        torch.where(visible, 0.0, torch.finfo(torch.float32).min),
        create_block_mask(seen, 2, None, count, length, device="cpu"),
    ]
    outputs = [h.layer.attend(query, mask, 0.125) for mask in masks]
    key, value = (x.repeat_interleave(3, 1) for x in h.layer.dense())
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=0.125)
    for output in outputs:
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


def test_saved_models_know_nothing(tmp_path):
    model = fresh("llama")
    KVMMCache.for_model(model, "balanced")
    model.save_pretrained(tmp_path)
    assert "kvmm" not in (tmp_path / "config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    arguments = inputs("llama", 1)
    assert torch.equal(loaded(**arguments).logits, model(**arguments).logits)


def test_dispatch_passes_everything_else_through():
    """The function that transformers finds is called with exactly what the model gave; only handles go elsewhere."""
    KVMMCache.for_model(fresh("llama"), "bf16")
    interface = AttentionInterface()
    assert interface["sdpa"] is sdpa_attention_forward  # what is registered stays what it was
    seen = []
    interface["mine"] = lambda *args, **kwargs: seen.append((args, kwargs))
    key = torch.zeros(1, 1, 1, 4)
    interface.get_interface("mine", None)("module", "query", key, "value", "mask", 0.5, extra=1)
    assert seen == [(("module", "query", key, "value", "mask", 0.5), {"extra": 1})]
    with pytest.raises(KeyError, match="unknown"):
        interface.get_interface("unknown", None)
    assert list(inspect.signature(AttentionInterface.get_interface).parameters)[1:] == [
        "attn_implementation",
        "default",
    ]


def test_compiled_bystanders_have_no_graph_break():
    model, arguments = fresh("qwen3"), inputs("qwen3", 1)
    with torch.no_grad():
        expected = model(**arguments, use_cache=False).logits
    KVMMCache.for_model(model, "balanced")
    compiled = torch.compile(model.forward, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(**arguments, use_cache=False).logits, expected)
