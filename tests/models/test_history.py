"""What was said moves between conversations: other policies, other models, questions that are asked anew, and files."""

from __future__ import annotations

import json

import pytest
import torch

from kvmm.errors import KVMMError
from kvmm.models import Conversation, load_model
from kvmm.models import conversation_file as files
from kvmm.models.prompting import text_of
from tests.models import checkpoints
from tests.models.test_conversation import LENGTH, CountForwardedTokens, answer_from_scratch, last

TURNS = ("What is the total?", "What is the invoice number?", "What is the date?")


def talk_about(omni, invoice, policy="bf16", count=2) -> Conversation:
    talk = Conversation(*omni, policy)
    for i, question in enumerate(TURNS[:count]):
        last(talk.ask(question, [] if i else [invoice], max_new_tokens=LENGTH))
    return talk


def answers(talk) -> list[str]:
    return [text_of(message) for message in talk.messages[1::2]]


@pytest.mark.parametrize("policy", ["bf16", "dynamic"])
def test_another_policy_goes_on_with_all_that_was_said(omni, invoice, policy):
    before = talk_about(omni, invoice, "kivi4")
    talk = Conversation(*omni, policy)
    talk.adopt(before)
    assert talk.messages == before.messages and talk.cache is None
    with CountForwardedTokens(omni[0]) as lengths:
        final = last(talk.ask(TURNS[2], max_new_tokens=LENGTH))
    assert sum(count for count in lengths if count > 1) > before._ids.shape[1]  # read once, as one prompt
    turns = [(TURNS[0], [invoice]), (TURNS[1], []), (TURNS[2], [])]
    assert final.text == answer_from_scratch(*omni, turns, answers(before))
    assert talk._ids[:, : before._ids.shape[1]].equal(before._ids)


def test_a_side_that_fell_behind_reads_what_it_missed_only(omni, invoice):
    talk = talk_about(omni, invoice, "bf16", 1)
    twin = Conversation(*omni, "dynamic")
    twin.adopt(talk)
    last(twin.ask(TURNS[1], max_new_tokens=LENGTH))
    talk.adopt(twin)
    last(talk.ask(TURNS[2], max_new_tokens=LENGTH))
    twin.adopt(talk)
    with CountForwardedTokens(omni[0]) as lengths:
        last(twin.ask(TURNS[0], max_new_tokens=LENGTH))
    assert lengths[0] < 80 and [text_of(m) for m in twin.messages[::2]] == [*TURNS, TURNS[0]]


def test_questions_that_only_one_side_was_asked_are_taken_back(omni, invoice, receipt):
    talk = talk_about(omni, invoice, "bf16", 1)
    twin = Conversation(*omni, "dynamic")
    twin.adopt(talk)
    last(twin.ask("And the date?", max_new_tokens=LENGTH))
    last(talk.ask(TURNS[1], max_new_tokens=LENGTH))
    twin.adopt(talk)  # as many questions, and not the same
    assert twin.messages == talk.messages and twin._ids.equal(talk._ids)
    other = talk_about(omni, receipt)  # asked the same, about another page
    twin.rewind(1)  # the former name of truncate
    twin.adopt(other)
    assert twin.messages == other.messages and twin._turns[0].media == (receipt,)


def test_another_model_gets_questions_answers_and_pages(omni, invoice, tone, tmp_path):
    talk = talk_about(omni, invoice)
    model, processor = load_model(checkpoints.save("qwen2_5_vl", tmp_path / "a"), device="cpu", dtype=torch.float32)
    other = Conversation(model, processor, "bf16")
    other.adopt(talk)
    assert answers(other) == answers(talk)
    final = last(other.ask("And now?", max_new_tokens=4))
    assert final.tokens == 4 and len(other.messages) == 6
    shown = processor.tokenizer.decode(other._ids[0])
    assert "What is the total?" in shown and answers(talk)[0] in shown and "[assistant] " in shown
    last(talk.ask("What did you hear?", [tone], max_new_tokens=LENGTH))
    blind = Conversation(model, processor, "bf16")
    with pytest.raises(KVMMError, match="not audio"):
        blind.adopt(talk)
    assert blind.messages == []
    model, processor = load_model(checkpoints.save("llama", tmp_path / "b"), device="cpu", dtype=torch.float32)
    with pytest.raises(KVMMError, match="not image"):
        Conversation(model, processor, "bf16").adopt(talk)


