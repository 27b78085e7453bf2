"""Recorded norms against keys, values and queries computed directly; the measures against hand-made reports."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    AttentionInterface,
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from kvmm.analysis import NormReport, record_norms
from kvmm.errors import KVMMError

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen3 (query norm)": (Qwen3ForCausalLM, Qwen3Config, {}),
    "gemma3 (heads first, sliding window)": (Gemma3ForCausalLM, Gemma3TextConfig, {"sliding_window": 6}),
    "llama (scaled rope)": (
        LlamaForCausalLM,
        LlamaConfig,
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}},
    ),
}


def build(name: str):
    model_class, config_class, extra = MODELS[name]
    torch.manual_seed(0)
    model = model_class(config_class(**SIZES, **extra)).eval()
    for parameter_name, parameter in model.named_parameters():
        if "q_norm" in parameter_name:  # as initialised, every query would have the same norm and hide a mix-up
            torch.nn.init.normal_(parameter)
    return model


def direct(model, inputs):
    """Q, K, V of every layer as attention sees them."""
    seen = []

    def spy(module, query, key, value, *args, **kwargs):
        seen.append((query.detach(), key.detach(), value.detach()))
        return sdpa_attention_forward(module, query, key, value, *args, **kwargs)

    AttentionInterface.register("spy", spy)
    AttentionMaskInterface.register("spy", sdpa_mask)  # without one there is no sliding window
    before = model.config._attn_implementation
    model.set_attn_implementation("spy")
    try:
        with torch.no_grad():
            model(**inputs, past_key_values=DynamicCache(config=model.config), use_cache=True)
    finally:
        model.set_attn_implementation(before)
    return [[tensor.norm(dim=-1) for tensor in layer] for layer in seen]


@pytest.mark.parametrize("tokens", [11, 4])  # 4 is also the number of query heads
@pytest.mark.parametrize("name", MODELS)
def test_norms_equal_a_direct_computation(name, tokens):
    model = build(name)
    inputs = {"input_ids": torch.randint(0, 64, (1, tokens))}
    report = record_norms(model, inputs)
    for layer, (query, key, value) in enumerate(direct(model, inputs)):
        for got, want in ((report.query, query), (report.key, key), (report.value, value)):
            np.testing.assert_allclose(got[layer], want[0].numpy(), rtol=1e-4)
    assert report.layers == (0, 1, 2)
    assert (report.modality == 0).all() and report.modality.shape == (tokens,)


def test_padding_is_left_out():
    model = build("llama")
    ids = torch.randint(1, 64, (1, 7))
    alone = record_norms(model, {"input_ids": ids})
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], dim=1)
    batch = {
        "input_ids": torch.cat([torch.randint(1, 64, (1, 10)), padded]),
        "attention_mask": torch.tensor([[1] * 10, [0] * 3 + [1] * 7]),
    }
    batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    second = record_norms(model, batch, row=1)
    np.testing.assert_allclose(second.key, alone.key, rtol=1e-4)
    np.testing.assert_allclose(second.query, alone.query, rtol=1e-4)


def test_the_model_is_left_as_it_was():
    model = build("qwen3 (query norm)")
    hooks = [len(module._forward_hooks) for module in model.modules()]
    inputs = {"input_ids": torch.randint(0, 64, (1, 5))}
    before = model(**inputs).logits
    report = record_norms(model, inputs, queries=False)
    assert report.query is None
    with pytest.raises(KVMMError, match="query norms"):
        report.norms("query")
    assert hooks == [len(module._forward_hooks) for module in model.modules()]
    assert torch.equal(before, model(**inputs).logits)
    with pytest.raises(KVMMError, match="input_ids"):
        record_norms(model, {})


def report_of(key: np.ndarray, modality: list[int]) -> NormReport:
    return NormReport(tuple(range(len(key))), key, key, None, np.array(modality, dtype=np.int8))


def test_measures_of_imbalance():
    key = np.array([[[1.0, 3.0, 1.0, 3.0]], [[5.0, 5.0, 5.0, 5.0]]], dtype=np.float32)
    report = report_of(key, [0, 1, 0, 1])
    np.testing.assert_allclose(report.coefficient_of_variation()[:, 0], [0.5, 0.0])
    np.testing.assert_allclose(report.modality_gap(), [3.0, 1.0])
    assert report.modalities() == ["text", "image"]
    np.testing.assert_allclose(report.quantiles("key", "image")[0], [3.0] * 5)
    with pytest.raises(KVMMError, match="audio"):
        report.quantiles("key", "audio")
    with pytest.raises(KVMMError, match="unknown kind"):
        report.norms("keys")
    # Heads are combined by their energy: 3 and 4 give the root mean square of 25.
    two = report_of(np.array([[[3.0], [4.0]]], dtype=np.float32), [0])
    np.testing.assert_allclose(two.by_token(), [[np.sqrt(12.5)]])


def test_outliers_are_found_on_both_sides_and_only_there():
    rng = np.random.default_rng(0)
    norms = np.exp(rng.normal(0, 0.05, 200)).astype(np.float32) * 10
    norms[17], norms[90] = 40.0, 2.0
    report = report_of(norms[None, None], [0] * 100 + [1] * 100)
    found = report.outliers("key", 0, count=2)
    assert {row["position"] for row in found} == {17, 90}
    assert {row["modality"] for row in found} == {"text"}
    assert found[0]["score"] >= found[1]["score"] > 3.5
    assert report_of(np.full((1, 1, 9), 7.0, dtype=np.float32), [0] * 9).outliers("key", 0) == []
