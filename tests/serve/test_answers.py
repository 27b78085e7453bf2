"""Answers of a running server: media, streams, prefixes, several clients at once, clients that go away."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from kvmm.media import load_media
from kvmm.models import Conversation
from kvmm.models.documents import Document, answer_tokens
from kvmm.models.prompting import encode_question
from kvmm.models.sampling import Choice
from kvmm.samples import SAMPLES
from kvmm.serve.generation import logprob_of
from tests.serve.running import Running, audio, chat, events, image, noise, pdf, serving, text_of


def test_an_answer_is_that_of_a_packed_document(server: Running, omni: Any) -> None:
    model, processor = omni
    question = "What is the total?"
    inputs = encode_question(model, processor, question, [load_media(SAMPLES / "invoice.png")[0].data])
    document = Document(model, inputs)
    with torch.no_grad():
        tokens = answer_tokens(model, inputs, document.cache("balanced"), 24)
    answer = server.ask(question, image())
    assert text_of(answer) == processor.tokenizer.decode(tokens, skip_special_tokens=True)
    choice, usage = answer["choices"][0], answer["usage"]
    assert choice["finish_reason"] == "stop" and choice["message"]["role"] == "assistant"
    assert usage["prompt_tokens"] == inputs["input_ids"].shape[1]
    assert usage["completion_tokens"] == len(tokens)
    cache = usage["kvmm"]
    assert 0 < cache["cache_nbytes"] < cache["cache_nbytes_bf16"] and 1 < cache["bits_per_value"] < 8


def test_a_document_is_read_once(server: Running) -> None:
    first = server.ask("What is the date?", image("receipt.png"))
    again = server.ask("What is the date?", image("receipt.png"))
    other = server.ask("Who wrote this?", image("receipt.png"))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = other["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0.9 * other["usage"]["prompt_tokens"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= cached
    assert text_of(again) == text_of(first)


def test_a_conversation_goes_on_where_it_stopped(server: Running) -> None:
    body = chat("What is the total?", image("table.png"))
    first = server.post(body).json()
    more = [{"role": "assistant", "content": text_of(first)}, {"role": "user", "content": "And the first row?"}]
    second = server.post({**body, "messages": body["messages"] + more}).json()
    usage = second["usage"]
    # all but the answer's last token, the markers around the turns and the question
    assert usage["prompt_tokens_details"]["cached_tokens"] > first["usage"]["prompt_tokens"]
    assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 32


@pytest.mark.parametrize("files", [(pdf(),), (audio(),), (image(), image("receipt.png")), (image(), audio())])
def test_media_of_every_kind(server: Running, files: Any) -> None:
    answer = server.ask("What does it say?", *files)
    assert text_of(answer) and answer["usage"]["prompt_tokens"] > 50


def test_a_stream_has_the_text_of_the_whole_answer(server: Running) -> None:
    body = chat("What is the invoice number?", image(), logprobs=True, top_logprobs=2)
    whole = server.post(body).json()
    answer = server.post({**body, "stream": True, "stream_options": {"include_usage": True}})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = events(answer.text)
    assert done == "[DONE]" and usage["choices"] == [] and len(chunks) > 3
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in chunks) == text_of(whole)
    assert [one["choices"][0]["finish_reason"] for one in chunks[-2:]] == [None, "stop"]
    logprobs = [p for one in chunks if one["choices"][0]["logprobs"] for p in one["choices"][0]["logprobs"]["content"]]
    entries = whole["choices"][0]["logprobs"]["content"]
    assert [p["token"] for p in logprobs] == [p["token"] for p in entries]
    assert all(len(p["top_logprobs"]) == 2 and p["logprob"] <= 0 for p in entries)
    assert bytes(b for p in entries for b in p["bytes"]).decode() == text_of(whole)


def test_logprobs_are_of_the_text_before_a_stop_text(server: Running) -> None:
    def entries(choice: dict[str, Any]) -> list[dict[str, Any]]:
        return choice["logprobs"]["content"] if choice["logprobs"] else []

    body = chat("What does it say?", image("letter.png"), logprobs=True)
    whole = server.post(body).json()["choices"][0]
    text, tokens = whole["message"]["content"], [one["token"] for one in entries(whole)]
    assert "".join(tokens) == text and len(tokens) > 4
    inside = next(i for i, token in enumerate(tokens) if i and len(token) > 1)
    cases = [
        ("".join(tokens[2:4]), 2),  # of two tokens, the first of which waits for the second
        (text[:1], 0),
        ("".join(tokens[inside:])[1:], inside + 1),  # within a token, which the text has the beginning of
        (tokens[-1] + "!", len(tokens)),  # does not come
    ]
    for stop, kept in cases:
        cut = server.post({**body, "stop": stop}).json()["choices"][0]
        assert cut["message"]["content"] == text.partition(stop)[0]
        assert [one["token"] for one in entries(cut)] == tokens[:kept]
        *chunks, _ = events(server.post({**body, "stop": stop, "stream": True}).text)
        assert [one["token"] for chunk in chunks for one in entries(chunk["choices"][0])] == tokens[:kept]


def test_sampling_parameters(server: Running) -> None:
    def text(**fields: Any) -> str:
        return text_of(server.ask("What is the first line?", noise(), **{"max_tokens": 6, **fields}))

    assert text(temperature=1, seed=4) == text(temperature=1, seed=4)
    assert len({text(temperature=1, seed=seed) for seed in range(3)}) == 3
    assert text(temperature=1, seed=4, top_p=1e-6) == text()
    whole = server.ask("What is the total?", image())
    cut = server.ask("What is the total?", image(), stop=[text_of(whole)[3:5]])
    assert text_of(cut) == text_of(whole)[:3] and cut["choices"][0]["finish_reason"] == "stop"
    short = server.ask("What is the total?", image(), max_tokens=2)
    assert short["usage"]["completion_tokens"] == 2 and short["choices"][0]["finish_reason"] == "length"


QUESTIONS = [
    (name, question)
    for name in ("invoice.png", "receipt.png", "table.png", "letter.png")
    for question in ("What is the total?", "What is the date?", "Who is it from?", "What is the first line?")
]


def test_sixteen_clients_get_the_answers_of_one_after_the_other(omni: Any) -> None:
    def ask(running: Running, case: tuple[str, str]) -> str:
        return text_of(running.ask(case[1], image(case[0])))

    with serving(omni) as alone:
        expected = [ask(alone, case) for case in QUESTIONS]
    with serving(omni) as together, ThreadPoolExecutor(16) as clients:
        assert list(clients.map(lambda case: ask(together, case), QUESTIONS)) == expected
        seen = together.metrics()
        # four documents were read, each of them once, and steps were shared
        assert seen["kvmm_prefix_misses_total"] == 4 and seen["kvmm_prefix_hits_total"] == 12
        assert seen["kvmm_decode_steps_total"] < 0.7 * seen["kvmm_generated_tokens_total"]
        assert seen['kvmm_requests_total{status="200"}'] == 16
        assert seen["kvmm_time_to_first_token_seconds_count"] == 16
        assert 0 < seen["kvmm_prefixes_bytes"] <= seen["kvmm_prefixes_budget_bytes"]
        assert seen["kvmm_places"] == 0


def address_of(running: Running) -> tuple[str, int]:
    host, port = running.url.removeprefix("http://").split(":")
    return host, int(port)


def request_bytes(body: bytes, announced: int | None = None) -> bytes:
    """A request as it is sent; ``announced``: the length that its header says."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {announced or len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_place(omni: Any, stream: bool) -> None:
    body = chat("What is the total?", image(), max_tokens=1000, stream=stream)
    with serving(omni, max_running=1) as running:
        engine = running.service.engine
        ends, engine.ends = engine.ends, frozenset()  # no answer ends before it is as long as it may be
        with socket.create_connection(address_of(running)) as connection:
            connection.sendall(request_bytes(json.dumps(body).encode()))
            running.wait_for(lambda: engine.status().decoding == 1)
            assert running.service.places == 1
        running.wait_for(lambda: running.service.places == 0 and engine.status().decoding == 0)
        generated = running.metrics()["kvmm_generated_tokens_total"]
        assert 0 < generated < 1000
        engine.ends = ends
        assert text_of(running.ask("What is the date?", image()))
        assert running.metrics()['kvmm_requests_total{status="499"}'] == 1
        assert running.service.prepared.nbytes == running.service.bodies.nbytes == 0


