"""Files that ask for gigabytes or minutes: refused with a line, in bounded memory and time, and nothing is left."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from kvmm.decoding import client, limits, worker
from kvmm.errors import KVMMError
from kvmm.media import load_image, load_media, preview
from tests.decoding import hostile

MIB = 2**20


def rss(pid: int | str) -> int:
    """Bytes; 0 of a process that is gone."""
    try:
        return next(
            1024 * int(line.split()[1])
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("VmRSS")
        )
    except (OSError, StopIteration):
        return 0


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def parent() -> int:
    client.PARENT.start()
    return client.PARENT._process.pid


def wait_until(true, seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def held(pid: int) -> Iterator[int]:
    """The process that decodes stands still meanwhile, so that what is seen does not depend on its speed."""
    assert wait_until(lambda: children(pid), 30)
    (child,) = children(pid)
    os.kill(child, signal.SIGSTOP)
    try:
        yield child
    finally:
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


class Peak:
    """The most memory that this process and the decoding ones took together, beyond what it had."""

    def __enter__(self) -> Peak:
        load_image(png())  # the parent is there
        self.before, self.most, self._done = rss("self"), 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.most = max(self.most, rss("self") - self.before + sum(map(rss, children(parent()))))

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


REFUSED = {
    "forms.pdf": (
        hostile.nested_forms,
        r"Page 1 of forms\.pdf (is damaged, or takes more than 1024 MiB|takes too long)",
    ),
    "square.pdf": (
        hostile.square_pages,
        r"64 pages of square\.pdf have 1074 million pixels at 150 dpi and may have 180",
    ),
    "stream.pdf": (hostile.deflated_stream, r"Page 1 of stream\.pdf is damaged, or takes more than 1024 MiB"),
    "wide.flac": (lambda: hostile.flac(8, 96_000, 8), r"wide\.flac has 369 million samples and may have 346"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_takes_too_much_is_refused_with_a_line(tmp_path, name):
    make, message = REFUSED[name]
    (tmp_path / name).write_bytes(make())
    pid = parent()
    with Peak() as peak, pytest.raises(KVMMError, match=message) as caught:
        load_media(tmp_path / name)
    assert "\n" not in str(caught.value) and peak.most < limits.MEMORY + 200 * MIB
    assert wait_until(lambda: not children(pid)), "its process is gone"
    assert parent() == pid and load_image(png()).getpixel((1, 1)) == (255, 0, 0), "others go on"
    assert rss("self") < 1.1 * peak.before


@pytest.mark.parametrize(
    "name, make, most",
    [
        # decoded 400, and a strip at a time of what is made of it
        ("deep.png", hostile.deep_png, 500 * MIB),
        ("wide.png", hostile.wide_png, 700 * MIB),
        # the result alone is 38 MB, and 300 MB before it was mixed and resampled
        ("long.flac", lambda: hostile.flac(10, 96_000, 2), 300 * MIB),
        ("long.opus", lambda: hostile.opus(2), 150 * MIB),
        ("long.webm", lambda: hostile.opus(2, form="webm"), 150 * MIB),
    ],
)
def test_what_is_large_takes_little(tmp_path, name, make, most):
    (tmp_path / name).write_bytes(make())
    with Peak() as peak:
        (item,) = load_media(tmp_path / name)
    assert peak.most < most
    if item.kind == "image":
        assert item.data.size == (4096, 4096)
    else:
        assert abs(item.data.size / 16_000 / 60 - (10 if name == "long.flac" else 2)) < 0.01
    del item
    assert rss("self") < 1.1 * peak.before


def test_stop_ends_a_page_that_takes_minutes(tmp_path):
    (tmp_path / "strokes.pdf").write_bytes(hostile.strokes())
    pid = parent()
    for call in (lambda stop: load_media(tmp_path / "strokes.pdf", stop=stop), _preview_of(tmp_path / "strokes.pdf")):
        stop = threading.Event()
        threading.Timer(1.5, stop.set).start()
        with pytest.raises(KVMMError, match=r"strokes\.pdf was stopped at page 1 of 1: send it again"):
            call(stop)
        assert stop.is_set()
        asked = time.monotonic()
        assert wait_until(lambda: not children(pid), 1.0), "killed, not left alone"
        assert time.monotonic() - asked < 1.0


def _preview_of(path: Path):
    return lambda stop: preview(path, 4, 300, stop)


def test_a_page_has_its_seconds_and_others_do_not_wait_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "PAGE_SECONDS", 1)
    (tmp_path / "strokes.pdf").write_bytes(hostile.strokes())
    errors = []

    def heavy() -> None:
        try:
            load_media(tmp_path / "strokes.pdf")
        except KVMMError as error:
            errors.append(str(error))

    pid = parent()
    thread = threading.Thread(target=heavy)
    thread.start()
    with held(pid) as child:
        for _ in range(limits.PROCESSES + 1):  # its place is not needed
            assert load_image(png()).size == (40, 30)
        assert child in children(pid) and thread.is_alive()
    thread.join(60)
    assert errors == ["Page 1 of strokes.pdf takes too long to read: save it as plain pictures, or in a smaller size."]


def test_the_clock_leaves_time_for_the_seconds_of_a_busy_machine():
    """The seconds of a page are CPU time; nothing ends it within minutes because others use the cores."""

    def clock() -> float:
        worker._allow(1)
        return signal.getitimer(signal.ITIMER_REAL)[0]

    assert in_a_fork(clock) > 0.9 * limits.WALL_SECONDS > 60 * limits.PAGE_SECONDS


def test_the_clock_ends_what_hangs(tmp_path, monkeypatch):
    """Here it waits for a caller who does not go on."""
    from reportlab.pdfgen import canvas

    document = canvas.Canvas(str(tmp_path / "two.pdf"))
    for word in ("first", "second"):
        document.drawString(100, 500, word)
        document.showPage()
    document.save()
    pid = parent()
    monkeypatch.setattr(limits, "WALL_SECONDS", 1)
    items = client.decode("document", tmp_path / "two.pdf", max_pages=None)
    with pytest.raises(KVMMError, match=r"two\.pdf takes too long"):
        for _ in items:
            assert wait_until(lambda: not children(pid), 30)


def test_few_are_decoded_at_once_and_who_waits_can_stop(tmp_path):
    (tmp_path / "strokes.pdf").write_bytes(hostile.strokes())
    pid, stop, ended = parent(), threading.Event(), []

    def read() -> None:
        with pytest.raises(KVMMError, match="was stopped"):
            load_media(tmp_path / "strokes.pdf", stop=stop)
        ended.append(time.monotonic())

    threads = [threading.Thread(target=read) for _ in range(limits.PROCESSES + 3)]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: len(children(pid)) == limits.PROCESSES)
    time.sleep(0.5)
    assert len(children(pid)) == limits.PROCESSES
    stop.set()
    asked = time.monotonic()
    for thread in threads:
        thread.join(10)
    assert len(ended) == len(threads) and max(ended) - asked < 2.0
    assert wait_until(lambda: not children(pid), 2.0)


def test_the_parent_is_small_and_is_started_again():
    pid = parent()
    load_image(png())
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text() and rss(pid) < 100 * MIB
    os.kill(pid, signal.SIGKILL)
    assert load_image(png("blue")).getpixel((1, 1)) == (0, 0, 255)
    assert parent() != pid


def test_a_parent_that_dies_meanwhile_is_one_line(tmp_path):
    (tmp_path / "strokes.pdf").write_bytes(hostile.strokes())
    pid = parent()
    threading.Timer(1.0, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(KVMMError, match=r"strokes\.pdf could not be read now: try again"):
        load_media(tmp_path / "strokes.pdf")
    assert load_image(png()).size == (40, 30)


def test_all_processes_end_with_the_caller(tmp_path):
    """Also when it is killed while a file is decoded."""
    (tmp_path / "strokes.pdf").write_bytes(hostile.strokes())
    code = (
        "import sys, threading, time; from kvmm.decoding import client; from kvmm.media import load_media\n"
        "client.PARENT.start(); print(client.PARENT._process.pid, flush=True); load_media(sys.argv[1])"
    )
    path = str(tmp_path / "strokes.pdf")
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True) as caller:
        pid = int(caller.stdout.readline())
        assert wait_until(lambda: children(pid), 10)
        (child,) = children(pid)
        caller.kill()
    assert wait_until(lambda: rss(pid) == rss(child) == 0), "nobody is left"


def test_what_a_process_says_is_checked_before_memory_is_taken():
    for header in (
        {"kind": "image", "width": 100_000, "height": 100_000},
        {"kind": "audio", "samples": 10**12},
        {"kind": "image", "width": -2, "height": 3},
    ):
        with io.FileIO(os.memfd_create("kvmm"), "w+") as file:
            file.write(b"12345678")
            with pytest.raises(ValueError, match="another size"):
                client._data(header, file)
    for message in (b"[]", b"{", b"1", b"\xff"):
        with pytest.raises(ValueError):
            client.unpacked(message)


def test_a_fork_of_the_caller_has_a_parent_of_its_own():
    pid, (read, write) = parent(), os.pipe()
    fork = os.fork()
    if not fork:
        try:
            ok = load_image(png("blue")).getpixel((1, 1)) == (0, 0, 255) and client.PARENT._process.pid != pid
            os.write(write, b"1" if ok else b"0")
            client.PARENT.close()
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(fork, 0)
    assert os.read(read, 1) == b"1" and parent() == pid and load_image(png()).size == (40, 30)
    os.close(read)


# -- when the machine has nothing left -------------------------------------------------------------------------------


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
