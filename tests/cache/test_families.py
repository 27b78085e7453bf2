"""Every family through a long answer: the lossless policy gives DynamicCache's greedy tokens and counts them all."""

import pytest
import torch

from kvmm import KVMMCache
from tests.tiny_models import FAMILIES, NEW_TOKENS, build, generate, inputs


@pytest.mark.parametrize("family", FAMILIES)
def test_lossless_policy_gives_the_same_tokens(family):
    model = build(family)
    for batch in (1, 2):
        arguments = inputs(family, batch)
        model.set_attn_implementation("sdpa")
        expected = generate(model, arguments)
        # no residual: all that can be is in pages, early enough for pages to be flushed while decoding
        cache = KVMMCache.for_model(
            model, "bf16", residual_length=0, flush_length=32, num_sink_tokens=2, exact_dtype="model"
        )
        assert torch.equal(generate(model, arguments, past_key_values=cache), expected)
        assert len(set(expected[0, -NEW_TOKENS:].tolist())) > 5  # a model that repeats itself would prove nothing
        report = cache.memory()
        modalities = {"text"}
        if family not in ("llama", "qwen3", "mistral"):
            modalities |= {"audio"} if family == "qwen2_audio" else {"image"}
            modalities |= {"audio"} if "omni" in family else set()
        assert set(report.by_modality) == modalities
        expected_tokens = int(arguments["attention_mask"].sum()) + batch * (NEW_TOKENS - 1)
        assert report.tokens == expected_tokens
