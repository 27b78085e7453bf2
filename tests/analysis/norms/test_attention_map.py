"""Attention maps against eager attention, and the boxes of tokens over heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvmm.analysis import NormReport, record_attention
from kvmm.analysis.norms.attention_map import AttentionMap
from kvmm.analysis.norms.plots import MAX_TOKEN_BOXES, attention_heatmap, shown_tokens, token_boxes
from kvmm.errors import KVMMError
from kvmm.modality import IMAGE, TEXT
from tests.tiny_models import build, inputs


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("padding", [0, 7])
def test_it_is_the_attention_of_the_model(llama, padding):
    ids = torch.randint(1, 64, (2, 50), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :padding] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    with torch.no_grad():
        expected = llama(**given, output_attentions=True).attentions[1][1, :, padding:, padding:]
    found = record_attention(llama, given, 1, row=1)
    assert found.layer == 1 and found.queries.tolist() == list(range(50 - padding))
    np.testing.assert_allclose(found.weights, expected.numpy(), atol=1e-5)
    np.testing.assert_allclose(found.mean(), expected.mean(0).numpy(), atol=1e-5)
    assert llama.config._attn_implementation == "eager"


def test_long_prompts_are_bounded(llama):
    ids = torch.randint(1, 64, (1, 700), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = llama(input_ids=ids, output_attentions=True).attentions[2][0].numpy()
    found = record_attention(llama, {"input_ids": ids}, 2)
    assert found.weights.shape == (4, 256, 512)
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)
    columns = np.add.reduceat(expected, found.starts, axis=-1)[:, found.queries]
    np.testing.assert_allclose(found.weights, columns, atol=1e-5)


def test_the_figure_of_a_multimodal_prompt():
    found = record_attention(build("qwen2_5_omni"), inputs("qwen2_5_omni"), 0)
    assert found.modalities() == ["text", "image", "audio"]
    figure = attention_heatmap(found, 1)
    cells = np.asarray(figure.data[1].z, dtype=float)
    np.testing.assert_allclose(cells, np.log10(np.maximum(found.mean(1), 1e-3)), atol=1e-3)
    assert {trace.name for trace in figure.data[2:]} == {"text", "image", "audio"}
    assert attention_heatmap(found).layout.yaxis2.autorange == "reversed"  # the first query on top


def test_what_is_not_there_is_refused(llama):
    ids = torch.ones(1, 9, dtype=torch.long)
    with pytest.raises(KVMMError, match="no layer 9"):
        record_attention(llama, {"input_ids": ids}, 9)
    with pytest.raises(KVMMError, match="input_ids"):
        record_attention(llama, {}, 0)
    with pytest.raises(KVMMError, match="no query head 4"):
        record_attention(llama, {"input_ids": ids}, 0).mean(4)


def norm_report(tokens: int) -> NormReport:
    """Norms of 6 heads about 10, a sink of norm 1 in front, and a token on which the heads disagree."""
    rng = np.random.default_rng(0)
    key = 10 + rng.normal(0, 0.3, (2, 6, tokens)).astype(np.float32)
    key[:, :, 0] = 1
    key[1, :, tokens // 2] = np.linspace(2, 40, 6)
    modality = np.full(tokens, TEXT, dtype=np.int8)
    modality[tokens // 4 : tokens // 3] = IMAGE
    return NormReport((0, 1), key, key, None, modality)


@pytest.mark.parametrize("tokens", [40, 5000])
def test_boxes_of_tokens_are_over_heads(tokens):
    report = norm_report(tokens)
    chosen = shown_tokens(report, "key", 1)
    assert len(chosen) <= MAX_TOKEN_BOXES and {0, tokens // 2, tokens - 1} <= set(chosen.tolist())
    assert (np.diff(chosen) > 0).all() and (len(chosen) == tokens) == (tokens == 40)
    figure = token_boxes(report, "key", 1)
    boxes = {int(x): (low, q1, median, q3, high) for t in figure.data for x, low, q1, median, q3, high in _five(t)}
    assert sorted(boxes) == chosen.tolist() == [int(x) for x in figure.layout.xaxis.categoryarray]
    for token in (0, tokens // 2, tokens - 1):
        expected = np.quantile(report.key[1, :, token], (0.05, 0.25, 0.5, 0.75, 0.95))
        np.testing.assert_allclose(boxes[token], expected, atol=1e-3)
    of_image = {int(x) for trace in figure.data if trace.name == "image" for x in trace.x}
    assert of_image == {int(i) for i in chosen if report.modality[i] == IMAGE}


def _five(trace):
    return zip(trace.x, trace.lowerfence, trace.q1, trace.median, trace.q3, trace.upperfence, strict=True)


def test_a_map_is_a_plain_record():
    weights = np.full((2, 1, 3), 1 / 3, dtype=np.float32)
    found = AttentionMap(4, np.array([2]), np.arange(3), weights, np.zeros(3, dtype=np.int8))
    assert found.mean(1).shape == (1, 3) and found.modalities() == ["text"]
