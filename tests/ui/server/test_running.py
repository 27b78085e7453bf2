"""An app that is stopped ends what is under way, and then itself: exit code 0, nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from gradio_client import Client, handle_file

from kvmm.ui.server import running

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def of_this_test_alone(monkeypatch):
    """Other tests of this process leave work behind, and it must not be stopped here."""
    monkeypatch.setattr(running, "_RUNNING", set())
    monkeypatch.setattr(running, "_ENDING", threading.Event())


def test_all_work_is_stopped_and_waited_for():
    stops = [threading.Event() for _ in range(3)]
    over = []

    def work(stop: threading.Event) -> None:
        with running.under_way(stop):
            begun.release()
            stop.wait(30)
            time.sleep(0.1)
            over.append(stop)

    begun = threading.Semaphore(0)
    threads = [threading.Thread(target=work, args=(stop,), daemon=True) for stop in stops]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert begun.acquire(timeout=30)
    assert not running.ending() and not any(stop.is_set() for stop in stops)
    assert running.end_all(30) and running.ending()
    assert len(over) == 3


def test_work_that_does_not_stop_is_not_waited_for_beyond_the_limit():
    stop = threading.Event()
    running.began(stop)
    begin = time.monotonic()
    assert not running.end_all(0.2) and stop.is_set()
    assert time.monotonic() - begin < 5
    running.ended(stop)
    assert running.end_all(0.2)


def test_work_that_begins_while_the_process_ends_is_stopped_at_once():
    with running.ending_with(1):
        pass
    late = threading.Event()
    with running.under_way(late):
        assert late.is_set()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_an_app_that_is_stopped_amid_answers_ends_without_an_abort(tmp_path, sent):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "app.py", "--port", str(port), "--max-new-tokens", "400"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    environment.pop("GRADIO_TEMP_DIR", None)  # the tests' own app sets one; this one is to make its own
    with (tmp_path / "log").open("w+b") as log:
        app = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, preexec_fn=_interruptible)
        try:
            url, until = f"http://127.0.0.1:{port}/", time.monotonic() + 240
            while not _answers(url) and time.monotonic() < until:
                assert app.poll() is None, (tmp_path / "log").read_text()[-2000:]
                time.sleep(0.5)
            report = handle_file(ROOT / "assets" / "samples" / "report.pdf")
            job = Client(url, verbose=False).submit([report], "What is written on every page?", api_name="/ask")
            while not list(tmp_path.glob("kvmm-app-*/**/report.pdf")):
                assert time.monotonic() < until, "nothing was uploaded"
                time.sleep(0.05)
            time.sleep(1)  # the answer is under way
            assert not job.done()
            app.send_signal(sent)
            assert app.wait(60) == 0
        finally:
            app.kill()
            app.wait(60)
    said = (tmp_path / "log").read_text()
    assert f"kvmm is at {url} " in said and "share" not in said  # an option that app.py does not have
    assert "terminate called" not in said and "Traceback" not in said
    assert not list(tmp_path.glob("kvmm-app-*"))
    assert job.exception(timeout=60) is not None


def _interruptible() -> None:
    """A shell has what it runs in the background ignore this signal, and what that starts, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
