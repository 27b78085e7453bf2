"""``kvmm serve`` as an operator runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmm.cli import run
from tests.serve.running import MODEL, chat, image

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "nope"], "nope"),
        (["--cache-budget", "much"], "--cache-budget"),
        (["--disk-budget", "-1"], "--disk-budget"),
        (["--api-key", " "], "--api-key"),
        (["--api-key", "schlüssel"], "--api-key"),
        (["--host", "256.1.1.1"], "cannot listen"),
        (["--graph", "--speculative", "lookup"], "--graph and --speculative"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], says: str, capsys: Any) -> None:
    assert run(["serve", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvmm: ") and says in line


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_server_is_asked_with_curl_and_stopped(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--dtype", "float32", "--cache-dir", str(tmp_path / "cache"), "--name", MODEL]
    command = [sys.executable, "-m", "kvmm", "serve", *options]
    env = {**os.environ, "KVMM_API_KEY": "one two", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 300
        while True:
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
                break
            except httpx.TransportError:
                assert server.poll() is None and time.monotonic() < until
                time.sleep(0.2)
        body = tmp_path / "body.json"
        body.write_text(json.dumps(chat("What is the total?", image())))
        curl = ["curl", "-sS", "--max-time", "200", f"http://127.0.0.1:{port}/v1/chat/completions"]
        given = ["-H", "Content-Type: application/json", "-d", f"@{body}"]
        refused = subprocess.run([*curl, *given], capture_output=True, text=True, check=True)
        assert json.loads(refused.stdout)["error"]["code"] == "invalid_api_key"
        right = ["-H", "Authorization: Bearer two"]
        answered = subprocess.run([*curl, *right, *given], capture_output=True, text=True, check=True)
        assert json.loads(answered.stdout)["choices"][0]["message"]["content"]
    finally:
        server.send_signal(signal.SIGTERM)
        _, log = server.communicate(timeout=60)
    assert "Traceback" not in log and f"Serving {MODEL} with policy balanced" in log
    # the document and the conversation
    assert len(list((tmp_path / "cache").glob("*/*.kvmmcache"))) == 2
