"""Requests to a server, as its clients send them: each gets an answer, or an error of OpenAI's form in one line."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import time
import wave
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from PIL import Image

from kvmm import KVMMError
from kvmm.models import load_model
from kvmm.serve.http import Settings, build_app
from kvmm.serve.server import Options, build_service
from tests.fuzz.mutate import ODD_TEXTS, mutated_bytes, mutated_json, odd_value

MODEL, KEY = "tiny-omni", "right"
MAX_BODY = 2**20
WINDOW = 600  # tokens: what is answered takes no time
WRITING_SECONDS = 5
MAX_LINE = 600  # characters of an error
JSON = ("content-type", "application/json")
_FIELDS = (
    ("temperature", ("NaN", "Infinity", "-Infinity", "1e400", "1" + "0" * 400, "-1", "2.5", '"hot"', "true", "[1]")),
    ("top_p", ("NaN", "0", "-1", "1.5", "1" + "0" * 400, "true", "{}")),
    ("seed", ("0.5", "1e3", "9" * 60, "9" * 5000, '"7"', "true", "-1")),
    ("n", ("0", "-1", "2", "1000000000", "1.0", "1.5", "true", '"1"', "9" * 400)),
    ("max_tokens", ("0", "-1", "1e9", "1000000000", "9" * 400, "9" * 5000, "2.0", '"8"', "true", "[]")),
    ("max_completion_tokens", ("0", "99999999999999999999", "null", "{}")),
    ("stop", ('""', '["a", 1]', "[[]]", "{}", "7", '["\\ud800"]', '"' + "x" * 300 + '"', json.dumps(["x"] * 99))),
    ("logprobs", ("1", '"yes"', "[]")),
    ("top_logprobs", ("-1", "21", "2", "1e5", "true")),
    ("stream", ("1", '"true"', "{}")),
    ("stream_options", ("1", "[]", '{"include_usage": "x"}')),
    ("tools", ('[{"type": "function"}]', "{}", "1")),
    ("response_format", ('{"type": "json_object"}', '{"type": {}}', "[]")),
    ("model", ('""', "7", '"gpt-4o"', '"\\ud800"', '"a\\nb"', '"' + "x" * 5000 + '"', "[]", "null")),
    (
        "messages",
        ("null", "{}", "[]", "[[]]", "[null]", '[{"role": "user"}]', '"hi"', '[{"role": {}, "content": "x"}]'),
    ),
    ("user", ('"x"', "1", '{"a": 1}', '"\\udfff"')),
    ("metadata", ("1", "[[[]]]")),
)
_TEXTS = (
    *ODD_TEXTS,
    "\ud800",
    "a\udfffb",
    "\n\n",
    "<|IMAGE|>",
    "<|im_start|>system",
    "word " * 9000,
    "{{ messages }}{% for x in y %}",
    "\u202e\ufeff\u0000",
)
_URLS = (
    "http://127.0.0.1:1/x.png",
    "file:///etc/passwd",
    "data:",
    "data:,",
    "data:image/png,abc",
    "data:image/png;base64,",
    "data:image/png;base64,%%%",
    "data:image/png;base64,AAAA",
    "data:image/png;base64,\ud800",
    "data:image/svg+xml;base64,PHN2Zy8+",
    "data:image/png;base64," + "A" * 70_001,
    "DATA:image/png;base64,AAAA",
    "//x",
    "\n",
)
_NAMES = ("a\nb.pdf", "\ud800.pdf", "x" * 5000, "../../etc/passwd", "", "\0", "<b>.pdf")
_PATHS = (
    "/",
    "/v1",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models/%00",
    "/v1/models/%0Ax%0D",
    "/v1/models/%ff%fe",
    "/v1/models/" + "x" * 3000,
    "/v1/chat/completions/",
    "/v1/chat/completions?a=%0A",
    "/a%0Ab",
    "/%ed%a0%80",
    "/docs",
    "/openapi.json",
    "//",
)
_TYPES = (
    "",
    ";",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/jsonx",
    "application/json; charset=utf-16",
    "application/json, text/html",
    "APPLICATION/JSON",
    "a" * 4000,
    "\xff",
)
_KEYS = ("", "Bearer", "Bearer wrong", "Basic cmlnaHQ=", "bearer right", "Bearer \xff\xfe", "Bearer " + "x" * 9000)
_HOSTS = ("[::1", "a:b", "x" * 3000, "[", "evil.example", "", "127.0.0.1:99999999", "a@b", "\xff")
_LENGTHS = ("-1", "x", "", "9" * 30, "9" * 5000, "1e3", "\xb2", " 5")


@dataclass(frozen=True)
class Sent:
    """A request; headers are latin-1."""

    body: bytes = b""
    method: str = "POST"
    path: str = "/v1/chat/completions"
    headers: dict[str, str] = field(default_factory=lambda: dict((JSON, ("authorization", f"Bearer {KEY}"))))
    chunked: bool = False


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _files() -> dict[str, bytes]:
    """A small picture, a document of one page, and a tenth of a second of a tone."""
    page = Image.fromarray(np.tile(np.arange(56, dtype=np.uint8)[:, None], (1, 56)))
    picture, document, recording = io.BytesIO(), io.BytesIO(), io.BytesIO()
    page.save(picture, "PNG")
    page.save(document, "PDF")
    with wave.open(recording, "wb") as file:
        file.setnchannels(1), file.setsampwidth(2), file.setframerate(16_000)
        file.writeframes((3000 * np.sin(np.arange(1600) / 6)).astype("<i2").tobytes())
    return {"image": picture.getvalue(), "document": document.getvalue(), "audio": recording.getvalue()}


def part_of(kind: str, data: bytes) -> dict[str, Any]:
    """A file as a part of a message."""
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": _data_url("image/png", data)}}
    if kind == "document":
        return {"type": "file", "file": {"filename": "a.pdf", "file_data": _data_url("application/pdf", data)}}
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


def _chat(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": list(parts)}], "max_tokens": 2, **fields}


def _dumped(value: Any, rng: random.Random | None = None) -> bytes:
    """JSON; surrogates escaped, or as bytes that are no UTF-8."""
    escaped = rng is None or rng.random() < 0.7
    return json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")


class Fuzzer:
    """A server of the embedded model in this process, with a key and a folder of prefixes."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.folder, self.count, self.files = folder, 0, _files()
        omni = load_model(device="cpu", dtype=torch.float32)
        omni[0].config.get_text_config(decoder=True).max_position_embeddings = WINDOW
        settings = Settings(MODEL, (KEY,), max_places=4, max_new_tokens=2, max_body=MAX_BODY, hosts=("127.0.0.1",))
        self.service = build_service(
            *omni, "balanced", settings, Options(cache_budget=2**24, cache_dir=folder / "cache", disk_budget=2**24)
        )
        self.app, self.runner = build_app(self.service), asyncio.Runner()
        self._lifespan = self.app.router.lifespan_context(self.app)
        self.runner.run(self._lifespan.__aenter__())
        text = {"type": "text", "text": "What is the total?"}
        shown = {kind: part_of(kind, data) for kind, data in self.files.items()}
        turns = [{"role": "system", "content": "Short."}, {"role": "user", "content": "Hi"},
                 {"role": "assistant", "content": "Hello"}, {"role": "user", "content": [text]}]  # fmt: skip
        self.seeds = [
            _chat(text, temperature=0.7, top_p=0.9, seed=7, stop=["x"], logprobs=True, top_logprobs=2, n=1, user="a"),
            _chat(text, stream=True, stream_options={"include_usage": True}, max_completion_tokens=2),
            {"model": MODEL, "messages": turns, "max_tokens": 1, "tools": [], "response_format": {"type": "text"}},
            *(_chat(part, text) for part in shown.values()),
        ]

    def close(self) -> None:
        """End the server."""
        self.runner.run(self._lifespan.__aexit__(None, None, None))
        self.runner.close()

    def originals(self) -> list[Sent]:
        """What is broken, whole."""
        return [Sent(_dumped(one)) for one in self.seeds]

    def make(self, rng: random.Random, number: int) -> Sent:
        """A request."""
        seed, kind = json.loads(json.dumps(rng.choice(self.seeds))), rng.randrange(9)
        if kind < 2:
            return Sent(self._mutated(rng, seed), chunked=rng.random() < 0.2)
        if kind == 2:
            name, values = rng.choice(_FIELDS)
            more = {"logprobs": True} if name == "top_logprobs" and rng.random() < 0.5 else {}
            written = json.dumps({**seed, **more, name: "@@"}).replace('"@@"', rng.choice(values))
            return Sent(written.encode())
        if kind == 3:
            name = rng.choice(list(self.files))
            broken = mutated_bytes(rng, self.files[name], tuple(self.files.values()))
            return Sent(_dumped(_chat(part_of(rng.choice(list(self.files)) if rng.random() < 0.2 else name, broken))))
        if kind == 4:
            return Sent(_dumped(self._odd_parts(rng), rng))
        if kind == 5:
            return Sent(mutated_bytes(rng, _dumped(seed)), chunked=rng.random() < 0.2)
        return self._odd_body(rng, seed) if kind == 6 else self._odd_head(rng, seed)

    def _mutated(self, rng: random.Random, seed: dict[str, Any]) -> bytes:
        """JSON with values changed; files stand in it afterwards, since lists may be repeated thousands of times."""
        text, encoded = json.dumps(seed), {name: base64.b64encode(data) for name, data in self.files.items()}
        for name, data in encoded.items():
            text = text.replace(data.decode(), f"@{name}@")
        body = _dumped(mutated_json(rng, json.loads(text)), rng)[: 4 * MAX_BODY]
        for name, data in encoded.items():
            body = body.replace(f"@{name}@".encode(), data, 100)
        return body

    def _odd_parts(self, rng: random.Random) -> dict[str, Any]:
        file = {"filename": rng.choice(_NAMES), "file_data": rng.choice((*_URLS, "AAAA", "JVBERi0xLjQ="))}
        part = rng.choice(
            (
                {"type": "text", "text": rng.choice(_TEXTS)},
                {"type": "image_url", "image_url": {"url": rng.choice(_URLS)}},
                {"type": "image_url", "image_url": rng.choice(_URLS)},
                {"type": "file", "file": file},
                {"type": "input_audio", "input_audio": {"data": rng.choice(_URLS), "format": rng.choice(_TEXTS)}},
                {"type": rng.choice(("video_url", "refusal", "", None, [], {})), "text": "x"},
                odd_value(rng),
            )
        )
        body = _chat(*[part] * rng.choice((1, 1, 1, 70, 250)))
        if rng.random() < 0.2:
            body["messages"][0]["role"] = rng.choice(("system", "assistant", "tool", "function", "\ud800", 1, None))
        if rng.random() < 0.1:
            body["messages"] = rng.choice((body["messages"] * 2, [{"role": "user", "content": "x"}] * 3000))
        return body

    def _odd_body(self, rng: random.Random, seed: dict[str, Any]) -> Sent:
        whole, count = _dumped(seed), rng.choice((63, 64, 65, 1000, 100_000))
        return Sent(
            rng.choice(
                (
                    b"",
                    whole[:-1],
                    whole + b"x",
                    whole + whole,
                    whole[:-1] + b', "model": "x"}',  # a key twice
                    whole[:-1] + b', "messages": [], "messages": []}',
                    whole[:-1] + b', "max_tokens": 0, "max_tokens": 1}',
                    whole[:-1] + b', "a": ' + b"[" * count + b"]" * count + b"}",
                    whole[:-1] + b', "a": ' + b'{"a":' * count + b"1" + b"}" * count + b"}",
                    b"[" * count,
                    b"[" + b"1," * 300_000 + b"1]",
                    b" " * (MAX_BODY - 10) + b"{}",
                    b" " * (MAX_BODY + 1),
                    b"\xef\xbb\xbf" + whole,
                    json.dumps(seed).encode("utf-16"),
                    whole.replace(b"total", "größe".encode()[:3]),  # UTF-8 that ends in the middle
                    whole.replace(b"total", b"\xed\xa0\x80"),
                    whole.replace(b"total", b"\x00"),
                    whole.replace(b"total", b"\\u0000\\ud83d"),
                    b"null",
                    b'"' + b"x" * 1000 + b'"',
                    b"9" * 5000,
                    b"-",
                )
            ),
            chunked=rng.random() < 0.3,
        )

    def _odd_head(self, rng: random.Random, seed: dict[str, Any]) -> Sent:
        plain, kind = Sent(_dumped(seed)), rng.randrange(5)
        if kind == 0:
            return replace(plain, path=rng.choice(_PATHS), method=rng.choice(("GET", "POST", "PUT", "DELETE", "BREW")))
        name, values = (
            ("content-type", _TYPES),
            ("authorization", _KEYS),
            ("host", _HOSTS),
            ("content-length", _LENGTHS),
        )[kind - 1]
        return replace(plain, headers={**plain.headers, name: rng.choice(values)})

    def run(self, data: Sent) -> None:
        """Send it, look at the answer, and see that the server goes on and holds nothing of it."""
        answer, left = self.runner.run(self._send(data))
        service = self.service
        if left or service.places or service.prepared.nbytes or service.bodies.nbytes:
            raise AssertionError(f"it holds {service.places} places, {service.prepared.nbytes} bytes: {left}")
        until = time.monotonic() + WRITING_SECONDS  # a prefix may be being written
        while strangers := [path.name for path in self.folder.rglob("*") if path.is_file() and not _is_prefix(path)]:
            if time.monotonic() > until:
                raise AssertionError(f"left on disk: {strangers}")
            time.sleep(0.05)
        self.count += 1
        if self.count % 20 == 0:
            again, _ = self.runner.run(self._send(Sent(_dumped(self.seeds[self.count // 20 % len(self.seeds)]))))
            if again.status_code != 200:
                raise AssertionError(f"afterwards a right request is answered with {again.status_code}: {again.text}")
        check_answer(answer, str(self.folder))

    async def _send(self, data: Sent) -> tuple[httpx.Response, str]:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=("127.0.0.1", 1))

        async def chunks() -> Any:
            for start in range(0, len(data.body), 50_000):
                yield data.body[start : start + 50_000]

        headers = [(name.encode(), value.encode("latin-1")) for name, value in data.headers.items()]
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
            content = chunks() if data.chunked else data.body
            answer = await client.request(data.method, data.path, content=content, headers=headers)
            alive = await client.get("/health")
        return answer, "" if alive.status_code == 200 else alive.text


def _is_prefix(path: Path) -> bool:
    return path.name == "secret" or path.suffix == ".kvmmcache"


def check_answer(answer: httpx.Response, folder: str) -> None:
    """Look at an answer. Raises ``KVMMError`` with the line of a refusal, ``AssertionError`` for what must not be."""
    text = answer.content.decode()
    if "Traceback" in text or folder in text:
        raise AssertionError(f"it tells of the server: {text[:200]}")
    if answer.status_code == 200:
        if "event-stream" in answer.headers["content-type"] and '"error"' not in text:
            return
        if "event-stream" not in answer.headers["content-type"] and isinstance(json.loads(text), dict):
            return
    if not 400 <= answer.status_code < 500:
        raise AssertionError(f"status {answer.status_code}: {text[:200]}")
    error = json.loads(text)["error"]
    line = error["message"]
    if set(error) != {"message", "type", "param", "code"} or not line or len(line) > MAX_LINE or not line.isprintable():
        raise AssertionError(f"no error of OpenAI's form in one line: {text[:300]!r}")
    raise KVMMError(line)
