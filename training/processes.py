"""Modules of the training run beside each other, each with whatever it starts, and runs that outlive their caller."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

RUN, ENDED, LOG = "run.process", "run.ended", "run.log"  # files of a detached run's folder
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


def end_tidily() -> None:
    """Lets SIGTERM leave this process as an error does, so that it ends the processes that it has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))


def follower(log: Path) -> Callable[[], None]:
    """A function that prints what a log has got since it was called last."""
    decoder, position = codecs.getincrementaldecoder("utf-8")("replace"), 0

    def follow() -> None:
        nonlocal position
        with log.open("rb") as file:
            file.seek(position)
            new = file.read()
        position += len(new)
        print(decoder.decode(new), end="", flush=True)

    return follow


def detach(arguments: Sequence[str], folder: Path) -> int:
    """Starts a module in a session of its own, which goes on when this process and its terminal end; returns its id.

    It writes what it prints to ``run.log`` of ``folder`` and, within :func:`record_exit_code`, how it ends.

    Raises:
        ValueError: an earlier one goes on in this folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / RUN).is_file():
        pid, started = _run_of(folder)
        if started and _started(pid) == started:
            raise ValueError(f"process {pid} goes on in {folder}: watch it, or choose another --folder")
    (folder / ENDED).unlink(missing_ok=True)
    with (folder / LOG).open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    (folder / RUN).write_text(f"{process.pid} {_started(process.pid)}\n")
    return process.pid


@contextlib.contextmanager
def record_exit_code(folder: Path) -> Iterator[None]:
    """Writes to ``run.ended`` of ``folder`` how what runs within it ended: 0, or 1 for an error."""
    code = 1
    try:
        yield
        code = 0
    finally:
        fresh = folder / f"{ENDED}.tmp"
        fresh.write_text(f"{code}\n")
        os.replace(fresh, folder / ENDED)


def watch(folder: Path, seconds: float) -> int:
    """Prints what a detached run has printed and prints, until it has ended or for so many seconds.

    Returns:
        0 if it ended well, 1 if it failed or died, :data:`GOES_ON` if it has not ended.

    Raises:
        ValueError: nothing was started there.
    """
    if not (folder / RUN).is_file():
        raise ValueError(f"{folder} has no detached run: start one with --detach")
    (pid, started), follow, until = _run_of(folder), follower(folder / LOG), time.monotonic() + seconds
    while (goes_on := _started(pid) == started) and time.monotonic() < until:
        follow()
        time.sleep(0.5)
    follow()  # a process that is gone has printed everything
    if goes_on:
        return GOES_ON
    if not (folder / ENDED).is_file():
        print(f"process {pid} is gone and has left no result", flush=True)
        return 1
    return int((folder / ENDED).read_text())


def _run_of(folder: Path) -> tuple[int, str]:
    """The id of a detached run, and when it was started."""
    pid, _, started = (folder / RUN).read_text().strip().partition(" ")
    return int(pid), started


def _started(pid: int) -> str:
    """When a process was started, in ticks since the machine was (`man 5 proc`); "" if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
