"""Gemma 4, whose layers differ in heads and head_dim and may share keys and values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from accelerate import dispatch_model
from transformers import DynamicCache, LlamaConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextModel

from kvmm import KVMMCache, KVMMError
from kvmm.analysis.cost.model import CostModel
from kvmm.analysis.cost.shapes import shape_of
from kvmm.analysis.errors import measure_errors
from kvmm.analysis.norms.measure import record_norms
from kvmm.calibration.heads import HeadShape, configured_heads, head_shapes, local_heads
from kvmm.modality import TEXT
from kvmm.models.caches import crop_cache
from kvmm.policy import get_policy
from tests.tiny_models import NEW_TOKENS, gemma4, gemma4_inputs, generate

SHARED = pytest.mark.parametrize("shared", [0, 2], ids=["own", "shared"])


@SHARED
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_lossless_policy_gives_the_same_tokens(shared, attention):
    model, given = gemma4(shared), gemma4_inputs()
    model.set_attn_implementation(attention)
    expected = generate(model, given)
    assert len(set(expected[0, -NEW_TOKENS:].tolist())) > 5  # a model that repeats itself would prove nothing
    for static in ({}, {"max_length": 120}):
        cache = KVMMCache.for_model(
            model, "bf16", residual_length=0, flush_length=32, num_sink_tokens=2, exact_dtype="model", **static
        )
        assert torch.equal(generate(model, given, past_key_values=cache), expected)
        assert cache.is_packed and set(cache.memory().by_modality) == {"text", "image"}
        assert cache.memory().tokens == given["input_ids"].shape[1] + NEW_TOKENS - 1


@SHARED
@pytest.mark.parametrize("policy", ["oscar2", "balanced", "kivi2", "rotatekv2", "spherical-mid", "rd2"])
def test_packed_policies_generate(shared, policy, tmp_path):
    """What is generated after the cache was saved and read again is what goes on without."""
    model, given = gemma4(shared), gemma4_inputs()
    cache = KVMMCache.for_model(model, policy, residual_length=16, flush_length=32)
    tokens = generate(model, given, past_key_values=cache)
    assert tokens.shape[1] == given["input_ids"].shape[1] + NEW_TOKENS and cache.is_packed
    cache.save(tmp_path / "cache.safetensors")
    again = KVMMCache.load(tmp_path / "cache.safetensors", model)
    more = {"attention_mask": torch.ones_like(tokens), "input_ids": tokens}
    went_on = [generate(model, more, past_key_values=one) for one in (cache, again)]
    assert torch.equal(*went_on)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("policy", ["bf16", "balanced", "kitty"])
def test_layers_of_another_device_read_the_pages(policy, attention, tmp_path):
    """The layers that made the keys and values are on the CPU, those that share them on a GPU, or their weights on a
    disk: accelerate asks for everything that a layer is given on its device."""
    model, given = gemma4(2), gemma4_inputs()
    model.set_attn_implementation(attention)
    fields = {"residual_length": 0, "flush_length": 32, "exact_dtype": "model"}
    expected = generate(model, given, past_key_values=KVMMCache.for_model(model, policy, **fields))
    text, elsewhere = model.model.language_model, 0 if torch.cuda.is_available() else "disk"
    devices = {f"model.language_model.layers.{layer}": "cpu" if layer < 2 else elsewhere for layer in range(4)}
    for name, module in (("", model), ("model.", model.model), ("model.language_model.", text)):
        others = (child for child, inside in module.named_children() if text.layers not in inside.modules())
        devices |= {name + child: "cpu" for child in others}
    given_as_it_is = model._skip_keys_device_placement  # as from_pretrained() does
    model = dispatch_model(model, devices, "cpu", offload_dir=tmp_path, skip_keys=given_as_it_is)
    cache = KVMMCache.for_model(model, policy, **fields)
    assert torch.equal(generate(model, given, past_key_values=cache), expected)
    assert cache.is_packed and {x.device.type for x in cache.layers[1].dense()} == {"cpu"}


@SHARED
def test_a_policy_counts_the_layers_as_the_model_does(shared):
    model, policy = gemma4(shared), get_policy("kivi2")
    for layer, found in ((-1, [] if shared else [3]), (3, [] if shared else [3]), (-3, [1]), (1, [1])):
        cache = KVMMCache.for_model(model, replace(policy, skip_layers=(layer,)))
        codecs = {index: cache.layers[index].codecs[TEXT][0] for index in cache.packed_layers}
        assert [index for index, codec in codecs.items() if codec.spec.is_lossless] == found
    with pytest.raises(KVMMError, match="names layer 4, but the model has 4"):
        KVMMCache.for_model(model, replace(policy, skip_layers=(4,)))


@SHARED
def test_a_cache_goes_back_within_the_window(shared):
    model, cache = gemma4(shared), None
    for cache in (KVMMCache.for_model(model, "kivi2"), DynamicCache(config=model.config)):
        model(input_ids=torch.arange(3, 13)[None], past_key_values=cache)
        assert crop_cache(cache, 6) is cache and cache.get_seq_length() == 6


@SHARED
def test_a_head_dim_that_a_codec_cannot_store_is_one_line(shared):
    model = gemma4(shared)
    for layer in range(1, 4, 2):
        model.config.text_config._heterogeneity_spec.per_layer_overrides[layer]["head_dim"] = 33
    with pytest.raises(KVMMError, match="33") as error:
        KVMMCache.for_model(model, "oscar2")
    assert "\n" not in str(error.value)


def test_heads_are_those_of_each_layer():
    model = gemma4()
    assert [(one.heads, one.key_dim) for one in configured_heads(model.config.text_config)] == [(2, 16), (1, 32)] * 2
    described = head_shapes(model)  # not the layers without a projection of values
    assert sorted(described) == [0, 2] and described[0] == configured_heads(model.config.text_config)[0]
    assert local_heads(model) is None
    plain = LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3)
    assert configured_heads(plain) == [HeadShape(2, 16, 16)] * 3


def test_a_plan_counts_the_bytes_of_both_kinds_of_layers():
    model, given = gemma4(), gemma4_inputs()
    shape = shape_of(model.config)
    assert (shape.num_key_value_heads, shape.head_dim, shape.sliding_heads) == (1, 32, (2, 16))
    model = model.to(torch.bfloat16)
    policy = get_policy("kivi2", residual_length=16, flush_length=32)
    cache = KVMMCache.for_model(model, policy)
    generate(model, given | {"pixel_values": given["pixel_values"].bfloat16()}, past_key_values=cache)
    counts = {name: one["tokens"] for name, one in cache.memory().by_modality.items()}
    planned = CostModel(shape, policy, dtype=torch.bfloat16).cost(counts)
    window = shape.sliding_window  # a plan counts the token that leaves as the newest comes
    assert planned.by_component["sliding"] * (window - 1) == cache.memory().by_component["sliding"] * window
    with pytest.raises(KVMMError, match="full and sliding"):
        shape_of(gemma4(2).config)


def test_what_cannot_be_analysed_is_one_line():
    given = gemma4_inputs()
    with pytest.raises(KVMMError, match="different numbers of KV heads"):
        record_norms(gemma4(), given)
    short = {"input_ids": given["input_ids"][:, :10]}  # without a mask
    # newer versions leave out the queries of such layers, but for the last; in older ones only the heads are in the way
    sliced = hasattr(Gemma4TextModel, "_maybe_slice_kv_shared_inputs")
    reason = "read the keys and values of other layers" if sliced else "different numbers of KV heads"
    for one in (given, short):
        with pytest.raises(KVMMError, match=reason):
            record_norms(gemma4(2), one)
    for shared, layers in ((0, (1, 3)), (2, (1,))):
        assert measure_errors(gemma4(shared), given, ["kivi2"]).layers == layers