@pytest.mark.parametrize("policy", ["bf16", "kivi4", "balanced", "dynamic"])
def test_an_edited_question_does_not_read_the_page_again(omni, invoice, receipt, policy):
    talk = talk_about(omni, invoice, policy, 3)
    page = int((talk._cached[0] == omni[0].config.image_token_id).sum())
    for count, question, media in ((2, TURNS[1], []), (1, TURNS[2], []), (0, "What is the subtotal?", [invoice])):
        talk.truncate(count)
        assert len(talk.messages) == 2 * count and not talk.is_current
        expected = None
        if policy in ("bf16", "dynamic"):
            earlier = [(TURNS[0], [invoice]), (TURNS[1], [])][:count]
            expected = answer_from_scratch(*omni, [*earlier, (question, media)], answers(talk))
        with CountForwardedTokens(omni[0]) as lengths:
            final = last(talk.ask(question, media, max_new_tokens=LENGTH))
        assert max(lengths) < 40 < page
        assert expected is None or final.text == expected
        assert talk.is_current
        assert policy == "dynamic" or final.memory.by_modality["image"]["tokens"] == page
    talk.truncate(0)  # another page of the same size is another page
    with CountForwardedTokens(omni[0]) as lengths:
        final = last(talk.ask("What is the receipt number?", [receipt], max_new_tokens=LENGTH))
    assert max(lengths) > 60 and "9071" in final.text


def test_a_stopped_edit_leaves_what_was_there(omni, invoice):
    for policy in ("kivi4", "dynamic"):
        talk = talk_about(omni, invoice, policy, 2)
        held = talk.cache.get_seq_length()
        talk.truncate(1)
        iterator = talk.ask(TURNS[2], max_new_tokens=200)
        next(iterator)
        iterator.close()
        talk.forget_stopped()
        assert talk.cache.get_seq_length() <= held
        with CountForwardedTokens(omni[0]) as lengths:
            last(talk.ask(TURNS[2], max_new_tokens=LENGTH))
        assert lengths[0] < 40 and len(talk.messages) == 4


def test_a_conversation_without_its_cache_is_saved_with_all_that_was_said(omni, invoice, tmp_path):
    talk = talk_about(omni, invoice, "kivi4")
    assert talk.free_cache()
    talk.save(tmp_path / "a.kvmm", {"mine": 1}, [b"one", b""])
    loaded = Conversation.load(tmp_path / "a.kvmm", *omni)
    assert loaded.messages == talk.messages and loaded.cache is None and loaded.files == [b"one", b""]
    assert loaded._ids.equal(talk._ids) and loaded.policy.name == "kivi4" and loaded.notes == {"mine": 1}
    assert last(loaded.ask(TURNS[0], max_new_tokens=LENGTH)).text == "$42.50"
    loaded.truncate(1)  # the cache holds what was taken back
    loaded.save(tmp_path / "b.kvmm")
    again = Conversation.load(tmp_path / "b.kvmm", *omni)
    assert len(again.messages) == 2 and again.cache is None
    empty = Conversation(*omni, "kivi4")
    empty.save(tmp_path / "c.kvmm", {"shown": "an error"})
    assert Conversation.load(tmp_path / "c.kvmm", *omni).notes == {"shown": "an error"}
    with pytest.raises(KVMMError, match="ask a question"):
        empty.save(tmp_path / "d.kvmm")


def test_files_of_the_version_before_are_read(omni, invoice, tmp_path, monkeypatch):
    talk = talk_about(omni, invoice, "kivi4")

    def older(cache, path, metadata, *, empty):
        values = json.loads(json.dumps(metadata["conversation"]))
        for turn in values["turns"]:
            for name in ("length", "answer", "per_token"):
                del turn[name]
        del values["files"], values["dropped"]
        cache.save(path, {**metadata, "conversation": values})

    monkeypatch.setattr(files, "save_cache", older)
    talk.save(tmp_path / "old.kvmm")
    loaded = Conversation.load(tmp_path / "old.kvmm", *omni)
    assert [turn.answer for turn in loaded._turns] == [turn.answer for turn in talk._turns]
    assert loaded._ids.equal(talk._ids) and loaded.is_current
    with CountForwardedTokens(omni[0]) as lengths:
        last(loaded.ask(TURNS[2], max_new_tokens=LENGTH))
    assert lengths[0] < 40
