"""Drafts that are checked in one call: the greedy answer, over the same packed pages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from kvmm import KVMMCache, get_policy
from kvmm.errors import KVMMError
from kvmm.models.caches import new_cache
from kvmm.models.documents import Document, answer_tokens
from kvmm.models.prompting import encode_question
from kvmm.models.speculative import DraftModel, PromptLookup, generate_with_drafts


class Oracle:
    """Knows the answer, and is wrong in every ``wrong``-th token."""

    def __init__(self, answer: list[int], prompt: int, wrong: int = 0, count: int = 8):
        self.answer, self.prompt, self.wrong, self.count = answer, prompt, wrong, count

    def draft(self, ids: Any, most: int) -> list[int]:
        at = len(ids) - self.prompt
        draft = self.answer[at : at + min(most, self.count)]
        return [t + 1 if self.wrong and (at + i) % self.wrong == 0 else t for i, t in enumerate(draft)]


def test_prompt_lookup_finds_what_followed() -> None:
    lookup = PromptLookup(longest=3, shortest=2, count=4)
    assert lookup.draft([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], 9) == [4, 5, 6, 7]
    assert lookup.draft([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], 2) == [4, 5]
    assert lookup.draft([9, 1, 2, 8, 1, 2, 7, 3, 1, 2], 1) == [7]  # the newer place
    assert lookup.draft([5, 1, 2, 3, 6, 2, 3, 7, 1, 2, 3], 1) == [6]  # the longer match
    assert lookup.draft([1, 2, 3], 4) == [] and lookup.draft([1], 4) == [] and lookup.draft([], 4) == []
    assert lookup.draft([7, 7, 7], 4) == [7]


@pytest.fixture(scope="module")
def asked(omni: Any, invoice: Any) -> tuple[Any, Any, Document]:
    model, processor = omni
    inputs = encode_question(model, processor, "What does it say?", [invoice.data])
    return model, inputs, Document(model, inputs)


@pytest.mark.parametrize("policy", ["balanced", "oscar4-2", "bf16", "dynamic"])
@pytest.mark.parametrize("wrong", [0, 3])
def test_the_answer_is_that_of_one_token_a_step(asked: Any, policy: str, wrong: int) -> None:
    model, inputs, document = asked
    ends = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = None
    try:
        # without an end, long enough for pages of text to be packed on the way
        stored = policy if policy == "dynamic" else get_policy(policy, flush_length=32)
        cache, plain_cache = document.cache(stored), document.cache(stored)
        plain = generate_with_drafts(model, inputs, plain_cache, 120, PromptLookup(count=0)).tokens
        drafted = generate_with_drafts(model, inputs, cache, 120, Oracle(plain, inputs["input_ids"].shape[1], wrong))
    finally:
        model.generation_config.eos_token_id = ends
    assert drafted.tokens == plain
    assert cache.get_seq_length() == plain_cache.get_seq_length() == inputs["input_ids"].shape[1] + 119
    if wrong:
        assert 0.2 < drafted.acceptance < 0.9 and drafted.calls < 100
    else:
        assert drafted.acceptance == 1 and drafted.calls < 40
    if isinstance(cache, KVMMCache):
        assert {m: p.tolist() for m, p in cache.table.stores.items()} == {
            m: p.tolist() for m, p in plain_cache.table.stores.items()
        }
        assert cache.table.dense.tolist() == plain_cache.table.dense.tolist()
        assert len(cache.table.appends[0]) >= 2  # pages of text were packed on the way


def test_prompt_lookup_and_a_draft_model(asked: Any) -> None:
    model, inputs, document = asked
    expected = answer_tokens(model, inputs, document.cache("balanced"), 60).tolist()
    vocabulary = model.config.get_text_config().vocab_size
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    torch.manual_seed(0)
    small = Qwen2ForCausalLM(Qwen2Config(vocab_size=vocabulary, num_hidden_layers=1, **shape)).eval()
    for drafter in (PromptLookup(), DraftModel(small)):
        found = generate_with_drafts(model, inputs, document.cache("balanced"), 60, drafter)
        assert found.tokens == expected, drafter
        whole = generate_with_drafts(model, inputs, new_cache(model, "bf16"), 60, drafter)
        assert whole.tokens[-1] in (2,) or len(whole.tokens) == 60
    # a model that drafts for itself is always right
    own = DraftModel(small, count=3)
    ids = torch.randint(5, 60, (1, 40), generator=torch.Generator().manual_seed(0))
    alone = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    found = generate_with_drafts(small, alone, new_cache(small, "dynamic"), 30, own)
    assert found.acceptance == 1 and found.calls <= 8


def test_what_cannot_be_drafted_is_one_line(asked: Any) -> None:
    model, inputs, _ = asked
    two = {"input_ids": inputs["input_ids"].expand(2, -1)}
    with pytest.raises(KVMMError, match="one sequence"):
        generate_with_drafts(model, two, new_cache(model, "bf16"), 4, PromptLookup())
    cache = KVMMCache.for_model(model, "spherical-high", budget=10**6)
    with pytest.raises(KVMMError, match="budget"):
        generate_with_drafts(model, inputs, cache, 4, PromptLookup())
