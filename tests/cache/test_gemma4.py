"""Gemma 4, whose layers differ in heads and head_dim and may share keys and values."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, LlamaConfig

from kvmm import KVMMCache, KVMMError
from kvmm.analysis.cost.model import CostModel
from kvmm.analysis.cost.shapes import shape_of
from kvmm.analysis.errors import measure_errors
from kvmm.analysis.norms.measure import record_norms
from kvmm.calibration.heads import HeadShape, configured_heads, head_shapes, local_heads
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
    for one in (given, short):
        with pytest.raises(KVMMError, match="read the keys and values of other layers"):
            record_norms(gemma4(2), one)
    for shared, layers in ((0, (1, 3)), (2, (1,))):
        assert measure_errors(gemma4(shared), given, ["kivi2"]).layers == layers
