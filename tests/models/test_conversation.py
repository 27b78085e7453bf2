"""Follow-up turns on the kept cache against the whole conversation from scratch, Stop, and rollback."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import DynamicCache, StoppingCriteria

from kvmm.cache import file as cache_file
from kvmm.errors import KVMMError
from kvmm.media import Media
from kvmm.models.conversation import Conversation, model_lock
from kvmm.models.prompting import Turn, render
from kvmm.models.question import MIN_ANSWER_TOKENS, user_message
from tests.tiny_models import rope_deltas_holder

LENGTH = 12


def last(progress):
    *_, final = progress
    return final


def answer_from_scratch(model, processor, turns, answers, max_new_tokens=LENGTH):
    """The answer to the last of ``turns`` when everything is rendered, processed and run at once."""
    messages, images, audio = [], [], []
    for index, (question, media) in enumerate(turns):
        content = [{"type": item.kind} for item in media] + [{"type": "text", "text": question}]
        messages.append({"role": "user", "content": content})
        images += [item.data for item in media if item.kind == "image"]
        audio += [item.data for item in media if item.kind == "audio"]
        if index < len(answers):
            messages.append({"role": "assistant", "content": [{"type": "text", "text": answers[index]}]})
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    extra = {"audio": audio, "sampling_rate": 16_000} if audio else {}
    inputs = processor(text=[text], images=images or None, return_tensors="pt", **extra)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    with model_lock(model):
        out = model.generate(**inputs, past_key_values=cache, max_new_tokens=max_new_tokens, do_sample=False)
    return processor.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()


class CountForwardedTokens:
    """How many tokens each forward pass of the model got."""

    def __init__(self, model):
        self.lengths = []
        self._handle = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module, args, kwargs):
        self.lengths.append(kwargs["input_ids"].shape[1])

    def __enter__(self):
        return self.lengths

    def __exit__(self, *error):
        self._handle.remove()


@pytest.mark.parametrize(("policy", "graph"), [("bf16", None), ("dynamic", None), ("bf16", True)])
def test_later_turns_equal_the_whole_conversation_from_scratch(omni, invoice, receipt, tone, policy, graph):
    model, processor = omni
    talk = Conversation(model, processor, policy, graph=graph)
    turns = [
        ("What is the total?", [invoice]),
        ("What is the invoice number?", []),
        ("What is the receipt number?", [receipt]),
        ("What did you hear?", [tone]),
        ("What is the date?", []),
    ]
    answers = []
    for index, (question, media) in enumerate(turns):
        with CountForwardedTokens(model) as lengths:
            final = last(talk.ask(question, media, max_new_tokens=LENGTH))
        assert final.done and not final.stopped and final.tokens > 0
        assert final.text == answer_from_scratch(model, processor, turns[: index + 1], answers)
        if index and not media:
            assert lengths[0] < 40, "a follow-up forwards its own tokens only"
        answers.append(final.text)
    assert answers[0] == "$42.50"
    if graph:
        report = talk.cache.graph.report()
        assert report["eager"] > 2 * len(turns)
        assert report["plain"] == 0
        assert talk.cache.get_max_length() < 2 * talk._ids.shape[1]
    assert [message["role"] for message in talk.messages] == ["user", "assistant"] * len(turns)


def test_ids_of_a_long_conversation_are_those_of_the_template(omni, invoice):
    model, processor = omni
    talk = Conversation(model, processor, "dynamic")
    answers = [last(talk.ask("What is the total?", [invoice], max_new_tokens=32)).text]
    answers.append(last(talk.ask("And the date?", max_new_tokens=32)).text)
    text = processor.apply_chat_template(talk.messages, tokenize=False)
    expected = processor(text=[text], images=[invoice.data], return_tensors="pt")["input_ids"][0].tolist()
    # The history ends before the end of the last turn; the next question's rendering brings it.
    assert expected[: talk._ids.shape[1]] == talk._ids[0].tolist()


@pytest.mark.parametrize("graph", [False, True])
def test_interleaved_conversations_do_not_disturb_each_other(omni, invoice, receipt, graph):
    model, processor = omni
    pair = [(invoice, "What is the date?"), (receipt, "What is the receipt number?")]

    def alone(page, second):
        talk = Conversation(model, processor, "bf16")
        return [
            last(talk.ask(question, media, max_new_tokens=LENGTH)).text
            for question, media in [("What is the total?", [page]), (second, [])]
        ]

    expected = [alone(*item) for item in pair]
    talks = [Conversation(model, processor, "bf16", graph=graph) for _ in pair]
    first = [
        last(t.ask("What is the total?", [p], max_new_tokens=LENGTH)).text
        for t, (p, _) in zip(talks, pair, strict=True)
    ]
    # Both stream at once here: the two iterators are advanced in turn.
    iterators = [t.ask(question, max_new_tokens=LENGTH) for t, (_, question) in zip(talks, pair, strict=True)]
    finals = [None, None]
    while iterators != [None, None]:
        for index, iterator in enumerate(iterators):
            if iterator is not None:
                finals[index] = next(iterator, finals[index])
                if finals[index].done:
                    iterators[index] = None
    assert [list(item) for item in zip(first, [final.text for final in finals], strict=True)] == expected


def test_rope_deltas_of_the_model_are_left_alone(omni, invoice):
    model, processor = omni
    holder, marker = rope_deltas_holder(model), torch.tensor([[123]])
    before = holder.rope_deltas
    holder.rope_deltas = marker
    try:
        last(Conversation(model, processor, "dynamic").ask("What is the total?", [invoice], max_new_tokens=4))
        assert holder.rope_deltas is marker
    finally:
        holder.rope_deltas = before


def never_ending(model, monkeypatch):
    """Make the model write on until Stop: no end-of-turn token counts."""
    monkeypatch.setattr(model.generation_config, "eos_token_id", None)
    monkeypatch.setattr(model.generation_config, "pad_token_id", 0)


def test_stop_ends_soon_and_the_document_stays_for_the_next_question(omni, invoice, monkeypatch):
    model, processor = omni
    talk, stop = Conversation(model, processor, "bf16"), threading.Event()
    with monkeypatch.context() as patch:
        never_ending(model, patch)
        for progress in talk.ask("What is the total?", [invoice], max_new_tokens=2000, stop=stop):
            if progress.tokens >= 3:
                stop.set()
    assert progress.done and progress.stopped and 3 <= progress.tokens < 500
    assert talk.messages == [] and talk.memory() is None
    assert last(talk.ask("What is the total?", max_new_tokens=LENGTH)).text == "$42.50"
    assert [block["type"] for block in talk.messages[0]["content"]] == ["image", "text"]


def test_stop_in_a_later_turn_goes_back_to_before_the_question(omni, invoice, receipt, monkeypatch):
    model, processor = omni
    turns = [("What is the total?", [invoice]), ("What is the invoice number?", [])]
    talk = Conversation(model, processor, "bf16")
    answers = [last(talk.ask(*turns[0], max_new_tokens=LENGTH)).text]
    memory, messages = talk.memory(), list(talk.messages)
    with monkeypatch.context() as patch:
        never_ending(model, patch)
        iterator = talk.ask("What is the date?", max_new_tokens=2000)
        next(iterator)
        iterator.close()  # what a browser's Stop does to a generator
    assert talk.messages == messages and talk.memory() is memory
    # The cache is that of before the question, so nothing is read again, and the answer is that of an undisturbed one.
    with CountForwardedTokens(model) as lengths:
        answers.append(last(talk.ask(*turns[1], max_new_tokens=LENGTH)).text)
    assert lengths[0] < 40
    assert answers[1] == answer_from_scratch(model, processor, turns, answers[:1])


def test_stop_before_the_first_token(omni, invoice):
    model, processor = omni
    talk, stop = Conversation(model, processor, "bf16"), threading.Event()
    stop.set()
    final = last(talk.ask("What is the total?", [invoice], max_new_tokens=200, stop=stop))
    assert final.done and final.stopped and final.tokens <= 1


def test_an_error_rolls_back(omni, invoice, monkeypatch):
    model, processor = omni
    talk = Conversation(model, processor, "bf16")
    turns = [("What is the total?", [invoice]), ("What is the date?", [])]
    answers = [last(talk.ask(*turns[0], max_new_tokens=LENGTH)).text]
    messages = list(talk.messages)

    class Break(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            raise RuntimeError("broken on purpose")

    with monkeypatch.context() as patch:
        patch.setattr("kvmm.models.generation._StopOnEvent", lambda event: Break())
        with pytest.raises(RuntimeError, match="on purpose"):
            last(talk.ask("What is the invoice number?", max_new_tokens=LENGTH))
    assert talk.messages == messages
    answers.append(last(talk.ask(*turns[1], max_new_tokens=LENGTH)).text)
    assert answers[1] == answer_from_scratch(model, processor, turns, answers[:1])


def test_memory_running_out_is_a_clear_error(omni, invoice, monkeypatch):
    model, processor = omni
    talk = Conversation(model, processor, "bf16")
    with monkeypatch.context() as patch:
        patch.setattr(model, "generate", lambda **kwargs: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA")))
        with pytest.raises(KVMMError, match="fewer"):
            last(talk.ask("What is the total?", [invoice]))
    assert last(talk.ask("What is the total?", [invoice], max_new_tokens=LENGTH)).text == "$42.50"


def test_progress_streams_and_measures(omni, invoice):
    model, processor = omni
    talk = Conversation(model, processor, "balanced")
    seen = list(talk.ask("What is the total?", [invoice], max_new_tokens=32))
    assert all(later.text.startswith(earlier.text) for earlier, later in itertools.pairwise(seen))
    assert [progress.done for progress in seen] == [False] * (len(seen) - 1) + [True]
    final = seen[-1]
    assert 0 < final.ttft <= final.seconds and final.tokens_per_second > 0
    assert 0 < final.first_step < final.seconds - final.ttft
    assert final.memory is talk.memory() and final.memory.nbytes > 0
    assert set(final.memory.by_modality) >= {"text", "image"}
    talk.reset()
    assert talk.memory() is None and talk.messages == [] and talk.cache is None


def test_pages_are_labelled_when_there_are_several(omni, invoice, receipt):
    model, processor = omni
    pages = [Media("image", invoice.data, "a.pdf", 1), Media("image", receipt.data, "a.pdf", 2)]

    def texts(media):
        talk = Conversation(model, processor, "dynamic")
        message = user_message(processor, talk.family, "Why?", tuple(media))
        return [block.get("text", block["type"]) for block in message["content"]]

    assert texts(pages) == ["Page 1\n", "image", "Page 2\n", "image", "Why?"]
    assert texts(pages[1:]) == ["image", "Why?"]
    assert texts([invoice, receipt]) == ["Page 1\n", "image", "Page 2\n", "image", "Why?"]
    assert texts([*pages, *pages]) == [t for k in range(1, 5) for t in (f"Page {k}\n", "image")] + ["Why?"]


def test_a_recording_may_be_the_question(omni, invoice, tone):
    model, processor = omni
    final = last(Conversation(model, processor, "dynamic").ask("", [invoice, tone], max_new_tokens=4))
    assert final.tokens > 0
    with pytest.raises(KVMMError, match="no question"):
        last(Conversation(model, processor, "dynamic").ask("  ", [invoice]))


def test_a_recording_longer_than_the_model_hears_is_refused(omni):
    model, processor = omni
    limit = processor.feature_extractor.n_samples
    long = Media("audio", np.ones(limit + 16_000, np.float32), "long.wav")
    with pytest.raises(KVMMError, match="this model hears"):
        last(Conversation(model, processor, "dynamic").ask("What is said?", [long]))


def test_more_tokens_than_the_window_is_refused_before_running(omni, invoice, monkeypatch):
    model, processor = omni
    monkeypatch.setattr(model, "generate", lambda **kwargs: pytest.fail("it ran"))
    talk = Conversation(model, processor, "bf16")
    window = model.config.get_text_config().max_position_embeddings
    with pytest.raises(KVMMError, match="shorten the question"):
        last(talk.ask("total " * window))
    pages = [Media("image", invoice.data, "long.pdf", page) for page in range(1, 41)]
    with pytest.raises(KVMMError, match=r"about (\d+) of the 40 pages fit") as caught:
        last(talk.ask("What is the total?", pages))
    fit = int(str(caught.value).split("about ")[1].split()[0])
    monkeypatch.undo()

    def prompt_tokens(count):
        message = user_message(processor, talk.family, "What is the total?", tuple(pages[:count]))
        return talk._prepare(Turn(render(processor, talk.messages, message), tuple(pages[:count]))).ids.shape[1]

    one_page = prompt_tokens(1)
    assert abs(window - MIN_ANSWER_TOKENS - prompt_tokens(fit)) < one_page


def test_one_answer_at_a_time(omni, invoice):
    model, processor = omni
    talk = Conversation(model, processor, "dynamic")
    iterator = talk.ask("What is the total?", [invoice], max_new_tokens=LENGTH)
    next(iterator)
    with pytest.raises(KVMMError, match="still answering"):
        last(talk.ask("What is the date?"))
    assert last(iterator).done


def test_unknown_policy_and_unsupported_family(omni):
    model, processor = omni
    with pytest.raises(KVMMError):
        Conversation(model, processor, "no-such-policy")
    other = type("Model", (), {"config": type("Config", (), {"model_type": "t5"})()})()
    with pytest.raises(KVMMError, match="not supported"):
        Conversation(other, processor)


def test_a_graph_is_taken_on_a_gpu_only(omni):
    model, processor = omni
    assert not Conversation(model, processor).graph
    with pytest.raises(KVMMError, match="budget"):
        Conversation(model, processor, "oscar2", graph=True, budget=10**6)


@pytest.fixture(scope="module")
def saved(omni, invoice, tone, tmp_path_factory):
    """A conversation about a page and a sound, the file it was saved to, and its next answer."""
    talk = Conversation(*omni, "kivi4")
    page = Media("image", invoice.data, "invoice.pdf", 1, "Total: $42.50", 13)
    last(talk.ask("What is the total?", [page], max_new_tokens=LENGTH))
    last(talk.ask("What did you hear?", [tone], max_new_tokens=LENGTH))
    path = tmp_path_factory.mktemp("saved") / "talk.kvmm"
    talk.save(path)
    return talk, path


def test_a_saved_conversation_goes_on_without_reading_again(omni, saved):
    talk, path = saved
    loaded = Conversation.load(path, *omni)
    assert loaded.messages == talk.messages
    (page,) = loaded._turns[0].media
    assert (page.name, page.page, page.text, page.text_length) == ("invoice.pdf", 1, "Total: $42.50", 13)
    before, after = talk.memory(), loaded.memory()
    assert after.by_component["codes"] == before.by_component["codes"] and after.tokens == before.tokens
    assert after.nbytes <= before.nbytes
    with CountForwardedTokens(omni[0]) as lengths:
        answer = last(loaded.ask("What is the invoice number?", max_new_tokens=LENGTH))
    assert lengths[0] < 40
    assert answer.token_ids == last(talk.fork().ask("What is the invoice number?", max_new_tokens=LENGTH)).token_ids
    assert loaded.free_cache()  # the media are in the file, so the prompt can be built again from nothing
    assert loaded.prompt_inputs()["pixel_values"].equal(talk.prompt_inputs()["pixel_values"])
    assert last(loaded.ask("What is the total?", max_new_tokens=LENGTH)).text == "$42.50"


def test_a_conversation_is_refused_by_another_model_and_when_it_is_damaged(omni, saved, tmp_path, monkeypatch):
    model, processor = omni
    _, path = saved
    with monkeypatch.context() as patch:
        patch.setattr("kvmm.cache.file.model_fingerprint", lambda model: "another one")
        with pytest.raises(KVMMError, match="another model"):
            Conversation.load(path, model, processor)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    damaged = tmp_path / "damaged.kvmm"
    damaged.write_bytes(data)
    with pytest.raises(KVMMError, match="damaged"):
        Conversation.load(damaged, model, processor)
    with pytest.raises(KVMMError, match="ask a question"):
        Conversation(model, processor, "kivi4").save(tmp_path / "empty.kvmm")


def test_tokens_of_another_recording_are_refused(omni, saved, tmp_path):
    _, path = saved
    with safe_open(path, "pt") as file:
        header = file.metadata()
    tensors = load_file(path)
    (ids,) = (tensor for name, tensor in tensors.items() if name.endswith(".ids"))
    token = omni[0].config.audio_token_id
    assert (ids == token).any()
    ids[ids == token] = token + 1
    header["checksum"] = cache_file._checksum(header["state"], tensors)
    save_file(tensors, tmp_path / "other.kvmm", header)
    with pytest.raises(KVMMError, match="does not hold a whole conversation"):
        Conversation.load(tmp_path / "other.kvmm", *omni)


def test_a_cache_without_a_conversation_is_named(omni, saved, tmp_path):
    talk, _ = saved
    talk.cache.save(tmp_path / "cache.safetensors")
    with pytest.raises(KVMMError, match="no conversation"):
        Conversation.load(tmp_path / "cache.safetensors", *omni)


@pytest.mark.parametrize("policy, graph", [("dynamic", False), ("kivi4", True)])
def test_a_cache_that_cannot_be_shared_is_copied_left_or_moved(omni, invoice, policy, graph):
    talk = Conversation(*omni, policy=policy)
    expected = last(talk.ask("What is the total?", [invoice], max_new_tokens=LENGTH)).text
    talk.graph, held = graph, talk.cache
    with CountForwardedTokens(talk.model) as lengths:
        twin = talk.fork("share")
        assert twin.cache is None and talk.cache is held and twin.messages == talk.messages
        copied = talk.fork()
        assert copied.cache is not held and copied.cache_nbytes() == talk.cache_nbytes() > 0 and talk.cache is held
        moved = talk.fork("move")
        assert moved.cache is held and talk.cache is None and len(talk.messages) == 2
        assert not lengths  # none of this reads anything
        for each in (twin, talk, moved):
            each.graph = False
            each.truncate(0)
            assert last(each.ask("What is the total?", [invoice], max_new_tokens=LENGTH)).text == expected


def test_no_memory_for_a_copy_or_for_room_is_a_clear_error(omni, invoice, monkeypatch):
    def no_memory(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    talk = Conversation(*omni, policy="kivi4")
    last(talk.ask("What is the total?", [invoice], max_new_tokens=LENGTH))
    with monkeypatch.context() as patch:
        patch.setattr(type(talk.cache), "fork", no_memory)
        with pytest.raises(KVMMError, match="Memory ran out for a copy"):
            talk.fork()
    with monkeypatch.context() as patch:
        patch.setattr(talk, "_with_room", no_memory)
        with pytest.raises(KVMMError, match="Memory ran out: send fewer"):
            last(talk.ask("What is the tax?"))
    assert len(talk.messages) == 2 and last(talk.ask("What is the total?", max_new_tokens=LENGTH)).text == "$42.50"


def test_a_fork_goes_on_alone(omni, invoice):
    talk = Conversation(*omni, "kivi4")
    last(talk.ask("What is the total?", [invoice], max_new_tokens=LENGTH))
    fork, control = talk.fork(), talk.fork()
    last(fork.ask("What is the invoice number?", max_new_tokens=LENGTH))
    answer = last(talk.ask("What is the date?", max_new_tokens=LENGTH))
    assert len(talk.messages) == len(fork.messages) == 4 and talk.messages[2] != fork.messages[2]
    assert answer.token_ids == last(control.ask("What is the date?", max_new_tokens=LENGTH)).token_ids
    assert last(fork.fork().ask("What is the total?", max_new_tokens=LENGTH)).text == "$42.50"
    talk.cache.table.modality.zero_()  # whatever happens to one does not reach the other
    assert fork.memory().by_modality["image"]["tokens"] and fork.cache.memory().by_modality["image"]["tokens"]


def test_a_turn_keeps_no_more_than_its_own_numbers(omni, invoice, tone):
    """Processors return views: frames of a mask are a few bytes of the samples' megabytes."""
    talk = Conversation(*omni)
    last(talk.ask("What is the total?", [invoice, tone], max_new_tokens=2))
    (turn,) = talk._turns
    tensors = [turn.ids, *turn.positions.values(), *turn.per_token.values()]
    assert len(turn.positions) >= 2
    for tensor in tensors:
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
