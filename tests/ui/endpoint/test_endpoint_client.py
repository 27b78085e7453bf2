"""The client of a server: what it sends, what it makes of answers, and a line for all that goes wrong."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kvmm.errors import KVMMError
from kvmm.media import load_media
from kvmm.models.confidence import Confidence
from kvmm.models.sampling import GREEDY, Sampling
from kvmm.samples import SAMPLES
from kvmm.serve.protocol import TokenLogprob
from kvmm.ui.endpoint import conversation as talking
from kvmm.ui.endpoint.client import MAX_LINE, Endpoint, EndpointUsage
from kvmm.ui.endpoint.conversation import EndpointConversation
from kvmm.ui.endpoint.models import EndpointModels
from kvmm.ui.endpoint.parts import message_of
from tests.ui.endpoint.fake_server import ANSWER, USAGE, FakeServer, event, logged


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with contextlib.closing(FakeServer()) as fake:
        yield fake


def talk(server: FakeServer) -> EndpointConversation:
    return EndpointModels(Endpoint(server.url, "secret")).converse("small", "balanced")


def test_an_answer_streams_with_what_the_server_tells(server) -> None:
    conversation = talk(server)
    steps = list(conversation.ask("What is the total?", max_new_tokens=9))
    assert [step.text for step in steps[:3]] == ["$1,", "$1,274", "$1,274.94"]
    last = steps[-1]
    assert last.done and not last.stopped and last.text == "$1,274.94" and last.tokens == 3
    assert last.usage == EndpointUsage(70, 3, 64, 100, 400, 4.0) and last.usage.ratio == 4
    body, headers = server.asked[0]
    assert headers["Authorization"] == "Bearer secret"
    assert body["model"] == "small" and body["max_tokens"] == 9 and body["temperature"] == 0 and body["stream"]
    assert "seed" not in body and "top_p" not in body


def test_the_rate_is_that_of_the_steps_after_the_first(server, monkeypatch) -> None:
    """Pieces come at 1, 5, 6 and 7 seconds; the server says that they were six tokens."""
    ticks = [0.0, *(t for time in (1.0, 5.0, 6.0, 7.0) for t in (time, time)), 7.0]
    monkeypatch.setattr(talking, "time", SimpleNamespace(perf_counter=iter(ticks).__next__))
    server.chunks = [*map(event, "abcd"), event(usage=USAGE | {"completion_tokens": 6}), b"data: [DONE]\n\n"]
    steps = list(talk(server).ask("What is the total?"))
    assert [step.tokens_per_second for step in steps] == [0, 0.25, 1, 1, 2]
    assert (steps[-1].ttft, steps[-1].first_step, steps[-1].tokens) == (1, 4, 6)


def test_a_follow_up_sends_what_was_said_and_shown(server) -> None:
    conversation = talk(server)
    page = load_media(SAMPLES / "invoice.png", keep=True)
    list(conversation.ask("What is the total?", page))
    list(conversation.ask("And the date?", sampling=Sampling(0.5, 0.9, 7, stop=("\n",))))
    body = server.asked[1][0]
    assert [one["role"] for one in body["messages"]] == ["user", "assistant", "user"]
    picture, question = body["messages"][0]["content"]
    sent = base64.b64decode(picture["image_url"]["url"].removeprefix("data:image/png;base64,"))
    assert sent == (SAMPLES / "invoice.png").read_bytes(), "the file as it was sent"
    assert question["text"] == "What is the total?" and body["messages"][1]["content"] == "$1,274.94"
    assert (body["temperature"], body["top_p"], body["seed"], body["stop"]) == (0.5, 0.9, 7, ["\n"])


def test_documents_go_whole_and_recordings_as_they_are(server) -> None:
    media = [item for name in ("report.pdf", "question.wav") for item in load_media(SAMPLES / name, keep=True)]
    assert len(media) > 2
    document, recording = message_of("", [*media])["content"]
    assert base64.b64decode(document["file"]["file_data"].partition(",")[2]) == (SAMPLES / "report.pdf").read_bytes()
    assert base64.b64decode(recording["input_audio"]["data"]) == (SAMPLES / "question.wav").read_bytes()
    assert recording["input_audio"]["format"] == "wav"


def test_what_was_only_decoded_is_encoded_again() -> None:
    media = [item for name in ("receipt.png", "question.wav") for item in load_media(SAMPLES / name)]
    picture, recording = message_of("", media)["content"]
    again = load_media(base64.b64decode(picture["image_url"]["url"].partition(",")[2]))
    assert again[0].data.tobytes() == media[0].data.tobytes()
    assert load_media(base64.b64decode(recording["input_audio"]["data"]))[0].data == pytest.approx(media[1].data)


def test_stop_closes_the_connection_and_takes_the_question_back(server) -> None:
    conversation, stop = talk(server), threading.Event()
    server.chunks = [event(f"{i} ") for i in range(2000)]
    server.between = lambda number: time.sleep(0.01)
    begin = time.monotonic()
    for step in conversation.ask("Count.", stop=stop):
        if step.tokens >= 2:
            stop.set()
    assert step.done and step.stopped and time.monotonic() - begin < 5
    assert server.gone.wait(5), "the server writes on to a client that went away"
    assert conversation.messages == []


def test_stop_does_not_wait_for_a_server_that_says_nothing(server) -> None:
    conversation, stop, go_on = talk(server), threading.Event(), threading.Event()
    server.between = lambda number: go_on.wait(30)
    threading.Timer(0.3, stop.set).start()
    begin = time.monotonic()
    (step,) = conversation.ask("Read it all.", stop=stop)
    assert step.stopped and time.monotonic() - begin < 5
    go_on.set()


def fails(conversation: EndpointConversation, match: str) -> None:
    with pytest.raises(KVMMError, match=match) as found:
        list(conversation.ask("What is the total?"))
    assert "\n" not in str(found.value)
    assert conversation.messages == []


def test_a_server_that_goes_away_in_the_middle(server) -> None:
    conversation = talk(server)
    server.chunks = ANSWER[:2]
    fails(conversation, "went away in the middle of the answer: ask again")
    server.chunks = ANSWER  # nothing is left of it
    assert list(conversation.ask("What is the total?"))[-1].text == "$1,274.94"
    server.close()
    with pytest.raises(KVMMError, match="cannot be reached"):
        list(conversation.ask("And now?"))
    assert len(conversation.messages) == 2


@pytest.mark.parametrize(
    ("status", "chunks", "match"),
    [
        (404, [b'{"error": {"message": "There is no model \'small\'\\nhere."}}'], "There is no model 'small' here."),
        (401, [b"{}"], "does not accept the key"),
        (500, [b"<html>no</html>"], "status 500"),
        (200, [b'data: {"error": {"message": "Memory ran out."}}\n\n'], "Memory ran out."),
        (200, [b"data: nonsense\n\n"], "is no OpenAI server"),
        (200, [b'data: {"choices": [3]}\n\n'], "is no OpenAI server"),
        (200, [b"data: [[[[\n\n"], "is no OpenAI server"),
        (200, [b"x" * (MAX_LINE + 10)], "too large"),
        (200, [event("x" * (MAX_LINE - 100))] * 6, "longer than"),
    ],
)
def test_what_a_server_says_instead_of_an_answer(server, status, chunks, match) -> None:
    server.status, server.chunks = status, chunks
    fails(talk(server), match)


@pytest.mark.parametrize(
    ("models", "match"),
    [
        ((401, {}), "does not accept the key"),
        ((404, {}), "is no OpenAI server"),
        ((200, b"<html>"), "is no OpenAI server"),
        ((200, {"data": []}), "is no OpenAI server"),
        ((200, {"data": [{"id": 3}]}), "is no OpenAI server"),
        ((200, b"x" * (MAX_LINE + 10)), "is no OpenAI server"),
    ],
)
def test_what_is_no_server(server, models, match) -> None:
    server.models = models
    with pytest.raises(KVMMError, match=match):
        Endpoint(server.url).models()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://host/v1", "http://", "http://h/v1?x=1", "http://h\x00/"])
def test_what_is_no_address(url) -> None:
    with pytest.raises(KVMMError, match="no address of a server"):
        Endpoint(url)


def test_keys_that_cannot_be_sent() -> None:
    for key in ("", " ", "ä", "a\nb"):
        with pytest.raises(KVMMError, match="printable ASCII"):
            Endpoint("http://127.0.0.1/v1", key)
    with pytest.raises(KVMMError, match="--api-key"):
        Endpoint("http://user:word@127.0.0.1/v1")


def test_models_are_chosen_among_those_of_the_server(server) -> None:
    endpoint = Endpoint(server.url)
    assert EndpointModels(endpoint).names == ["small", "large"]
    assert EndpointModels(endpoint, ["large"]).names == ["large"]
    with pytest.raises(KVMMError, match=r"no model 'huge'; it has: small, large"):
        EndpointModels(endpoint, ["huge"])
    models = EndpointModels(endpoint)
    with pytest.raises(KVMMError, match="without --endpoint"):
        models.get("small")
    with pytest.raises(KVMMError, match="no full precision"):
        models.converse("small", "dynamic")
    with pytest.raises(KVMMError, match="There is no model"):
        models.converse("huge", "balanced")


@pytest.mark.parametrize(
    ("told", "confidence"),
    [
        ({"confidence": 0.9, "unsure": False}, Confidence(0.9, False)),
        ({"confidence": 0.9, "unsure": True, "supported": False}, Confidence(0.9, True, False)),
        ({"confidence": 0.9, "unsure": 1, "supported": "no"}, Confidence(0.9, False)),
        ({"confidence": 2, "unsure": True, "supported": False}, None),
        ({"supported": False}, None),
    ],
)
def test_how_sure_the_server_is(told, confidence, server) -> None:
    server.chunks = [event("Yes."), event(usage={"kvmm": told}), b"data: [DONE]\n\n"]
    *_, last = talk(server).ask("Is it?")
    assert last.confidence == confidence


@pytest.mark.parametrize(
    ("told", "nearest"), [("Søren\n Lund", "Søren Lund"), (" ", None), (7, None), ("x" * 401, None)]
)
def test_the_passage_of_a_pdf_that_the_server_names(told, nearest, server) -> None:
    server.chunks = [event("Soren Lunt"), event(usage={"kvmm": {"nearest_text": told}}), b"data: [DONE]\n\n"]
    *before, last = talk(server).ask("Who?")
    assert last.nearest_text == nearest and all(one.nearest_text is None for one in before)


@pytest.mark.parametrize(
    "usage", [None, 3, {}, {"prompt_tokens": "many"}, {"kvmm": [1]}, {"prompt_tokens": -1}, {"prompt_tokens": 10**400}]
)
def test_usage_that_says_nothing_usable(usage, server) -> None:
    server.chunks = [event("Yes."), event(usage=usage), b"data: [DONE]\n\n"]
    last = list(talk(server).ask("?"))[-1]
    assert last.text == "Yes." and last.tokens == 1
    assert last.usage is None or last.usage == EndpointUsage()


def test_log_probabilities_are_asked_for_and_told(server) -> None:
    top = [{"token": "Yes", "logprob": -0.1}, {"token": "No", "logprob": -2.5}, "no entry"]
    entries = [{"token": "Yes", "logprob": -0.1, "top_logprobs": top}, {"token": "." * 500, "logprob": 3}]
    server.chunks = [logged("Yes.", {"content": [*entries, {"token": 1, "logprob": -1}, None, {"token": "x"}]})]
    server.chunks += [event(usage=USAGE), b"data: [DONE]\n\n"]
    *_, last = talk(server).ask("Is it?", sampling=Sampling(logprobs=3))
    yes, no = ("Yes", b"Yes", -0.1), ("No", b"No", -2.5)
    assert last.logprobs == (TokenLogprob(*yes, (yes, no)), TokenLogprob("." * 100, b"." * 100, 0.0, ()))
    assert server.asked[-1][0]["logprobs"] is True and server.asked[-1][0]["top_logprobs"] == 3
    *_, last = talk(server).ask("Is it?", sampling=Sampling(logprobs=3), max_new_tokens=1)
    assert len(last.logprobs) == 1, "no more than were asked for"
    *_, last = talk(server).ask("Is it?")
    assert last.logprobs is None and "logprobs" not in server.asked[-1][0]


@pytest.mark.parametrize(
    "told", [None, 3, [], {"content": None}, {"content": {}}, {"content": [[], {"token": "\ud800"}]}]
)
def test_log_probabilities_that_say_nothing_usable(told, server) -> None:
    server.chunks = [logged("Yes.", told), event(usage=USAGE), b"data: [DONE]\n\n"]
    *_, last = talk(server).ask("Is it?", sampling=Sampling(logprobs=0))
    assert last.text == "Yes." and last.logprobs == ()
    assert "top_logprobs" not in server.asked[-1][0]


def test_a_branch_goes_on_alone(server) -> None:
    conversation = talk(server)
    list(conversation.ask("One?"))
    branch = conversation.fork()
    list(branch.ask("Two?", sampling=GREEDY))
    assert len(conversation.messages) == 2 and len(branch.messages) == 4
    branch.truncate(1)
    assert branch.messages == conversation.messages
    fresh = talk(server)
    fresh.adopt(conversation)
    assert fresh.messages == conversation.messages and fresh.messages is not conversation.messages
