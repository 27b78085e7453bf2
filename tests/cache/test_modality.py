"""Which modality every token is, and how the cache learns it."""

import pytest
import torch
from transformers import LlamaConfig, MambaConfig, T5Config, T5ForConditionalGeneration

from kvmm import KVMMCache, KVMMError
from kvmm.modality import AUDIO, IMAGE, MODALITY_NAMES, PADDING, TEXT, modality_of_ids
from tests import tiny_models
from tests.tiny_models import build, inputs


def test_map_of_ids():
    model = build("qwen2_5_omni")
    ids = torch.tensor([[1, tiny_models.IMAGE, tiny_models.AUDIO, 5]])
    codes = modality_of_ids(ids, model.config)
    assert codes.dtype == torch.int8
    assert codes.tolist() == [[TEXT, IMAGE, AUDIO, TEXT]]
    assert MODALITY_NAMES[AUDIO] == "audio"


def test_hook_sees_interleaved_modalities_and_padding():
    model = build("qwen2_5_omni")
    arguments = inputs("qwen2_5_omni", 2)
    cache = KVMMCache.for_model(model, "bf16")
    KVMMCache.for_model(model, "bf16")  # a second cache must not install a second hook
    with torch.no_grad():
        model(**arguments, past_key_values=cache, use_cache=True)
    expected = modality_of_ids(arguments["input_ids"], model.config)
    expected = expected.masked_fill(arguments["attention_mask"] == 0, PADDING)
    assert torch.equal(cache.table.modality, expected)
    assert len(model._forward_pre_hooks) == 1


def test_inputs_embeds_need_a_map():
    model = build("llava")
    embeds = torch.randn(1, 12, 64)
    with pytest.raises(KVMMError, match="modality="), torch.no_grad():  # images are stored unlike text
        model(inputs_embeds=embeds, past_key_values=KVMMCache.for_model(model, "calibquant2"), use_cache=True)
    codes = torch.tensor([[TEXT] * 4 + [IMAGE] * 8])
    cache = KVMMCache.for_model(model, "calibquant2", modality=codes)
    with torch.no_grad():
        model(inputs_embeds=embeds, past_key_values=cache, use_cache=True)
    assert cache.table.modality.tolist() == codes.tolist()
    with pytest.raises(KVMMError, match="12 new tokens"), torch.no_grad():
        cache = KVMMCache.for_model(model, "bf16", modality=codes[:, :5])
        model(inputs_embeds=embeds, past_key_values=cache, use_cache=True)


def test_a_call_of_the_inner_model_is_told(recwarn):
    """The hook is the outer model's: kvpress and others read a prompt with ``model.model``, which spares the logits."""
    model, arguments = build("qwen2_5_vl"), inputs("qwen2_5_vl", 2)
    arguments["mm_token_type_ids"] = modality_of_ids(arguments["input_ids"], model.config).int()
    expected = modality_of_ids(arguments["input_ids"], model.config)
    expected = expected.masked_fill(arguments["attention_mask"] == 0, PADDING)

    def read(called, given=None):
        cache = KVMMCache.for_model(model, "calibquant2")
        if given is not None:
            cache.set_modality(given)
        with torch.no_grad():
            called(**arguments, past_key_values=cache, use_cache=True)
        return cache.table.modality[:, : cache.table.length], [str(one.message) for one in recwarn.list]

    for found, told in (read(model), read(model.model, expected)):
        assert torch.equal(found, expected) and not told
    found, told = read(model.model)
    assert bool((found == TEXT).all())
    assert len(told) == 1 and "Qwen2_5_VLForConditionalGeneration" in told[0] and "set_modality" in told[0]


def test_text_models_take_inputs_embeds():
    model = build("llama")
    cache = KVMMCache.for_model(model, "bf16")
    with torch.no_grad():
        model(inputs_embeds=torch.randn(1, 12, 64), past_key_values=cache, use_cache=True)
    assert cache.memory().by_modality["text"]["tokens"] == 12


def test_unsupported_models():
    config = T5Config(d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2, vocab_size=32)
    with pytest.raises(KVMMError, match="encoder-decoder"):
        KVMMCache.for_model(T5ForConditionalGeneration(config))
    with pytest.raises(KVMMError, match="No Hadamard matrix of order 6"):
        KVMMCache(LlamaConfig(hidden_size=12, num_attention_heads=2, num_hidden_layers=1), "oscar2")
    with pytest.raises(KVMMError, match="no attention layer"):
        KVMMCache(MambaConfig(hidden_size=16, num_hidden_layers=1), "bf16")
    with pytest.raises(KVMMError, match="not a transformers model"):
        KVMMCache.for_model(torch.nn.Linear(2, 2))
