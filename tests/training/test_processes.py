"""Runs that outlive their caller, and how they are watched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from training.processes import ENDED, GOES_ON, PID, Processes, watch

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def chain(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "training.chain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, timeout=120)


def test_a_detached_run_that_fails_is_seen_at_once(tmp_path):
    """The call that started it has ended; what it said, and that it failed, is there for the next one."""
    none = ("--base", str(tmp_path / "none"), "--folder", str(tmp_path / "run"))
    started = chain("run", "--minutes", "5", "--detach", *none)
    assert started.returncode == 0 and "goes on in" in started.stdout
    begin = time.monotonic()
    watched = chain("watch", "--folder", str(tmp_path / "run"), "--minutes", "2")
    assert watched.returncode == 1 and "no base in" in watched.stdout and time.monotonic() - begin < 100
    assert (tmp_path / "run" / ENDED).read_text() == "1\n"


def test_watching_says_whether_a_run_goes_on_is_gone_or_was_never_there(tmp_path, capsys):
    processes = Processes()
    (tmp_path / "run.log").write_text("first line\n")
    serving = processes.start(["http.server", "0", "--bind", "127.0.0.1"], tmp_path / "server.log")
    (tmp_path / PID).write_text(str(serving.pid))
    assert watch(tmp_path, 0) == GOES_ON and capsys.readouterr().out == "first line\n"
    processes.end()
    assert watch(tmp_path, 60) == 1 and "left no result" in capsys.readouterr().out
    (tmp_path / ENDED).write_text("0\n")
    assert watch(tmp_path, 60) == 0
    with pytest.raises(ValueError, match="--detach"):
        watch(tmp_path / "elsewhere", 0)
