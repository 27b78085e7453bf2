"""Runs that outlive their caller, and how they are watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from training.processes import ENDED, GOES_ON, RUN, Processes, detach, watch

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


CALLER = """
import sys, time
from pathlib import Path
from training.processes import detach
detach(["http.server", "0", "--bind", "127.0.0.1"], Path(sys.argv[1]))
time.sleep(60)
"""


def test_a_detached_run_outlives_its_caller_and_all_that_is_ended_with_it(tmp_path, capsys):
    run = tmp_path / "run"
    caller = subprocess.Popen([sys.executable, "-c", CALLER, str(run)], cwd=ROOT, env=ENVIRONMENT, process_group=0)
    while not (run / RUN).is_file() or not (run / RUN).read_text().endswith("\n"):
        time.sleep(0.05)
    os.killpg(caller.pid, signal.SIGKILL)
    caller.wait()
    pid = int((run / RUN).read_text().split()[0])
    try:
        assert watch(run, 0) == GOES_ON
        with pytest.raises(ValueError, match="goes on in"):  # its log would be lost
            detach(["this"], run)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert watch(run, 60) == 1 and "left no result" in capsys.readouterr().out


def test_watching_says_how_a_run_ended_or_that_there_was_none(tmp_path, capsys):
    detach(["this"], tmp_path)
    (tmp_path / ENDED).write_text("0\n")
    assert watch(tmp_path, 60) == 0 and "Zen of Python" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--detach"):
        watch(tmp_path / "elsewhere", 0)


def test_processes_end_with_what_they_started(tmp_path):
    processes = Processes()
    serving = processes.start(["http.server", "0", "--bind", "127.0.0.1"], tmp_path / "server.log")
    processes.end()
    assert serving.returncode == -signal.SIGKILL and not processes.running
