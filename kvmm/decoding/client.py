"""How this process has a file decoded in another one; see :mod:`kvmm.decoding`."""

from __future__ import annotations

import atexit
import contextlib
import io
import itertools
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from kvmm.decoding import limits
from kvmm.decoding.context import is_in_process, owner
from kvmm.decoding.files import Source, name_of, open_file
from kvmm.decoding.read import Frames, Item
from kvmm.decoding.slots import Slots
from kvmm.decoding.worker import MESSAGE, STATUS, Ended, packed, strip_rows, unpacked
from kvmm.errors import KVMMError

_TOO_LONG = (-signal.SIGALRM, -signal.SIGXCPU)
_MAX_NAME = 1000  # characters; what a file system allows is shorter

logger = logging.getLogger(__name__)


class Stopped(Exception):
    """The caller's event was set; ``page`` of ``count`` would have been the next, None without pages."""

    def __init__(self, page: int, count: int | None) -> None:
        self.page, self.count = page, count


class _Died(Exception):
    """The process ended before it was done."""


class _NotBegun(KVMMError):
    """There never was a process."""


class Parent:
    """The process that forks decoding processes; started by the first file, and again if it has died."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._numbers = itertools.count()
        self.slots = Slots(limits.PROCESSES, limits.PROCESSES_PER_OWNER, limits.RESERVED_PROCESSES)

    def start(self) -> None:
        """Start it, unless it runs."""
        with self._guard:
            self._start()

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        if self._control is not None:
            self._control.close()
        with _starting():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        # threads of a decoder would not survive the fork
        tuned = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        # huge pages: a fork touches all its memory for the first time, which takes longer than decoding a page
        tunables = ("glibc.malloc.hugetlb=1", os.environ.get("GLIBC_TUNABLES"))  # of two values the last one counts
        tuned["GLIBC_TUNABLES"] = ":".join(filter(None, tunables))
        self._control = ours
        with theirs, _starting():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kvmm.decoding", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **tuned, "PYTHONPATH": path},
            )

    def send(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Pass a request on, and return its number."""
        number = next(self._numbers)
        text = packed({**request, "id": number})
        if len(text) > MESSAGE:
            raise KVMMError("The name of the file is too long: rename it.")
        with self._guard:
            for attempt in (1, 2):
                self._start()
                try:
                    socket.send_fds(self._control, [text], descriptors)
                    break
                except OSError:  # it has just died
                    self._process.kill()
                    self._process.wait()
                    if attempt == 2:
                        raise
        return number

    def kill(self, number: int) -> None:
        """End the process of a request, if it still runs."""
        with self._guard, contextlib.suppress(OSError):
            self._control.send(packed({"kill": number}))

    def forget(self) -> None:
        """In a fork of this process, which starts one of its own."""
        if self._control is not None:
            self._control.close()
        self.__init__()

    def close(self) -> None:
        """End it with all its forks."""
        with self._guard:
            if self._process is None:
                return
            self._control.close()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = self._control = None


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KVMMError(
            f"Files are read in another process, and none starts ({error.strerror}): free memory, or see "
            "kvmm.decoding.in_process."
        ) from error


PARENT = Parent()
atexit.register(PARENT.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PARENT.forget)


def decode(
    what: str, source: Source, stop: threading.Event | None = None, *, name: str | None = None, **options: Any
) -> Iterator[Item | int]:
    """Have a file decoded: how many things it holds where that is known before, then each of them.

    Args:
        what: "media", "image", "document", "audio", "preview" or "frames", as in :func:`kvmm.decoding.read.read_here`.
        source: the file.
        stop: set it to kill the process that decodes.
        name: what messages call the file; None for its own name.
        options: of ``what``, JSON values.

    Raises:
        KVMMError: the file cannot be opened or used, or decoding it takes more than :mod:`kvmm.decoding.limits` allows.
        Stopped: ``stop`` was set.
    """
    name = (name or name_of(source))[:_MAX_NAME]
    try:
        with _Slot(stop), _descriptor(source) as file:
            try:
                yield from _Decoding(what, name, file, stop, options).items()
            except _NotBegun:  # the parent was dying as the request was sent
                yield from _Decoding(what, name, file, stop, options).items()
    except OSError as error:  # no memory or descriptors; what is wrong with the file itself is a KVMMError
        raise KVMMError(f"{name} could not be read now ({error.strerror or error}): try again.") from error


class _Slot:
    """One of the places in which files are decoded, for :func:`kvmm.decoding.owner`; waiting for it ends at Stop."""

    def __init__(self, stop: threading.Event | None) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        self._slots, self._owner = PARENT.slots, owner()
        if not self._slots.acquire(self._owner, self._stop):
            raise Stopped(1, None)

    def __exit__(self, *_: object) -> None:
        self._slots.release(self._owner)


@contextlib.contextmanager
def _descriptor(source: Source) -> Iterator[int]:
    """The file, open; bytes become a file in memory."""
    if not isinstance(source, bytes):
        with open_file(source, None) as stream:
            yield stream.fileno()
        return
    open_file(source, None).close()
    with os.fdopen(os.memfd_create("kvmm"), "wb", closefd=True) as stream:
        stream.write(source)
        stream.flush()
        yield stream.fileno()


