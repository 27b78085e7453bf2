"""What a request's JSON may hold, and the one line that says what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from kvmm.models.sampling import Sampling
from kvmm.serve.errors import APIError
from kvmm.serve.protocol import File, Reply, Usage, parse_request

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "Hello"}], **fields}


def asked(*parts: Any, **fields: Any) -> dict[str, Any]:
    return body(messages=[{"role": "user", "content": list(parts)}], **fields)


def test_defaults_are_greedy() -> None:
    request = parse_request(body())
    assert request.sampling == Sampling() and request.sampling.is_plain
    assert (request.max_tokens, request.stream, request.include_usage) == (None, False, False)
    assert request.messages[0].parts == ("Hello",)


def test_fields_arrive() -> None:
    given = body(
        temperature=0.7,
        top_p=0.9,
        seed=3,
        stop="END",
        max_tokens=5,
        max_completion_tokens=7,
        logprobs=True,
        top_logprobs=2,
    )
    request = parse_request({**given, "stream": True, "stream_options": {"include_usage": True}})
    assert request.sampling == Sampling(0.7, 0.9, 3, ("END",), 2)
    assert request.max_tokens == 7 and request.stream and request.include_usage


def test_parts_keep_their_order() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
    pdf = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}}
    (message,) = parse_request(
        asked({"type": "text", "text": "one"}, IMAGE, audio, pdf, {"type": "text", "text": "two"})
    ).messages
    assert message.parts[0] == "one" and message.parts[-1] == "two"
    assert [part.kind for part in message.parts if isinstance(part, File)] == ["image", "audio", "document"]
    assert message.parts[3].name == "a.pdf"


def test_roles_become_those_of_templates() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, *body()["messages"]]
    assert [one.role for one in parse_request(body(messages=messages)).messages] == ["system", "user"]


WRONG = [
    ("a text", None),
    ([], None),
    ({"messages": []}, "model"),
    (body(model=""), "model"),
    (body(messages=[]), "messages"),
    (body(messages="Hello"), "messages"),
    (body(messages=[{"role": "user", "content": "half a pair: \ud800"}]), "messages"),
    (body(messages=[{"role": "robot", "content": "x"}]), "messages[0].role"),
    (body(messages=[{"role": ["user"], "content": "x"}]), "messages[0].role"),
    (body(messages=[{"role": "user", "content": 3}]), "messages[0].content"),
    (body(messages=[{"role": "user", "content": []}]), "messages[0].content"),
    (body(messages=[{"role": "assistant", "content": "x"}]), "messages"),
    (body(messages=[{"role": "user", "content": "x"}] * 2001), "messages"),
    (body(messages=[{"role": "user", "content": "x" * 2_000_001}]), "messages"),
    (body(messages=[{"role": "system", "content": [IMAGE]}, *body()["messages"]]), "messages[0].content"),
    (asked({"type": "text"}), "messages[0].content[0]"),
    (asked({"type": "video_url", "video_url": {}}), "messages[0].content[0]"),
    (
        asked({"type": "image_url", "image_url": {"url": "http://example.org/a.png"}}),
        "messages[0].content[0].image_url.url",
    ),
    (asked({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}), "messages[0].content[0].image_url.url"),
    (asked({"type": "image_url", "image_url": {"url": "data:image/png,hi"}}), "messages[0].content[0].image_url.url"),
    (asked({"type": "file", "file": {"file_id": "file-1"}}), "messages[0].content[0]"),
    (asked(*[IMAGE] * 65), "messages"),
    (body(temperature="hot"), "temperature"),
    (body(temperature=2.5), "temperature"),
    (body(temperature=float("nan")), "temperature"),
    (body(temperature=True), "temperature"),
    (body(top_p=0), "top_p"),
    (body(seed=2**70), "seed"),
    (body(stop=["a"] * 17), "stop"),
    (body(stop=[""]), "stop"),
    (body(stop={"a": 1}), "stop"),
    (body(logprobs=True, top_logprobs=21), "top_logprobs"),
    (body(top_logprobs=2), "top_logprobs"),
    (body(max_tokens=0), "max_tokens"),
    (body(max_tokens=True), "max_tokens"),
    (body(max_completion_tokens="9"), "max_completion_tokens"),
    (body(stream="yes"), "stream"),
    (body(stream_options=[1]), "stream_options"),
    (body(stream=True, stream_options={"include_usage": "yes"}), "stream_options.include_usage"),
    (body(n=2), "n"),
    (body(tools=[{"type": "function"}]), "tools"),
    (body(response_format={"type": "json_object"}), "response_format"),
    (body(frequency_penalty=0.5), "frequency_penalty"),
    (body(logit_bias={"1": 5}), "logit_bias"),
    (body(top_k=5), "top_k"),
    (body(min_p=0.1), "min_p"),
    (body(repetition_penalty=1.1), "repetition_penalty"),
    (body(guided_json={"type": "object"}), "guided_json"),
    (body(ignore_eos=True), "ignore_eos"),
    (body(n=True), "n"),
    (body(min_p=False), "min_p"),
]


@pytest.mark.parametrize(("given", "param"), WRONG, ids=[f"{i}-{param}" for i, (_, param) in enumerate(WRONG)])
def test_what_is_wrong_is_one_line_with_its_field(given: Any, param: str | None) -> None:
    with pytest.raises(APIError) as found:
        parse_request(given)
    error = found.value.body()["error"]
    assert found.value.status == 400 and error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert "\n" not in error["message"] and len(error["message"]) < 300


def test_neutral_values_are_taken() -> None:
    parse_request(body(n=1, tools=[], tool_choice="auto", response_format={"type": "text"}, user="me", store=False))
    parse_request(body(top_k=-1, min_p=0.0, repetition_penalty=1.0, ignore_eos=False, best_of=1, stop_token_ids=[]))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("max_token", "max_tokens"), ("temprature", "temperature"), ("Stop", "stop"), ("max_new_tokens", "max_tokens")],
)
def test_a_misspelt_field_is_refused_with_the_right_one(wrong: str, right: str) -> None:
    with pytest.raises(APIError, match=f"did you mean {right}") as found:
        parse_request(body(**{wrong: 1}))
    assert found.value.body()["error"]["param"] == wrong


def test_fields_that_describe_a_request_are_passed_over() -> None:
    names = ("metadata", "service_tier", "safety_identifier", "prompt_cache_key", "reasoning_effort", "verbosity",
             "parallel_tool_calls", "cache_prompt", "keep_alive")  # fmt: skip
    parse_request(body(**dict.fromkeys(names, "x")))
    parse_request(body(**{f"stopp\ud800{i}": 1 for i in range(1000)}))


def test_a_completion_has_the_fields_of_openai() -> None:
    usage = Usage(10, 3, 8, {"cache_nbytes": 5})
    answer = Reply("chatcmpl-1", "m", 1).completion("Yes", "stop", None, usage)
    assert answer["object"] == "chat.completion" and answer["choices"][0]["message"]["content"] == "Yes"
    assert answer["usage"]["total_tokens"] == 13 and answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 8
    assert answer["usage"]["kvmm"] == {"cache_nbytes": 5}
