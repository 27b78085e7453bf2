"""Choosing tokens: temperature, nucleus, seeds, log-probabilities, stop texts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer

from kvmm.errors import KVMMError
from kvmm.media import Media
from kvmm.models import Conversation, Sampling
from kvmm.models.loading import default_model
from kvmm.models.sampling import Sampler, cut_at_stop, held_back
from kvmm.models.text import TextStream

LOGITS = torch.tensor([0.0, 2.0, 1.0, -torch.inf, 1.9])


def drawn(count: int = 4000, **options: Any) -> Counter[int]:
    sampler = Sampler(Sampling(seed=0, **options))
    return Counter(sampler.choose(LOGITS).token for _ in range(count))


def test_without_temperature_the_most_likely_token_is_taken() -> None:
    assert set(drawn(20)) == {1}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_draws_from_the_softmax(temperature: float) -> None:
    expected = (LOGITS.double() / temperature).softmax(-1)
    found = drawn(temperature=temperature)
    for token, probability in enumerate(expected.tolist()):
        # four standard deviations of a count
        assert abs(found[token] - 4000 * probability) <= 4 * (4000 * probability * (1 - probability)) ** 0.5 + 1e-9


def test_top_p_takes_the_smallest_set_that_reaches_it() -> None:
    probabilities = LOGITS.softmax(-1)
    assert set(drawn(temperature=1.0, top_p=float(probabilities[1]) * 0.9)) == {1}
    assert set(drawn(temperature=1.0, top_p=float(probabilities[1] + probabilities[4]) * 0.99)) == {1, 4}
    assert set(drawn(temperature=1.0, top_p=1.0)) == {0, 1, 2, 4}


def test_a_seed_draws_the_same_tokens_whatever_else_is_drawn() -> None:
    first = Sampler(Sampling(temperature=1.0, seed=5))
    tokens = [first.choose(LOGITS).token for _ in range(50)]
    second, other = Sampler(Sampling(temperature=1.0, seed=5)), Sampler(Sampling(temperature=1.0, seed=6))
    again = []
    for _ in range(50):
        other.choose(LOGITS)
        torch.rand(3)
        again.append(second.choose(LOGITS).token)
    assert again == tokens
    unseeded = [Sampler(Sampling(temperature=1.0)) for _ in range(2)]
    drawn_by = [[one.choose(LOGITS).token for _ in range(50)] for one in unseeded]
    assert drawn_by[0] != drawn_by[1]


def test_logprobs_are_the_models_own() -> None:
    choice = Sampler(Sampling(temperature=0.3, seed=1, logprobs=4)).choose(LOGITS)
    expected = LOGITS.log_softmax(-1)
    assert choice.logprob == pytest.approx(float(expected[choice.token]))
    assert [token for token, _ in choice.top] == [1, 4, 2, 0]
    assert [p for _, p in choice.top] == pytest.approx([float(expected[t]) for t in (1, 4, 2, 0)])


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"temperature": float("nan")},
        {"temperature": 10**400},
        {"top_p": 10**400},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"seed": 1.5},
        {"logprobs": 21},
        {"logprobs": -1},
        {"stop": ("",)},
        {"stop": ("x" * 257,)},
        {"stop": ("x",) * 17},
        {"stop": "x"},
    ],
)
def test_values_outside_the_limits_are_one_line(options: dict[str, Any]) -> None:
    with pytest.raises(KVMMError, match=next(iter(options))):
        Sampling(**options)


def test_stop_texts() -> None:
    assert cut_at_stop("one two three", ("two", "three")) == ("one ", True)
    assert cut_at_stop("one", ("two",)) == ("one", False)
    assert cut_at_stop("one two", ("two",), start=6) == ("one ", True)
    assert held_back("one t", ("two",)) == 1 and held_back("one tw", ("two", "w")) == 2 and held_back("one", ()) == 0


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(default_model())


@pytest.mark.parametrize("text", ["The total is $364.08.", "Grüße aus Köln – 東京 🙂 end", " a  b\n\nc"])
def test_a_stream_shows_the_decoded_text(tokenizer: Any, text: str) -> None:
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    stream = TextStream(tokenizer)
    pieces = [stream.add(token) for token in tokens]
    shown = "".join(pieces) + stream.finish()
    assert shown == tokenizer.decode(tokens, skip_special_tokens=True) == stream.text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_stream_holds_back_what_may_be_a_stop_text(tokenizer: Any) -> None:
    tokens = tokenizer("one two three four", add_special_tokens=False)["input_ids"]
    stream, shown = TextStream(tokenizer, ("three f",)), ""
    for token in tokens:
        shown += stream.add(token)
        assert "th" not in shown
    assert stream.stopped and shown + stream.finish() == "one two " == stream.text
    stream = TextStream(tokenizer, ("three five",))
    shown = "".join(stream.add(token) for token in tokens) + stream.finish()
    assert shown == "one two three four" and not stream.stopped


def test_a_conversation_samples_and_stops(omni: Any, invoice: Any) -> None:
    talk = Conversation(*omni, "balanced")
    *_, greedy = talk.ask("What is the total?", [invoice], max_new_tokens=12)
    fork = Conversation(*omni, "balanced")
    *_, recorded = fork.ask("What is the total?", [invoice], max_new_tokens=12, sampling=Sampling(logprobs=3))
    assert recorded.token_ids == greedy.token_ids and greedy.choices == ()
    assert [one.token for one in recorded.choices] == list(greedy.token_ids)
    assert all(one.top[0] == (one.token, one.logprob) for one in recorded.choices)

    # a picture in which nothing can be read: the model is unsure
    pixels = np.random.default_rng(0).integers(0, 255, (196, 196, 3), dtype=np.uint8)
    noise, answers = Media("image", Image.fromarray(pixels), "noise.png"), []
    for seed in (1, 1, 2, 3):
        side = Conversation(*omni, "balanced")
        sampling = Sampling(temperature=1.0, seed=seed)
        *_, last = side.ask("What is the first line?", [noise], max_new_tokens=6, sampling=sampling)
        answers.append(last.token_ids)
    assert answers[0] == answers[1] and len(set(answers)) > 1

    text = greedy.text
    side = Conversation(*omni, "balanced")
    *_, last = side.ask("What is the total?", [invoice], max_new_tokens=12, sampling=Sampling(stop=(text[2:4],)))
    assert last.text == text[:2].strip() and not last.stopped and last.tokens < len(greedy.token_ids)
    assert side.messages[-1]["content"][0]["text"] == last.text
    *_, after = side.ask("What is the date?", max_new_tokens=4)  # the conversation goes on
    assert after.tokens
