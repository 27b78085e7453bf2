"""``output_attentions=True``: weights of the shape that ``generate`` expects, over packed tokens too."""

import pytest
import torch
from transformers import DynamicCache

from kvmm import KVMMCache
from tests.tiny_models import build, inputs

LOSSLESS = {"policy": "bf16", "residual_length": 0, "flush_length": 32, "num_sink_tokens": 2, "exact_dtype": "model"}
NEW = 5


def eager(family):
    model = build.__wrapped__(family)
    model.set_attn_implementation("eager")
    return model


def answer(model, arguments, cache, **options):
    options = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW} | options
    options |= {"output_attentions": True, "return_dict_in_generate": True}
    return model.generate(**arguments, past_key_values=cache, **options)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl", "gemma3", "qwen2_audio"])
def test_lossless_weights_are_those_of_eager(family, batch):
    """In every step and layer, of a left-padded batch too; the packed past is read by the model's own function."""
    model, arguments = eager(family), inputs(family, batch)
    expected = answer(model, arguments, DynamicCache(config=model.config.get_text_config()))
    cache = KVMMCache.for_model(model, **LOSSLESS)
    found = answer(model, arguments, cache)
    assert cache.is_packed
    assert torch.equal(found.sequences, expected.sequences)
    assert len(found.attentions) == len(expected.attentions) == NEW
    for mine, theirs in zip(found.attentions, expected.attentions, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    first = zip(found.attentions[0], expected.attentions[0], strict=True)
    assert all(torch.equal(a, b) for a, b in first)  # the prompt: the very same function on the very same tensors


def test_first_packed_step_has_the_same_bits_in_the_first_layer():
    """Nothing was read from pages before it, so queries are equal, and lossless keys in the order of the sequence."""
    model, arguments = eager("llama"), inputs("llama", 1)
    expected = answer(model, arguments, DynamicCache(config=model.config)).attentions[1][0]
    assert torch.equal(answer(model, arguments, KVMMCache.for_model(model, **LOSSLESS)).attentions[1][0], expected)


@pytest.mark.parametrize("policy", ["balanced", "oscar2", "kivi2", "spherical-high"])
def test_packed_weights_belong_to_the_decoded_keys(policy):
    """They sum to one, padding gets none, and asking for them changes no token."""
    model, arguments = eager("qwen2_5_vl"), inputs("qwen2_5_vl", 2)
    found = answer(model, arguments, KVMMCache.for_model(model, policy, residual_length=0, flush_length=32))
    length = arguments["input_ids"].shape[1]
    padding = arguments["attention_mask"][1] == 0
    assert padding.any()
    for step, layers in enumerate(found.attentions[1:], 1):
        for weights in layers:
            assert weights.shape == (2, 4, 1, length + step)
            torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 1))
            assert weights[1, ..., :length][..., padding].eq(0).all()
    cache = KVMMCache.for_model(model, policy, residual_length=0, flush_length=32)
    options = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW}
    assert torch.equal(found.sequences, model.generate(**arguments, past_key_values=cache, **options))


@pytest.mark.parametrize("mode", ["assistant", "lookup"])
def test_drafts_with_attentions(mode):
    model, arguments = eager("llama"), inputs("llama", 1)
    options = {"prompt_lookup_num_tokens": 3}
    if mode == "assistant":
        options = {"assistant_model": build.__wrapped__("llama")}
    expected = answer(model, arguments, DynamicCache(config=model.config), max_new_tokens=12, **options)
    found = answer(model, arguments, KVMMCache.for_model(model, **LOSSLESS), max_new_tokens=12, **options)
    assert torch.equal(found.sequences, expected.sequences)
    shapes = [[[weights.shape for weights in layers] for layers in x.attentions] for x in (found, expected)]
    assert shapes[0] == shapes[1]


def test_configured_attentions():
    """``config.output_attentions`` asks for them as the argument does."""
    model, arguments = eager("llama"), inputs("llama", 1)
    model.config.output_attentions = True
    cache = KVMMCache.for_model(model, **LOSSLESS)
    with torch.no_grad():
        model(**arguments, past_key_values=cache)
        length = arguments["input_ids"].shape[1]
        out = model(input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=cache)
        assert [w.shape for w in out.attentions] == [(1, 4, 1, length + 1)] * 2
        out = model(input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=cache, output_attentions=False)
    assert out.attentions is None


def test_static_buffers_give_weights_too(monkeypatch):
    """Where steps are captured, one that wants weights runs as usual and leaves the buffers right."""
    monkeypatch.setattr("kvmm.cache.support._on_gpu", lambda model: True)
    model, arguments = eager("llama"), inputs("llama", 1)
    expected = answer(model, arguments, DynamicCache(config=model.config), max_new_tokens=12)
    cache = KVMMCache.for_model(model, **LOSSLESS)
    found = answer(model, arguments, cache, max_new_tokens=12)
    assert torch.equal(found.sequences, expected.sequences)
    for mine, theirs in zip(found.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
    assert "output_attentions" in cache.graph.reason
    plain = KVMMCache.for_model(model, **LOSSLESS)
    tokens = model.generate(**arguments, do_sample=False, max_new_tokens=12, min_new_tokens=12, past_key_values=plain)
    assert torch.equal(tokens, expected.sequences) and plain.graph.eager > 5  # eager models replay too
