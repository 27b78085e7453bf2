"""Drafts that are checked in one call: the greedy answer, over the same packed pages."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from kvmm import KVMMCache, get_policy
from kvmm.errors import KVMMError
from kvmm.models import Conversation
from kvmm.models.caches import new_cache
from kvmm.models.documents import Document, answer_tokens
from kvmm.models.prompting import encode_question
from kvmm.models.sampling import Sampling
from kvmm.models.speculative import DraftModel, PromptLookup, Speculation, _Pace, drafter_of, generate_with_drafts
from tests.tiny_models import build, inputs


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


def test_drafts_that_are_wrong_become_short_and_rare() -> None:
    pace = _Pace()
    lengths = []
    for right in (True, True, False, False, False, True):
        while not (length := pace.next()):
            lengths.append(0)
        lengths.append(length)
        pace.learn(length, length if right else 0)
    assert lengths == [4, 8, 16, 0, 1, 0, 0, 0, 1, *[0] * 7, 1]
    assert (pace.most, pace.wrong, pace.pause) == (2, 0, 0)
    pace.learn(2, 1)
    assert pace.next() == 1  # as much as was right
    pace.learn(0, 0)
    assert pace.next() == 1  # nothing was drafted, nothing learnt
    for _ in range(9):
        pace.learn(1, 0)
    assert pace.pause == 15


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


@pytest.mark.parametrize("policy", ["balanced", "dynamic"])
def test_models_that_cannot_take_tokens_back_are_not_drafted(policy: str) -> None:
    """A sliding window has dropped what would come back: refused before the answer, not in the midst of it."""
    model = build("gemma3")
    with pytest.raises(KVMMError, match="sliding window"):
        generate_with_drafts(model, inputs("gemma3", 1), new_cache(model, policy), 4, PromptLookup())
    with pytest.raises(KVMMError, match="sliding window"):
        DraftModel(model)


@pytest.mark.parametrize("policy", ["balanced", "dynamic"])
def test_a_conversation_with_drafts_says_what_one_without_does(
    omni: Any, invoice: Any, policy: str, monkeypatch: Any
) -> None:
    model, processor = omni
    monkeypatch.setattr(model.generation_config, "eos_token_id", None)  # answers of some length
    plain = Conversation(model, processor, policy)
    drafted = Conversation(model, processor, policy, drafter=PromptLookup(shortest=1))
    taken = Speculation([])
    for question, media in (("What does it say?", [invoice]), ("What is the total?", []), ("And the date?", [])):
        expected = list(plain.ask(question, media, max_new_tokens=40))[-1]
        final = list(drafted.ask(question, media, max_new_tokens=40))[-1]
        assert final.token_ids == expected.token_ids and final.text == expected.text
        assert final.done and final.tokens == len(final.token_ids) and expected.speculation is None
        found = final.speculation
        assert found.calls + found.accepted + 1 >= final.tokens  # an end may come before all that was right
        taken.calls, taken.drafted = taken.calls + found.calls, taken.drafted + found.drafted
        taken.accepted += found.accepted
        assert drafted.cache.get_seq_length() == plain.cache.get_seq_length()
    assert taken.accepted > 0 and taken.acceptance == taken.accepted / taken.drafted
    assert drafted.messages == plain.messages


def test_drafts_end_at_stop_texts_and_lengths_as_answers_do(omni: Any, invoice: Any, monkeypatch: Any) -> None:
    model, processor = omni
    monkeypatch.setattr(model.generation_config, "eos_token_id", None)
    asked = {"question": "What does it say?", "media": [invoice]}
    whole = list(Conversation(model, processor).ask(**asked, max_new_tokens=40))[-1]
    word = whole.text[len(whole.text) // 2 :][:3]
    for limits in ({"sampling": Sampling(stop=(word,))}, {"max_new_tokens": 5}, {"max_new_tokens": 1}):
        talks = [Conversation(model, processor, drafter=drafter) for drafter in (None, PromptLookup(shortest=1))]
        limits = {"max_new_tokens": 40, **limits}
        expected, final = (list(talk.ask(**asked, **limits))[-1] for talk in talks)
        assert final.text == expected.text and (word not in final.text or "sampling" not in limits)
        # generate looks for stop texts once it has the next token
        assert final.token_ids == expected.token_ids[: len(final.token_ids)]
        if "sampling" not in limits:  # a follow-up goes on from a cache that holds no draft
            first, second = (list(talk.ask("What is the total?", max_new_tokens=20))[-1] for talk in talks)
            assert first.token_ids == second.token_ids and len(final.token_ids) == limits["max_new_tokens"]


def test_drafts_are_stopped_and_refused_in_one_line(omni: Any, invoice: Any, monkeypatch: Any) -> None:
    model, processor = omni
    talk = Conversation(model, processor, drafter=PromptLookup())
    for sampling in (Sampling(0.5), Sampling(logprobs=2)):
        with pytest.raises(KVMMError, match="leave temperature and logprobs out"):
            list(talk.ask("?", sampling=sampling))
    with pytest.raises(KVMMError, match="budget"):
        Conversation(model, processor, "spherical-high", drafter=PromptLookup(), budget=10**6)
    stop = threading.Event()
    for progress in talk.ask("What does it say?", [invoice], stop=stop):
        if progress.tokens:
            stop.set()
    assert progress.stopped and talk.messages == []
    plain = list(Conversation(model, processor).ask("What is the total?", [invoice]))[-1]
    assert list(talk.ask("What is the total?"))[-1].text == plain.text  # the stopped question's page goes along


def test_drafters_by_name(omni: Any, monkeypatch: Any) -> None:
    model, processor = omni
    assert drafter_of("lookup", processor) == PromptLookup()
    monkeypatch.setattr("kvmm.models.speculative.load_model", lambda name, **_: (model, processor))
    assert drafter_of("same", processor).model is model

    class Other:
        def get_vocab(self) -> dict[str, int]:
            return {"a": 0}

    monkeypatch.setattr("kvmm.models.speculative.load_model", lambda name, **_: (model, Other()))
    with pytest.raises(KVMMError, match="another vocabulary"):
        drafter_of("other", processor)


def test_a_repetition_penalty_is_that_of_generate(omni: Any, invoice: Any, monkeypatch: Any) -> None:
    model, processor = omni
    monkeypatch.setattr(model.generation_config, "repetition_penalty", 1.3)
    asked = {"question": "What does it say?", "media": [invoice], "max_new_tokens": 40}
    expected = list(Conversation(model, processor).ask(**asked))[-1]
    final = list(Conversation(model, processor, drafter=PromptLookup(shortest=1)).ask(**asked))[-1]
    assert final.token_ids == expected.token_ids
