"""The door: keys, bodies, errors in OpenAI's form, and what one key sees of another."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from kvmm.commands.serve import LOOPBACK
from kvmm.serve.http import Settings
from tests.serve.running import MODEL, Running, audio, chat, image, serving, text_of

KEYS = ("first-key", "second-key")
LIMIT = 2 * 2**20
AUDIO = audio()["input_audio"]["data"]


@pytest.fixture(scope="module")
def locked(omni: Any) -> Iterator[Running]:
    """A server with two keys and small bodies."""
    with serving(omni, settings=Settings(MODEL, KEYS, max_body=LIMIT, max_places=3)) as running:
        yield running


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, after a look at its form."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["message"].isprintable() and len(error["message"]) < 500
    return error


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}", "/metrics"])
@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer wrong", "Basic first-key", "Bearer first-key,x"])
def test_nothing_without_a_right_key(locked: Running, path: str, given: str | None) -> None:
    answer = httpx.get(locked.url + path, headers={} if given is None else {"authorization": given})
    assert answer.status_code == 401 and error_of(answer)["code"] == "invalid_api_key"
    assert httpx.get(locked.url + path, headers=bearer("second-key")).status_code == 200


def test_health_needs_no_key(locked: Running) -> None:
    assert httpx.get(f"{locked.url}/health").json() == {"status": "ok"}
    answer = httpx.head(f"{locked.url}/health")
    assert answer.status_code == 200 and not answer.content


def test_the_model_is_listed(locked: Running) -> None:
    (model,) = httpx.get(f"{locked.url}/v1/models", headers=bearer("first-key")).json()["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == (MODEL, "model", 8192)
    assert model["kvmm"]["policy"] == "balanced"


def send_raw(running: Running, head: str, body: bytes = b"") -> bytes:
    """What comes back for a request that is never sent to its end."""
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode() + body)
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


def test_a_body_is_read_after_the_key(locked: Running) -> None:
    head = "Content-Type: application/json\r\nContent-Length: 1000000\r\n"
    assert send_raw(locked, head).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("announced", [f"Content-Length: {LIMIT + 1}\r\n", "Transfer-Encoding: chunked\r\n"])
def test_a_body_is_bounded_whatever_it_announces(locked: Running, announced: str) -> None:
    head = f"Authorization: Bearer first-key\r\nContent-Type: application/json\r\n{announced}"
    chunk = b"%x\r\n" % 2**20 + b" " * 2**20 + b"\r\n"
    answer = send_raw(locked, head, chunk * 2 + b"10\r\n" + b" " * 16 + b"\r\n" if "chunked" in announced else b"")
    assert answer.startswith(b"HTTP/1.1 413") and b"body_too_large" in answer
    assert locked.service.places == 0 and locked.service.bodies.nbytes == 0


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b'{"model": NaN}', 400),
        (b"[1]", 400),
        (json.dumps(chat("x", model="gpt-4o")).encode(), 404),
        (json.dumps(chat("x", temperature=9)).encode(), 400),
        (json.dumps(chat("x", temperature=10**400)).encode(), 400),
    ],
)
def test_bad_bodies_are_one_line(locked: Running, content: bytes, status: int) -> None:
    headers = {**bearer("first-key"), "content-type": "application/json"}
    answer = httpx.post(f"{locked.url}/v1/chat/completions", content=content, headers=headers, timeout=60)
    assert answer.status_code == status, answer.text
    error = error_of(answer)
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    assert "The body:" not in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("POST", "/chat/completions", 404, "There is no POST /chat/completions here: this server has /v1/chat/"),
        ("GET", "/", 404, "/v1/models"),
        ("GET", "/v1/chat/completions", 405, "/v1/chat/completions takes POST, not GET."),
        ("DELETE", "/v1/models", 405, "/v1/models takes GET, not DELETE."),
    ],
)
def test_a_wrong_address_is_told_the_right_ones(
    server: Running, method: str, path: str, status: int, says: str
) -> None:
    answer = httpx.request(method, f"{server.url}{path}", timeout=60)
    error = error_of(answer)
    assert answer.status_code == status and says in error["message"]
    assert error["code"] == ("not_found" if status == 404 else "method_not_allowed")


def test_a_page_of_another_site_cannot_ask(locked: Running) -> None:
    """Without asking first, a browser sends JSON only under another type."""
    headers = {**bearer("first-key"), "content-type": "text/plain"}
    answer = httpx.post(f"{locked.url}/v1/chat/completions", content=json.dumps(chat("x")), headers=headers)
    assert answer.status_code == 415 and error_of(answer)


def test_a_server_without_keys_answers_to_its_own_names_alone(server: Running) -> None:
    """A page of another site can have its own name lead to this machine."""
    port = server.url.rpartition(":")[2]
    assert httpx.get(f"{server.url}/v1/models", headers={"host": f"evil.example:{port}"}).status_code == 200
    server.service.settings = replace(server.service.settings, hosts=LOOPBACK)
    for name, status in (("127.0.0.1", 200), ("localhost", 200), ("[::1]", 200), ("evil.example", 403)):
        answer = httpx.get(f"{server.url}/v1/models", headers={"host": f"{name}:{port}"})
        assert answer.status_code == status, name


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}, "not base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}, "empty"),
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64(b'hello')}"}}, "The image"),
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64(b'%PDF-1.4 broken')}"}}, "The image"),
        ({"type": "input_audio", "input_audio": {"data": b64(b"RIFF0000WAVEbroken"), "format": "wav"}}, "recording"),
        ({"type": "file", "file": {"filename": "a.pdf", "file_data": b64(b"%PDF-1.4 broken")}}, "a.pdf"),
        (
            {"type": "input_audio", "input_audio": {"data": image()["image_url"]["url"], "format": "wav"}},
            "type image_url",
        ),
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{AUDIO}"}}, "type input_audio"),
        ({"type": "file", "file": {"filename": "\ud800a\nb\0", "file_data": b64(b"%PDF-1.4 broken")}}, "ab "),
        ({"type": "file", "file": {"filename": "\0", "file_data": b64(b"%PDF-1.4 broken")}}, "The file "),
        ({"type": "text", "text": "What is <|IMAGE|>?"}, "marker"),
        ({"type": "text", "text": "word " * 20_000}, "window holds"),
    ],
)
def test_files_that_cannot_be_used_are_one_line(locked: Running, part: dict[str, Any], says: str) -> None:
    headers = {**bearer("first-key"), "content-type": "application/json"}
    content = json.dumps(chat("What is it?", part))  # which escapes halves of surrogate pairs
    answer = httpx.post(f"{locked.url}/v1/chat/completions", content=content, headers=headers, timeout=1200)
    assert answer.status_code == 400, answer.text
    assert says in error_of(answer)["message"]


def test_unknown_paths_are_in_the_same_form(locked: Running) -> None:
    asked = [("GET", "/"), ("GET", "/v1/completions"), ("GET", "/v1/chat/completions"), ("POST", "/docs")]
    for method, path in (*asked, ("POST", "/v1/chat/completions/"), ("GET", "/v1/a%0Ab%00")):
        answer = httpx.request(method, locked.url + path, headers=bearer("first-key"))
        assert answer.status_code in (404, 405) and error_of(answer)


def test_no_more_places_than_the_operator_allows(locked: Running) -> None:
    locked.service.places += 3  # as many as there are
    try:
        answer = locked.post(chat("x"), headers=bearer("first-key"))
    finally:
        locked.service.places -= 3
    assert answer.status_code == 503 and error_of(answer)["code"] == "overloaded"
    assert answer.headers["retry-after"] == "1"


def cached(answer: httpx.Response) -> int:
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_one_key_finds_nothing_of_another(locked: Running, omni: Any) -> None:
    body = chat("What is the total?", image())
    answers = [locked.post(body, headers=bearer(key)) for key in ("first-key", "second-key", "first-key")]
    assert [bool(cached(one)) for one in answers] == [False, False, True]
    assert len({text_of(one.json()) for one in answers}) == 1
    with serving(omni, settings=Settings(MODEL, KEYS, share_prefixes=True)) as told:
        shared = [told.post(body, headers=bearer(key)) for key in KEYS]
        assert [bool(cached(one)) for one in shared] == [False, True]


def test_documents_are_found_after_a_restart(omni: Any, tmp_path: Any) -> None:
    settings = Settings(MODEL, KEYS)
    body = chat("What is the total?", image())
    with serving(omni, settings=settings, cache_dir=tmp_path) as running:
        first = running.post(body, headers=bearer("first-key"))
    with serving(omni, settings=settings, cache_dir=tmp_path) as running:
        other = running.post(body, headers=bearer("second-key"))
        again = running.post(body, headers=bearer("first-key"))
    assert [bool(cached(one)) for one in (first, other, again)] == [False, False, True]
    assert text_of(again.json()) == text_of(first.json()) == text_of(other.json())
    with serving(omni, "small", settings, cache_dir=tmp_path) as running:
        assert not cached(running.post(body, headers=bearer("first-key")))
