"""An app under attack, and what it has to keep: its life, its other visitors' time, its memory.

A test attacks inside ``victim.watched()``: another visitor goes on asking meanwhile. The app has to live, answer that
visitor in at most twice the time, and give back the memory.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from gradio_client import Client, handle_file

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "assets" / "samples" / "receipt.png"
USER = ("visitor", "secret")
MAX_UPLOAD_MIB = 4
SLOWER = 2.0  # how much longer another visitor may wait ...
SLACK_SECONDS = 0.5  # ... and what the machine of a test run adds by itself
MORE_MEMORY = 1.1


@dataclass
class Victim:
    """The app under attack."""

    url: str
    process: psutil.Process
    folder: Path  # where it keeps uploads
    log: Path
    visitor: Client

    def ask(self) -> float:
        """The seconds that an answer takes, asked by a visitor with a page."""
        begin = time.perf_counter()
        answer = self.visitor.predict([handle_file(PAGE)], "What is the total?", "kivi4", api_name="/ask")
        assert answer["answer"]
        return time.perf_counter() - begin

    @contextlib.contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """A visitor's own connections, after the login."""
        with httpx.Client(base_url=self.url, timeout=60) as client:
            data = {"username": USER[0], "password": USER[1]}
            assert client.post("/login", data=data).status_code == 200
            yield client

    def memory(self) -> int:
        """Resident bytes of the app and its children."""
        total = 0
        for process in (self.process, *self.process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def files(self) -> set[Path]:
        """The files of visitors that are on disk."""
        return {path for path in self.folder.glob("kvmm-app-*/kvmm-*/**/*") if path.is_file()}

    def event(self, client: httpx.Client, elem_id: str, kind: str) -> int:
        """The number of the event ``kind`` of a component."""
        config = client.get("/config").json()
        (target,) = [one["id"] for one in config["components"] if one["props"].get("elem_id") == elem_id]
        return next(one["id"] for one in config["dependencies"] if [target, kind] in [list(t) for t in one["targets"]])

    def call(self, client: httpx.Client, fn: int, data: list[Any], session: str | None = None) -> httpx.Response:
        """Run an event that does not wait in the queue."""
        body = {"fn_index": fn, "data": data, "session_hash": session or uuid.uuid4().hex}
        return client.post("/gradio_api/run/predict", json=body)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Attack inside: see this module's docstring."""
        calm = statistics.median(self.ask() for _ in range(3))
        before, taken, over = self.memory(), [], threading.Event()

        def watch() -> None:
            while not over.is_set() or len(taken) < 3:
                taken.append(self.ask())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join(180)
        assert not watcher.is_alive() and self.process.is_running(), self.log.read_text()[-2000:]
        assert statistics.median(taken) <= SLOWER * calm + SLACK_SECONDS, (calm, taken)
        until = time.monotonic() + 20
        while self.memory() > MORE_MEMORY * before and time.monotonic() < until:
            time.sleep(0.5)
        assert self.memory() <= MORE_MEMORY * before, (before >> 20, self.memory() >> 20)


def wait_for(url: str, process: subprocess.Popen, log: Path, seconds: float = 240) -> None:
    """Return once the app answers."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-2000:]
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=5).status_code == 200:
                return
        time.sleep(0.3)
    pytest.fail(f"the app did not start: {log.read_text()[-2000:]}")
