"""A server in this process, and requests for it."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
from PIL import Image

from kvmm.samples import SAMPLES
from kvmm.serve.http import Service, Settings, build_app
from kvmm.serve.server import Options, build_service

MODEL = "tiny-omni"


@dataclass
class Running:
    """A server in this process; ``url`` is its root."""

    service: Service
    url: str

    def post(self, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=1200, **options)

    def ask(self, question: str, *files: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """The JSON of an answer."""
        answer = self.post(chat(question, *files, **fields))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metrics(self) -> dict[str, float]:
        lines = httpx.get(f"{self.url}/metrics", timeout=600).text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

    def wait_for(self, what: Callable[[], bool], seconds: float = 300.0) -> None:
        until = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < until, self.service.engine.status()
            time.sleep(0.02)


@contextlib.contextmanager
def serving(
    omni: tuple[Any, Any], policy: str = "balanced", settings: Settings | None = None, **options: Any
) -> Iterator[Running]:
    options = {"cache_budget": 2**28, **options}
    service = build_service(*omni, policy, settings or Settings(MODEL), Options(**options))
    server = uvicorn.Server(uvicorn.Config(build_app(service), port=0, log_level="error", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Running(service, f"http://127.0.0.1:{port}")
    finally:
        service.engine.stop()
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def data_url(path: Path, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def image(name: str = "invoice.png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(SAMPLES / name, "image/png")}}


def noise() -> dict[str, Any]:
    """A picture in which nothing can be read, so that the model is unsure what to answer."""
    pixels = np.random.default_rng(0).integers(0, 255, (196, 196, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    data = base64.b64encode(stream.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def pdf(name: str = "report.pdf") -> dict[str, Any]:
    return {"type": "file", "file": {"filename": name, "file_data": data_url(SAMPLES / name, "application/pdf")}}


def audio(name: str = "memo.wav") -> dict[str, Any]:
    data = base64.b64encode((SAMPLES / name).read_bytes()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def chat(question: str, *files: dict[str, Any], **fields: Any) -> dict[str, Any]:
    parts = [*files, {"type": "text", "text": question}]
    return {"model": MODEL, "messages": [{"role": "user", "content": parts}], "max_tokens": 24, **fields}


def events(text: str) -> list[Any]:
    """The values of a stream of events; the last one is "[DONE]"."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def text_of(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]
