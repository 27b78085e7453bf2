"""Files that are read while the system has no memory, processes or descriptors left: one file is refused, no more."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import threading
from pathlib import Path

import pytest

from kvmm.decoding import limits, worker
from kvmm.errors import KVMMError
from kvmm.media import load_image, load_media
from tests.decoding import hostile
from tests.decoding.processes import children, held, parent, png, wait_until


def test_a_process_that_the_kernel_killed_is_told_as_memory(tmp_path):
    (tmp_path / "strokes.pdf").write_bytes(hostile.strokes())
    pid, errors = parent(), []

    def read() -> None:
        try:
            load_media(tmp_path / "strokes.pdf")
        except KVMMError as error:
            errors.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    with held(pid) as child:
        os.kill(child, signal.SIGKILL)
    thread.join(30)
    (error,) = errors
    assert error.endswith("strokes.pdf takes more memory than is free: make it smaller, or try again later.")


def test_when_all_seconds_of_a_file_are_spent_the_file_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "FILE_SECONDS", 2)
    (tmp_path / "strokes.pdf").write_bytes(hostile.strokes())
    with pytest.raises(KVMMError, match=r"^strokes\.pdf takes too long to read: split it"):
        load_media(tmp_path / "strokes.pdf")


@pytest.mark.parametrize("left", [0, 2, 3, 4])
def test_a_parent_without_descriptors_refuses_one_file(left):
    """Of the request's three, none or some arrive, or there is no pipe for the process."""
    pid = parent()
    assert wait_until(lambda: "libav" in Path(f"/proc/{pid}/maps").read_text(), 60), "all decoders are there"
    load_image(png())
    assert wait_until(lambda: not children(pid))
    used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    free = [number for number in range(1000) if number not in used]
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[left], before[1]))
    try:
        with pytest.raises(KVMMError, match="The upload could not be read now: try again"):
            load_image(png())
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert load_image(png("blue")).getpixel((1, 1)) == (0, 0, 255) and parent() == pid
    assert wait_until(lambda: {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()} == used), "all closed"


def test_a_parent_that_cannot_fork_refuses_one_file(monkeypatch):
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(worker.os, "fork", fork)
    used = os.listdir("/proc/self/fd")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forks = worker.Forks(theirs)
    answer, answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    status, ends = os.pipe()
    socket.send_fds(ours, [worker.packed({"id": 1, "name": "a.png"})], [answers.fileno(), ends, status])
    answers.close()
    os.close(ends)
    assert forks.receive() and answer.recv(1) == b"" and os.read(status, 1) == b"", "both are closed"
    ours.send(b"no request")
    assert forks.receive(), "it goes on"
    ours.close()
    assert not forks.receive()
    for each in (theirs, answer, forks.selector):
        each.close()
    os.close(status)
    assert os.listdir("/proc/self/fd") == used


@pytest.mark.parametrize("name", ["os.memfd_create", "os.pipe", "socket.socketpair"])
def test_a_caller_without_memory_or_descriptors_gets_a_line(monkeypatch, name):
    pid, used = parent(), os.listdir("/proc/self/fd")

    def nothing(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as without:
        without.setattr(f"kvmm.decoding.client.{name}", nothing)
        with pytest.raises(KVMMError, match=r"The upload could not be read now \(Too many open files\): try again"):
            load_image(png())
    assert os.listdir("/proc/self/fd") == used and load_image(png()).size == (40, 30) and parent() == pid
