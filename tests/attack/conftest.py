"""The app as ``kvmm app`` runs it, in a process of its own, with a login, MCP and a small ``--max-upload``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest
from gradio_client import Client

from tests.attack.attacked import MAX_UPLOAD_MIB, ROOT, USER, Victim, wait_for


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    folder = tmp_path_factory.mktemp("victim")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "kvmm", "app", "--port", str(port), "--auth", ":".join(USER), "--mcp"]
    command += ["--max-upload", str(MAX_UPLOAD_MIB), "--max-new-tokens", "8", "--cache-budget", "16MiB"]
    environment = {**os.environ, "TMPDIR": str(folder), "XDG_STATE_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    environment.pop("GRADIO_TEMP_DIR", None)
    url, log = f"http://127.0.0.1:{port}", folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        try:
            wait_for(url, process, log)
            visitor = Client(url, auth=USER, verbose=False)
            one = Victim(url, psutil.Process(process.pid), folder, log, visitor)
            for _ in range(3):
                one.ask()  # compiles, allocates
            yield one
            assert process.poll() is None, log.read_text()[-2000:]
        finally:
            process.terminate()
            process.wait(60)
    assert not list(folder.glob("kvmm-app-*"))  # uploads end with the app


@pytest.fixture
def retry() -> Callable[[Callable[[], None]], None]:
    """Run an attack once more when the machine was too busy to tell; what fails twice fails."""

    def run(attack: Callable[[], None]) -> None:
        try:
            attack()
        except AssertionError:
            attack()

    return run
