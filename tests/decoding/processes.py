"""What tests see of the processes that decode files."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image

from kvmm.decoding import client


def rss(pid: int | str, field: str = "VmRSS") -> int:
    """Bytes; 0 of a process that is gone."""
    try:
        return next(
            1024 * int(line.split()[1])
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith(field)
        )
    except (OSError, StopIteration):
        return 0


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def parent() -> int:
    """The process that forks, once those of earlier files have ended: the next one is that of the next file."""
    client.PARENT.start()
    pid = client.PARENT._process.pid
    assert wait_until(lambda: not children(pid))
    return pid


def wait_until(true: Callable[[], bool], seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def cpu_seconds(pid: int) -> float:
    """What a process has used; 0 of one that is gone."""
    try:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def held(pid: int, count: int = 1) -> Iterator[int]:
    """The processes that decode stand still meanwhile, so that what is seen does not depend on their speed.

    They have begun: one that ends before it has said so is started again.
    """
    assert wait_until(lambda: len(children(pid)) == count and min(map(cpu_seconds, children(pid))) >= 0.2, 60)
    found = children(pid)
    for child in found:
        os.kill(child, signal.SIGSTOP)
    try:
        yield found[0]
    finally:
        for child in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)


def in_a_fork(call: Callable[[], float]) -> float:
    """What ``call`` returns in a fork of this process."""
    read, write = os.pipe()
    fork = os.fork()
    if not fork:
        try:
            os.write(write, repr(call()).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(fork, 0)
    with os.fdopen(read) as stream:
        return float(stream.read())


def png(color: str = "red") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), color).save(out, "PNG")
    return out.getvalue()
