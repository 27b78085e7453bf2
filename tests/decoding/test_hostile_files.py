"""Files that ask for gigabytes or minutes: refused with a line, in bounded memory and time, and nothing is left."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvmm import decoding
from kvmm.decoding import client, limits, worker
from kvmm.errors import KVMMError
from kvmm.media import load_image, load_media, load_video, preview
from tests.decoding import hostile
from tests.decoding.processes import children, held, in_a_fork, parent, png, rss, wait_until

MIB = 2**20


class Peak:
    """The most memory that this process took beyond what it had, and the decoding ones: as the kernel counts them."""

    def __enter__(self) -> Peak:
        load_image(png())  # the parent is there
        self._ends, ends = [], client._Decoding._end
        self._patch = pytest.MonkeyPatch()
        # also one that is done is waited for, so that it tells what it took
        self._patch.setattr(client._Decoding, "_over", property(lambda _: False, lambda *_: None), raising=False)
        self._patch.setattr(client._Decoding, "_end", lambda each: self._ends.append(ends(each)) or self._ends[-1])
        self.before = rss("self")
        Path("/proc/self/clear_refs").write_text("5")  # the highest mark is what it has now
        return self

    def __exit__(self, *_: object) -> None:
        own = rss("self", "VmHWM") - self.before
        self._patch.undo()
        assert self._ends and all(self._ends), "each tells"
        self.most = own + max(ended.nbytes for ended in self._ends)


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
        stop, errors = threading.Event(), []
        thread = threading.Thread(target=lambda call=call, stop=stop, errors=errors: errors.append(refusal(call, stop)))
        thread.start()
        with held(pid) as child:  # it will not end by itself
            stop.set()
            thread.join(30)
            assert errors[0].startswith("strokes.pdf was stopped") and errors[0].endswith(": send it again.")
            assert wait_until(lambda child=child: child not in children(pid), 30), "killed, not left alone"


def refusal(call: Callable[..., object], *args: object) -> str:
    try:
        call(*args)
    except KVMMError as error:
        return str(error)
    return "nothing"


def _preview_of(path: Path):
    return lambda stop: preview(path, 4, 300, stop)


def test_a_page_has_its_seconds_and_others_do_not_wait_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "PAGE_SECONDS", 1)
    (tmp_path / "strokes.pdf").write_bytes(hostile.strokes())
    pid, errors = parent(), []
    thread = threading.Thread(target=lambda: errors.append(refusal(load_media, tmp_path / "strokes.pdf")))
    thread.start()
    with held(pid) as child:
        for _ in range(limits.PROCESSES + 1):  # its place is not needed
            assert load_image(png()).size == (40, 30)
        assert child in children(pid) and thread.is_alive()
    thread.join(60)
    assert errors == ["Page 1 of strokes.pdf takes too long to read: save it as plain pictures, or in a smaller size."]


def test_a_video_that_takes_too_long_ends_the_process_that_tries(tmp_path, monkeypatch):
    import av

    with av.open(str(tmp_path / "long.mp4"), "w") as container:
        track = container.add_stream("mpeg4", rate=30)
        track.width = track.height = 2048
        track.pix_fmt = "yuv420p"
        black = av.VideoFrame.from_ndarray(np.zeros((2048, 2048, 3), np.uint8), format="rgb24")
        (packet,) = [*track.encode(black), *track.encode(None)]
        for number in range(1000):  # the same picture again and again
            packet.pts = packet.dts = number * packet.duration
            container.mux(packet)
            packet.stream = track
    monkeypatch.setattr(limits, "VIDEO_SECONDS", 1)
    monkeypatch.setattr(limits, "VIDEO_PIXELS", 2**40)
    assert refusal(load_video, tmp_path / "long.mp4").startswith("long.mp4 takes too long to read")
    monkeypatch.setattr(limits, "VIDEO_PIXELS", 2**30)
    assert "1,000 frames or more, of 4,194,304 pixels each" in refusal(load_media, tmp_path / "long.mp4")


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
    pid, stop, errors = parent(), threading.Event(), []
    slots = client.PARENT.slots

    def read() -> None:
        errors.append(refusal(lambda: load_media(tmp_path / "strokes.pdf", stop=stop)))

    threads = [threading.Thread(target=read) for _ in range(limits.PROCESSES + 3)]
    for thread in threads:
        thread.start()
    with held(pid, limits.PROCESSES):
        assert wait_until(lambda: slots.waiting == 3, 30) and len(children(pid)) == limits.PROCESSES
        stop.set()
        for thread in threads:
            thread.join(30)
        assert len(errors) == len(threads) and all("was stopped" in error for error in errors)
        assert wait_until(lambda: not children(pid), 30)


def test_the_parent_is_small_and_is_started_again():
    pid = parent()
    load_image(png())
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text() and rss(pid) < 100 * MIB
    os.kill(pid, signal.SIGKILL)
    assert load_image(png("blue")).getpixel((1, 1)) == (0, 0, 255)
    assert parent() != pid


def test_a_parent_that_dies_meanwhile_is_one_line(tmp_path):
    (tmp_path / "strokes.pdf").write_bytes(hostile.strokes())
    pid, errors = parent(), []
    thread = threading.Thread(target=lambda: errors.append(refusal(load_media, tmp_path / "strokes.pdf")))
    thread.start()
    with held(pid):
        os.kill(pid, signal.SIGKILL)
        thread.join(30)
    assert errors == ["strokes.pdf could not be read now: try again."]
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


@pytest.mark.parametrize("own", ["glibc.malloc.arena_max=2", None])
def test_the_tunables_of_the_user_stay(monkeypatch, own):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if own is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", own)
    other = client.Parent()
    other.start()
    try:
        environ = Path(f"/proc/{other._process.pid}/environ")
        assert wait_until(lambda: environ.read_bytes()), "empty until the new program has its memory"
        # glibc may have cut the value up in its place
        environment = environ.read_bytes().replace(b"\0", b":").decode()
    finally:
        other.close()
    wanted = "glibc.malloc.hugetlb=1" if own is None else f"glibc.malloc.hugetlb=1:{own}"
    assert f":GLIBC_TUNABLES={wanted}:" in f":{environment}:"


@pytest.mark.parametrize("here", [False, True])
def test_ask_starts_the_parent_before_torch_is_imported(monkeypatch, tmp_path, here):
    from kvmm.commands import ask

    other, runs = client.Parent(), []

    def imports_torch(*_: object) -> None:
        runs.append(other._process is not None and other._process.poll() is None)
        raise KVMMError("far enough")

    monkeypatch.setattr(client, "PARENT", other)
    monkeypatch.setattr(ask, "_check_policy", imports_torch)
    try:
        with decoding.in_process() if here else contextlib.nullcontext():
            assert refusal(lambda: ask.command("What?", image=[tmp_path / "a.png"], quiet=True)) == "far enough"
    finally:
        other.close()
    assert runs == [not here]


def test_what_decodes_does_not_import_what_asks():
    code = "import sys, kvmm.decoding.client, kvmm.decoding.worker; print('kvmm.media' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "False"
    assert "kvmm.media" not in worker._DECODERS
