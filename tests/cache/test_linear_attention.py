"""Models with layers of linear attention beside those of full attention (LFM2, Qwen3.5): their states stay as they
are, and are counted."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    DynamicCache,
    FalconH1Config,
    FalconH1ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Zamba2Config,
    Zamba2ForCausalLM,
)

from kvmm import KVMMCache, KVMMError
from kvmm.cache.memory import storages
from kvmm.cache.retention import resident_nbytes
from kvmm.models.caches import cache_nbytes
from tests.cache import test_memory
from tests.tiny_models import VOCAB, build, generate

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
_LINEAR = {f"linear_{name}": 16 for name in ("key_head_dim", "value_head_dim")}
_LINEAR |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}


def lfm2():
    types = ["conv", "full_attention"] * 2
    return Lfm2ForCausalLM(Lfm2Config(**_SIZES, layer_types=types, block_auto_adjust_ff_dim=False))


def qwen3_5():
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**_SIZES, **_LINEAR, head_dim=16))


@pytest.fixture(scope="module", params=[lfm2, qwen3_5], ids=lambda make: make.__name__)
def model(request):
    torch.manual_seed(0)
    return request.param().eval()


def arguments():
    ids = torch.arange(2 * 90).view(2, 90) % 100 + 1
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def dynamic(model):
    return DynamicCache(config=model.config.get_text_config(decoder=True))


def test_lossless_policy_gives_the_same_tokens(model):
    expected = generate(model, arguments(), past_key_values=dynamic(model))
    assert torch.equal(generate(model, arguments(), past_key_values=KVMMCache.for_model(model, "bf16")), expected)


def test_bytes_equal_the_tensors_found(model):
    cache, other = KVMMCache.for_model(model, "balanced"), dynamic(model)
    for one in (cache, other):
        generate(model, arguments(), past_key_values=one, max_new_tokens=8)
    report, found = cache.memory(), sum(test_memory.storages(cache).values())
    assert report.nbytes == found == resident_nbytes(cache) == sum(storages(cache).values()) == cache_nbytes(cache)
    assert report.nbytes == sum(report.by_component.values())
    assert report.held_nbytes == sum(m["nbytes"] for m in report.by_modality.values())
    assert report.nbytes_dense == sum(m["nbytes_dense"] for m in report.by_modality.values())
    assert cache_nbytes(other) == sum(test_memory.storages(other).values())
    states = [cache.layers[i] for i in range(len(cache.layers)) if i not in cache.packed_layers]
    assert report.by_component["state"] == sum(sum(test_memory.storages(vars(layer)).values()) for layer in states) > 0


def test_a_recurrent_state_does_not_go_back(model):
    cache = KVMMCache.for_model(model, "bf16")
    cache.activate_past_recording()
    ids = arguments()["input_ids"][1:]
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache)
        if any(type(layer).__name__ == "LinearAttentionLayer" and not layer.is_croppable for layer in cache.layers):
            with pytest.raises(KVMMError, match="recurrent state"):
                cache.crop(-5)
            assert cache.get_seq_length(cache.packed_layers[0]) == 90 and not cache.step.cropped
            return
        cache.crop(-5)
        logits = model(input_ids=ids[:, -5:], past_key_values=cache).logits
        expected = model(input_ids=ids).logits[:, -5:]
    torch.testing.assert_close(logits, expected, atol=0.05, rtol=0.05)


def falcon_h1():
    sizes = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16}
    return FalconH1ForCausalLM(FalconH1Config(**_SIZES, **sizes))


def zamba2():
    sizes = {"mamba_d_state": 16, "n_mamba_heads": 4, "mamba_ngroups": 1, "hybrid_layer_ids": [1, 3]}
    return Zamba2ForCausalLM(Zamba2Config(**_SIZES, **sizes, layers_block_type=["mamba", "hybrid"] * 2))


@pytest.mark.parametrize(("make", "told"), [(falcon_h1, "All layers of FalconH1Config"), (zamba2, "2 of 4 layers")])
def test_layers_that_are_both_stay_as_they_are(make, told):
    torch.manual_seed(0)
    model = make().eval()
    with pytest.warns(UserWarning, match=told):
        cache = KVMMCache.for_model(model, "balanced")
    expected = generate(model, arguments(), past_key_values=dynamic(model))
    assert torch.equal(generate(model, arguments(), past_key_values=cache), expected)
    assert cache.memory().packed_tokens == 0


def test_a_budget_needs_pages():
    with pytest.raises(KVMMError, match="leave budget= out"):
        KVMMCache.for_model(build("mistral"), "kivi2", budget=10**6)
