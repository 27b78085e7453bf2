"""Models whose attention does not ask transformers' ``AttentionInterface`` for its function, as some remote code."""

import importlib.util
import sys

import pytest
import torch
from transformers import LlamaModel

from kvmm import KVMMCache
from kvmm.attention import PackedHandle, read_packed
from kvmm.errors import KVMMError
from tests.tiny_models import FAMILIES, build, inputs

SOURCE = """
from torch import nn
from torch.nn import functional as F
from transformers import LlamaModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv


class PlainAttention(nn.Module):
    def __init__(self, own):
        super().__init__()
        self.own = own

    def forward(self, hidden_states, position_embeddings=None, past_key_values=None, **kwargs):
        own, shape = self.own, (*hidden_states.shape[:2], -1, self.own.head_dim)
        query, key, value = (
            project(hidden_states).view(shape).transpose(1, 2) for project in (own.q_proj, own.k_proj, own.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, own.layer_idx)
        key, value = repeat_kv(key, own.num_key_value_groups), repeat_kv(value, own.num_key_value_groups)
        output = F.scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)
        return own.o_proj(output.transpose(1, 2).flatten(2)), None


class PlainModel(LlamaModel):
    pass
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A Llama with attention of its own, in a module of its own."""
    # a subclass would take the answer that was found for transformers' own class
    monkeypatch.delattr(LlamaModel, "_can_set_attn_implementation_cached_value", raising=False)
    path = tmp_path / "plain_remote_code.py"
    path.write_text(SOURCE)
    found = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, path.stem, module)
    found.loader.exec_module(module)
    model = build.__wrapped__("llama")
    model.model.__class__ = module.PlainModel
    for layer in model.model.layers:
        layer.self_attn = module.PlainAttention(layer.self_attn)
    return model


def test_refused_before_the_prompt(model):
    with pytest.raises(KVMMError, match=r"^LlamaForCausalLM is not supported.*AttentionInterface"):
        KVMMCache.for_model(model, "balanced")


@pytest.mark.parametrize("policy", ["balanced", "oscar2"])
def test_refused_in_a_clear_line_without_source(model, policy, monkeypatch):
    """A class of a notebook has no source to look at: it is tried."""
    monkeypatch.delitem(sys.modules, "plain_remote_code")
    cache = KVMMCache.for_model(model, policy)
    with pytest.raises(KVMMError, match="AttentionInterface"):
        model.generate(**inputs("llama", 1), past_key_values=cache, max_new_tokens=3)


def test_a_handle_stays_where_its_pages_are():
    """Layers that share keys and values ask for them on their own device; a dtype is asked for by own attention."""

    class Layer:
        packed = True

        def attend(self, query, attention_mask, scaling):
            assert query.device.type == "meta"
            return torch.ones(1, 2, 1, 4)

    handle = PackedHandle(Layer(), torch.device("meta"))
    assert handle.to(torch.device("cpu")) is handle is handle.to("cpu", non_blocking=True)
    output, _ = read_packed(None, "sdpa", torch.nn.Module(), torch.zeros(1, 2, 1, 4), handle, handle, None)
    assert output.device.type == "cpu" and output.shape == (1, 1, 2, 4)
    with pytest.raises(KVMMError, match="AttentionInterface"):
        handle.to(torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
def test_supported_families_are_not(family):
    assert KVMMCache.for_model(build(family), "balanced").layers


def test_dense_caches_serve_it(model):
    """The model itself works."""
    with torch.no_grad():
        assert model.generate(**inputs("llama", 1), max_new_tokens=3).shape[1] > 3