def test_a_client_that_goes_away_while_it_sends(server: Running) -> None:
    with socket.create_connection(address_of(server)) as connection:
        connection.sendall(request_bytes(b'{"model": ', announced=1000))
        server.wait_for(lambda: server.service.places == 1)
    server.wait_for(lambda: server.service.places == 0)


def test_the_app_and_the_server_share_a_model(server: Running, omni: Any) -> None:
    """Answers of a conversation are unaffected by those that the engine writes on the same model meanwhile."""
    item = load_media(SAMPLES / "letter.png")
    *_, alone = Conversation(*omni, "balanced").ask("Who is it from?", item, max_new_tokens=12)
    with ThreadPoolExecutor(2) as clients:
        jobs = [clients.submit(server.ask, f"What is line {k}?", image("table.png")) for k in range(4)]
        *_, beside = Conversation(*omni, "balanced").ask("Who is it from?", item, max_new_tokens=12)
        assert all(text_of(job.result()) for job in jobs)
    assert beside.token_ids == alone.token_ids


def test_an_answer_alone_is_drafted_and_stays_the_same(omni: tuple[Any, Any], server: Running) -> None:
    asked = [("What does it say?", image("letter.png")), ("What is the total?", image("invoice.png"))]
    expected = [server.ask(question, page, max_tokens=40) for question, page in asked]
    with serving(omni, speculative="lookup") as drafted:
        for (question, page), other in zip(asked, expected, strict=True):
            for _ in range(2):  # read now, and found again
                answer = drafted.ask(question, page, max_tokens=40)
                assert text_of(answer) == text_of(other)
                assert answer["usage"]["completion_tokens"] == other["usage"]["completion_tokens"]
        metrics = drafted.metrics()
        assert 0 <= metrics["kvmm_accepted_tokens_total"] <= metrics["kvmm_drafted_tokens_total"]
        # what the text repeats is drafted from it
        text = "one two three four five six seven eight nine ten. " * 12
        plain, answer = (one.ask(text + "Repeat this.", max_tokens=64) for one in (server, drafted))
        assert text_of(answer) == text_of(plain)
        details = answer["usage"]["completion_tokens_details"]
        counted = drafted.metrics()
        rejected = counted["kvmm_drafted_tokens_total"] - counted["kvmm_accepted_tokens_total"]
        assert details["accepted_prediction_tokens"] <= counted["kvmm_accepted_tokens_total"]
        assert details["rejected_prediction_tokens"] <= rejected
        # a conversation goes on from the cache of a drafted answer
        messages = chat(*asked[1])["messages"]
        messages += [
            {"role": "assistant", "content": text_of(expected[1])},
            {"role": "user", "content": "And the date?"},
        ]
        body = chat("", messages=messages)
        after = [one.post(body).json() for one in (server, drafted)]
        assert text_of(after[0]) == text_of(after[1])
        assert after[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 600
        drawn = drafted.ask("What does it say?", noise(), temperature=1.0, seed=3)
        assert drawn["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0


def test_the_bytes_of_parts_of_a_character_make_the_character(omni: Any) -> None:
    tokenizer = omni[1].tokenizer
    for text in ("1 €", "café 日本 😀"):
        ids = tokenizer(text)["input_ids"]
        told = [logprob_of(tokenizer, Choice(token, -1.0, ((token, -1.0),))) for token in ids]
        assert any("\ufffd" in one.text for one in told)
        assert b"".join(one.content for one in told).decode() == text
        assert b"".join(one.top[0][1] for one in told).decode() == text


def test_the_bytes_of_a_part_of_a_character_in_sentencepiece() -> None:
    class Tokenizer:
        def decode(self, ids: list[int], **options: bool) -> str:
            return "\ufffd"

        def convert_ids_to_tokens(self, token: int) -> str:
            return f"<0x{token:02X}>"

    assert logprob_of(Tokenizer(), Choice(0xE2, -1.0)).content == b"\xe2"
