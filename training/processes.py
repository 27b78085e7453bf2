"""Modules of the training run beside each other, each with whatever it starts, and runs that outlive their caller."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PID, ENDED, LOG = "run.pid", "run.ended", "run.log"  # files of a detached run's folder
GOES_ON = 3  # exit code of `watch` where the run has not ended


class Processes:
    """Processes that are ended together with what they started."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen] = []

    def start(self, arguments: Sequence[str], log: Path, **environment: str) -> subprocess.Popen:
        """Starts a module in a process group of its own, so that its data workers end with it."""
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments], stdout=file, stderr=subprocess.STDOUT, process_group=0,
                env={**os.environ, **environment},
            )  # fmt: skip
        self.running.append(process)
        return process

    def end(self, processes: Sequence[subprocess.Popen] | None = None) -> None:
        """Ends processes (default: all) and whatever they started."""
        for process in list(self.running if processes is None else processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process in self.running:
                self.running.remove(process)


def detach(arguments: Sequence[str], folder: Path) -> int:
    """Starts a module in a session of its own, which goes on when this process and its terminal end; returns its id.

    It writes what it prints to ``run.log`` of ``folder`` and, by :func:`ended`, its exit code to ``run.ended``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ENDED).unlink(missing_ok=True)
    with (folder / LOG).open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    (folder / PID).write_text(f"{process.pid}\n")
    return process.pid


@contextlib.contextmanager
def ended(folder: Path):
    """Notes in ``folder`` how what runs within it ended: 0, or 1 for an error."""
    code = 1
    try:
        yield
        code = 0
    finally:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ENDED).write_text(f"{code}\n")


def watch(folder: Path, seconds: float) -> int:
    """Prints what a detached run prints until it ends, or for so many seconds.

    Returns:
        0 if it ended well, 1 if it failed or died, :data:`GOES_ON` if it has not ended.

    Raises:
        ValueError: nothing was started there.
    """
    if not (folder / PID).is_file():
        raise ValueError(f"{folder} has no detached run: start one with --detach")
    pid, shown, until = int((folder / PID).read_text()), 0, time.monotonic() + seconds
    while True:
        there = _alive(pid)  # before the files are read: what ends in between has written them
        text = (folder / LOG).read_text(errors="replace")
        print(text[shown:], end="", flush=True)
        shown = len(text)
        if (folder / ENDED).is_file():
            return int((folder / ENDED).read_text())
        if not there:
            print(f"process {pid} is gone and has left no result", flush=True)
            return 1
        if time.monotonic() > until:
            return GOES_ON
        time.sleep(0.5)


def _alive(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
