"""An OpenAI server that says what a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {
    "prompt_tokens": 70,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 64},
    "kvmm": {"cache_nbytes": 100, "cache_nbytes_bf16": 400, "bits_per_value": 4.0},
}


def event(text: str | None = None, **more: Any) -> bytes:
    choices = [] if text is None else [{"delta": {"content": text}, "finish_reason": None}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


def logged(text: str, logprobs: Any) -> bytes:
    """A piece whose tokens are told."""
    choice = {"delta": {"content": text}, "logprobs": logprobs, "finish_reason": None}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


ANSWER = [event("$1,"), event("274"), event(".94"), event(usage=USAGE), b"data: [DONE]\n\n"]
MODELS = {"data": [{"id": "small"}, {"id": "large"}]}


class FakeServer:
    """A server that says what a test wants; ``asked`` are the bodies and headers of its questions."""

    def __init__(self) -> None:
        self.models: tuple[int, Any] = (200, MODELS)
        self.status, self.chunks = 200, list(ANSWER)
        self.between: Callable[[int], None] = lambda number: None
        self.asked: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.gone = threading.Event()  # a client went away
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                status, body = fake.models
                self._begin(status)
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                fake.asked.append((body, dict(self.headers)))
                self._begin(fake.status)
                try:
                    for number, chunk in enumerate(fake.chunks):
                        fake.between(number)
                        self.wfile.write(chunk)
                        self.wfile.flush()
                except OSError:
                    fake.gone.set()

            def _begin(self, status: int) -> None:
                self.send_response(status)
                self.end_headers()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