class _Decoding:
    """One file in one process."""

    def __init__(self, what: str, name: str, file: int, stop: threading.Event | None, options: dict[str, Any]) -> None:
        self._name, self._stop = name, stop
        self._page, self._count = 1, None
        self._begun, self._over, self._ended = False, False, None
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._answer, answer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(self._answer.close)
            theirs.callback(answer.close)
            self._answer.settimeout(limits.STOP_SECONDS)
            self._status, status = os.pipe()
            ours.callback(os.close, self._status)
            theirs.callback(os.close, status)
            request = {"what": what, "name": self._name, "options": options, "limits": limits.sent()}
            self._number = PARENT.send(request, [answer.fileno(), status, file])
            ours.pop_all()  # until the end of the process

    def items(self) -> Iterator[Item | int]:
        """What arrives; the process has ended when this returns or raises."""
        try:
            while (found := self._receive())[0].get("end") is None:
                header, data = found
                if "begun" in header:
                    self._begun = True
                    continue
                if "error" in header:
                    raise KVMMError(str(header["error"]))
                if "failed" in header:
                    logger.error("decoding %s failed: %s", self._name, header["failed"])
                    raise KVMMError(f"{self._name} cannot be read: save it again, in another format.")
                if "count" in header:
                    self._count = int(header["count"])
                    yield self._count
                    continue
                text = str(header["text"]), int(header["text_length"])
                with data:
                    item = Item(str(header["kind"]), _data(header, data), header["page"], *text)
                try:
                    self._answer.sendall(b"1")
                except OSError as error:  # it ended while nobody asked for the next one
                    raise _Died from error
                self._page += 1
                yield item
            self._over = True  # its end takes milliseconds and frees what it has
        except (_Died, ValueError, KeyError) as error:
            if isinstance(error, KVMMError):
                raise
            raise (KVMMError if self._begun else _NotBegun)(self._cause(self._end())) from None
        finally:
            self._end()

    def _receive(self) -> tuple[dict[str, Any], io.FileIO | None]:
        """The next message and the file that came with it."""
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(self._answer, MESSAGE, 1)
            except TimeoutError:
                message, descriptors = None, []
            file = io.FileIO(descriptors[0]) if descriptors else None
            if self._stop is not None and self._stop.is_set():
                raise Stopped(self._page, self._count)
            if message == b"":
                raise _Died
            if message is not None:
                return unpacked(message), file

    def _end(self) -> Ended | None:
        """Wait until the process is gone, after killing it if it is not done; how it ended, None if nobody knows."""
        if self._status is None:
            return self._ended
        self._answer.close()
        if not self._over:
            PARENT.kill(self._number)
            status = os.read(self._status, STATUS.size)
            self._ended = Ended(*STATUS.unpack(status)) if len(status) == STATUS.size else None
        os.close(self._status)
        self._status = None
        return self._ended

    def _cause(self, ended: Ended | None) -> str:
        where = f"Page {self._page} of {self._name}" if self._count is not None else self._name
        if ended is None:
            return f"{self._name} could not be read now: try again."
        if ended.code in _TOO_LONG:
            if self._count is not None and ended.seconds > limits.FILE_SECONDS - 0.5:
                return f"{self._name} takes too long to read: split it, or save it as plain pictures."
            return f"{where} takes too long to read: save it as plain pictures, or in a smaller size."
        if ended.code == -signal.SIGKILL:  # nobody here does that to a process that is waited for; the kernel does
            return f"{where} takes more memory than is free: make it smaller, or try again later."
        return f"{where} is damaged, or takes more than {limits.MEMORY >> 20} MiB to read: save it again, or smaller."


def _data(header: dict[str, Any], file: io.FileIO) -> Any:
    """The pixels, samples or frames in ``file``; read, not mapped, because its writer could cut it off meanwhile.

    Raises ``ValueError`` unless the file is as long as the header says.
    """
    announced = 4 * int(header.get("samples", 0)) + 3 * int(header.get("width", 0)) * int(header.get("height", 0))
    announced += math.prod(int(size) for size in header["shape"]) if header["kind"] == "frames" else 0
    if os.fstat(file.fileno()).st_size != announced:
        raise ValueError("the file has another size")
    if header["kind"] == "audio":
        samples = np.empty(int(header["samples"]), np.float32)
        _fill(file, memoryview(samples).cast("B"), 0)
        return samples
    if header["kind"] == "frames":
        pixels = np.empty([int(size) for size in header["shape"]], np.uint8)
        _fill(file, memoryview(pixels).cast("B"), 0)
        indices = tuple(int(index) for index in header["indices"])
        return Frames(pixels, indices, int(header["total"]), float(header["fps"]))
    if header["kind"] != "image":
        return None
    width, height = int(header["width"]), int(header["height"])
    image, rows = Image.new("RGB", (width, height)), strip_rows(width)
    for top in range(0, height, rows):
        strip = (width, min(rows, height - top))
        pixels = bytearray(3 * strip[0] * strip[1])
        _fill(file, memoryview(pixels), 3 * width * top)
        image.paste(Image.frombuffer("RGB", strip, pixels, "raw", "RGB", 0, 1), (0, top))
    return image


def _fill(file: io.FileIO, view: memoryview, offset: int) -> None:
    while view:
        count = os.preadv(file.fileno(), [view], offset)
        if not count:
            raise ValueError("the file is cut off")
        view, offset = view[count:], offset + count


def start() -> None:
    """Start what reads files, so that the first file does not wait for it; it imports beside what the caller does."""
    if not is_in_process():
        PARENT.start()


__all__ = ["PARENT", "Item", "Stopped", "decode", "start"]
