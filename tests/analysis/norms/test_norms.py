"""Recorded norms against keys, values and queries computed directly; the measures against hand-made reports."""

from __future__ import annotations

import gc
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import (
    AttentionInterface,
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from kvmm.analysis import NormReport, record_norms
from kvmm.analysis.common import recording
from kvmm.analysis.norms import measure as norms
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


# -- bounded memory ----------------------------------------------------------------------------------------------


def padded_batch(tokens: int = 40) -> dict[str, torch.Tensor]:
    mask = torch.ones(2, tokens, dtype=torch.long)
    mask[1, :9] = 0
    return {"input_ids": torch.randint(1, 64, (2, tokens)), "attention_mask": mask}


@pytest.mark.parametrize("name", ["llama", "gemma3 (heads first, sliding window)"])
def test_attention_in_blocks_is_attention(name, monkeypatch):
    """What later layers see depends on it, with padding, with windows, and at the seams of blocks."""
    monkeypatch.setattr(recording, "QUERY_BLOCK", 7)
    model, inputs = build(name), padded_batch()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(**inputs, past_key_values=cache, use_cache=True)
    for row in (0, 1):
        keep = inputs["attention_mask"][row].bool()
        report = record_norms(model, inputs, row=row)
        for layer in report.layers:
            want = cache.layers[layer].keys[row].norm(dim=-1)  # a window keeps the newest tokens only
            want = want[:, keep[-want.shape[1] :]].numpy()
            np.testing.assert_allclose(report.key[layer][:, -want.shape[1] :], want, rtol=1e-4)
    with pytest.raises(KVMMError, match="no sequence 2"):
        record_norms(model, inputs, row=2)


def test_keys_values_and_masks_are_not_kept(monkeypatch):
    """Layer by layer, no more than one layer's keys and values exist, and nothing of tokens x tokens."""
    model, tokens, counts = build("gemma3 (heads first, sliding window)"), 300, []
    inputs = {"input_ids": torch.randint(1, 64, (1, tokens))}

    def tensors():
        return [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]

    earlier = tensors()  # models of other tests
    others = {id(x) for x in earlier}

    def spy(self, seen):
        alive = [x for x in tensors() if id(x) not in others]
        heads = [x for x in alive if x.dim() == 4 and x.shape[1:] == (2, tokens, 16)]
        square = [x for x in alive if x.dim() >= 2 and min(x.shape[-2:]) >= tokens]
        counts.append((len({x.data_ptr() for x in heads}), len(square)))
        original(self, seen)

    original = norms._Recorder.__call__
    monkeypatch.setattr(norms._Recorder, "__call__", spy)
    report = record_norms(model, inputs, attention=True)
    assert report.key.shape == (3, 2, tokens) and len(counts) == 3
    assert max(keys for keys, _ in counts) <= counts[0][0] <= 6  # this layer's, before and after RoPE
    assert max(square for _, square in counts) == 0


def test_layers_that_share_keys_are_left_out():
    torch.manual_seed(0)
    config = Gemma3nTextConfig(
        vocab_size=64, vocab_size_per_layer_input=64, hidden_size=32, hidden_size_per_layer_input=8,
        intermediate_size=48, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 2, sliding_window=6,
        laurel_rank=4, altup_num_inputs=2, activation_sparsity_pattern=[0.0] * 4,
    )  # fmt: skip
    report = record_norms(Gemma3nForCausalLM(config).eval(), {"input_ids": torch.randint(1, 64, (1, 20))})
    assert report.layers == (0, 1) and report.query.shape == (2, 2, 20)


def test_the_attention_that_tokens_get():
    model = build("llama")
    inputs = {"input_ids": torch.randint(1, 64, (1, 30))}
    report = record_norms(model, inputs, attention=True)  # fewer than 128 tokens: every query counts
    eager = build("llama")
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        weights = eager(**inputs, output_attentions=True).attentions
    for layer in range(3):
        want = weights[layer][0].sum(1) / torch.arange(30, 0, -1)  # [H, T], over the queries that see a token
        np.testing.assert_allclose(report.attention[layer][:, :23], want[:, :23].numpy(), rtol=1e-3)
    assert np.isnan(report.attention[..., 23:]).all()  # seen by fewer than eight
    assert eager.config._attn_implementation == "eager" and model.config._attn_implementation == "sdpa"


# -- measures ----------------------------------------------------------------------------------------------------


def quiet_norms(tokens: int = 200) -> np.ndarray:
    return np.exp(np.random.default_rng(0).normal(0, 0.05, tokens)).astype(np.float32) * 10


def test_sinks_draw_attention_or_lead():
    norms = quiet_norms()
    norms[[0, 60, 120]] = 3.0, 2.0, 40.0
    report = report_of(norms[None, None], [0] * 100 + [1] * 100)
    assert [row["position"] for row in report.sinks("key", 0)] == [0]  # not measured: low norm at the beginning
    attention = np.full((1, 2, 200), 0.001, dtype=np.float32)
    attention[0, 1, [5, 60, 120]] = 0.5  # 5 draws attention with an ordinary norm
    attention[..., -7:] = np.nan
    measured = replace(report, attention=attention)
    found = measured.sinks("key", 0)
    assert [row["position"] for row in found] == [60, 120] and found[0]["ratio"] < 0.3 < 3 < found[1]["ratio"]
    assert found[0]["attention"] == 0.5 and measured.summary("key")["sinks"] == [60, 120]


def test_ratios_and_summary():
    key = np.array([[[1.0, 1.0, 4.0, 1.0]], [[2.0, 2.0, 2.0, 2.0]]], dtype=np.float32)
    report = report_of(key, [0, 0, 1, 1])
    np.testing.assert_allclose(report.max_median_ratio()[:, 0], [4, 1])
    np.testing.assert_allclose(report.max_median_ratio("key", "image")[:, 0], [1.6, 1])
    np.testing.assert_allclose(report.coefficient_of_variation("key", "text"), 0)
    summary = report.summary()
    assert summary["worst_layer"] == 0 and summary["max_median_ratio"] == 4 and summary["gap"] == 2.5
    assert summary["variation_by_modality"]["text"] == 0 < summary["variation_by_modality"]["image"]
    np.testing.assert_allclose(report.head_quantiles("key", 0, "text"), [[1] * 5])


def test_json_is_bounded_and_keeps_outliers():
    norms = quiet_norms(10_000)
    norms[7777] = 99.0
    report = report_of(norms[None, None], [0] * 5000 + [1] * 5000)
    assert report.to_dict()["bins"][1] - report.to_dict()["bins"][0] == 2
    text = json.dumps(report.to_dict(), allow_nan=False)
    found = json.loads(text)
    assert len(found["key"]["norms"][0]) == 4096 and max(found["key"]["norms"][0]) == 99.0
    assert found["key"]["outliers"][0][0]["position"] == 7777 and "query" not in found and len(text) < 200_000
    short = report_of(norms[None, None, :50], [0] * 50).to_dict()
    assert short["bins"] is None and len(short["modality"]) == 50
