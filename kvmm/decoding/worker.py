"""The parent of decoding processes, and what each of them does; see :mod:`kvmm.decoding`."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import json
import math
import os
import resource
import selectors
import signal
import socket
import struct
import time
import traceback
from typing import Any, NamedTuple

from kvmm.decoding import limits
from kvmm.decoding.files import OpenFile, kind_of
from kvmm.errors import KVMMError

MESSAGE = 2**17  # bytes; a page's text layer has up to 20 000 characters
STATUS = struct.Struct("<idq")  # of Ended
# imported while nobody waits, so that forks have them; the first is what every request needs
_DECODERS = ("kvmm.decoding.read", "PIL.Image", "kvmm.pdf", "soundfile", "soxr", "av")
_STRIP = 2**20  # bytes of pixels that are copied at once
_POLITE_AFTER = 1.0  # seconds after which a process makes way for those that serve others
_PDEATHSIG = 1  # prctl: the signal that a process gets when its parent dies


class Ended(NamedTuple):
    """How a process ended: minus the signal that killed it or its exit code, seconds of CPU, most resident bytes."""

    code: int
    seconds: float
    nbytes: int


def serve(descriptor: int) -> None:
    """Fork for every request that arrives, until the other end of the socket is closed.

    A request is JSON with three descriptors: the socket for the answer, the pipe for how it ended, and the file.
    ``{"kill": id}`` ends one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the caller decides
    forks = Forks(socket.socket(fileno=descriptor))
    decoders = list(_DECODERS)
    while True:
        events = forks.selector.select(0 if decoders else 0.25 if forks.begun else None)
        if not events and decoders:
            with contextlib.suppress(Exception):  # the file that needs it will say so
                module = importlib.import_module(decoders.pop(0))
                if module.__name__ == "PIL.Image":
                    module.init()  # imports its formats
            gc.freeze()  # a fork that collects garbage would copy all of it
        forks.make_way()
        for key, _ in events:
            if key.fileobj is not forks.control:
                forks.reap(key)
            elif not forks.receive():
                return


class Forks:
    """The processes that decode. What the system refuses is the end of one request, never of the others."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)
        self.begun: dict[int, float] = {}  # by pid, of those whose priority is as it was
        self._pids: dict[int, int] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)

    def make_way(self) -> None:
        """Lower the priority of those that take long."""
        for pid in [pid for pid, when in self.begun.items() if time.monotonic() - when > _POLITE_AFTER]:
            del self.begun[pid]
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, pid, 5)

    def reap(self, key: selectors.SelectorKey) -> None:
        """Tell how a fork has ended, whose pipe ``key`` is."""
        self.selector.unregister(key.fileobj)
        os.close(key.fileobj)
        number, pid, status = key.data
        del self._pids[number]
        self.begun.pop(pid, None)
        _, code, used = os.wait4(pid, 0)
        ended = Ended(os.waitstatus_to_exitcode(code), used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss)
        with contextlib.suppress(OSError):  # nobody waits for it any more
            os.write(status, STATUS.pack(*ended))
        os.close(status)

    def receive(self) -> bool:
        """Do what the caller asks for; False once it is gone. A request that cannot be met is closed unanswered."""
        try:
            text, descriptors, _, _ = socket.recv_fds(self.control, MESSAGE, 3)
        except ConnectionError:
            text, descriptors = b"", []
        except OSError:  # no memory for a message
            time.sleep(0.05)
            return True
        if not text:
            for pid in self._pids.values():
                os.kill(pid, signal.SIGKILL)
            return False
        try:
            request = unpacked(text)
            if "kill" in request:
                if request["kill"] in self._pids:  # not reaped, so the number is its own
                    os.kill(self._pids[request["kill"]], signal.SIGKILL)
            elif len(descriptors) == 3:  # all of them, unless this process has too many
                self._fork(request, *descriptors)
                descriptors.pop(1)
        except (OSError, ValueError, MemoryError):
            pass
        finally:
            for each in descriptors:
                os.close(each)
        return True

    def _fork(self, request: dict[str, Any], answer: int, status: int, file: int) -> None:
        """Raises ``OSError`` where no process can be started; ``status`` belongs to a process that was."""
        alive, life = os.pipe()  # nobody writes: it ends with the fork, which alone has ``life``
        pid = -1
        try:
            key = self.selector.register(alive, selectors.EVENT_READ)
            pid = os.fork()
            if not pid:
                self.control.close()
                _become_decoder(self._libc, answer, file, request)
        finally:
            os.close(life)
            if pid < 0:
                with contextlib.suppress(KeyError):
                    self.selector.unregister(alive)
                os.close(alive)
        self.selector.modify(alive, key.events, (request["id"], pid, status))
        self.begun[pid] = time.monotonic()
        self._pids[request["id"]] = pid


def _become_decoder(libc: Any, answer: int, file: int, request: dict[str, Any]) -> None:
    """Decode one file and end, whatever happens."""
    code = 1
    try:
        libc.prctl(_PDEATHSIG, signal.SIGKILL)
        limits.adopt(request["limits"])
        _limit()
        # closed by the end alone: who reads then knows that there is a status
        _decode(socket.socket(fileno=answer), OpenFile(file, request["name"]), request)
        code = 0
    finally:
        os._exit(code)


def _limit() -> None:
    """Memory, time, the size of files; where memory ends the kernel takes this process before others."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
    for kind, most in (
        (resource.RLIMIT_DATA, limits.MEMORY),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.MEMORY),
    ):
        resource.setrlimit(kind, (most, most))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    most = limits.FILE_SECONDS + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, most if hard == resource.RLIM_INFINITY else min(hard, most)))
    for each in (signal.SIGALRM, signal.SIGXCPU):
        signal.signal(each, signal.SIG_DFL)
    _allow(limits.IMAGE_SECONDS)


def _allow(seconds: int) -> None:
    """From now on so many seconds of CPU; when they are over the kernel ends the process.

    How long that takes depends on what else runs, so the clock ends only what hangs.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime) + seconds
    # at the hard limit the kernel kills as it does where memory ends: stay below
    resource.setrlimit(resource.RLIMIT_CPU, (max(min(soft, hard - 1), 1), hard))
    signal.setitimer(signal.ITIMER_REAL, limits.WALL_SECONDS)


def _decode(out: socket.socket, file: OpenFile, request: dict[str, Any]) -> None:
    out.sendall(packed({"begun": True}))
    try:
        from kvmm.decoding.read import read_here  # imported by the parent already, unless this is its first request

        seconds = {"pdf": limits.PAGE_SECONDS, "audio": limits.AUDIO_SECONDS, "video": limits.VIDEO_SECONDS}
        allowed = seconds.get(kind_of(file), limits.IMAGE_SECONDS)
        _allow(allowed)
        for item in read_here(request["what"], file, **request["options"]):
            _send(out, item)
            _allow(allowed)
        header = {"end": True}
    except KVMMError as error:
        header = {"error": str(error)}
    except MemoryError:
        header = {"error": f"{file.name} does not fit in memory: make it smaller."}
    except Exception:
        header = {"failed": traceback.format_exc()[-4000:]}
    out.sendall(packed(header))


def packed(header: dict[str, Any]) -> bytes:
    """A message; the text layer of a page may hold half a character."""
    return json.dumps(header, ensure_ascii=False).encode("utf-8", "surrogatepass")


def unpacked(message: bytes) -> dict[str, Any]:
    """The header in a message. Raises ``ValueError`` for anything else."""
    header = json.loads(message.decode("utf-8", "surrogatepass"))
    if not isinstance(header, dict):
        raise ValueError("no header")
    return header


def _send(out: socket.socket, item: Any) -> None:
    """An int, how many there will be, or an ``Item``, whose pixels or samples are in a file in memory."""
    if isinstance(item, int):
        out.sendall(packed({"count": item}))
        return
    header = {"kind": item.kind, "page": item.page, "text": item.text, "text_length": item.text_length}
    with os.fdopen(os.memfd_create("kvmm"), "wb", buffering=0) as file:
        if item.kind == "audio":
            header["samples"] = item.data.size
            _write(file, memoryview(item.data).cast("B"))
        elif item.kind == "frames":
            frames = item.data
            header |= {"shape": frames.pixels.shape, "indices": frames.indices}
            header |= {"total": frames.total, "fps": frames.fps}
            _write(file, memoryview(frames.pixels).cast("B"))
        elif item.kind == "image":
            header["width"], header["height"] = width, height = item.data.size
            rows = strip_rows(width)
            for top in range(0, height, rows):
                _write(file, item.data.crop((0, top, width, min(top + rows, height))).tobytes())
        socket.send_fds(out, [packed(header)], [file.fileno()])
    out.recv(1)  # it has been copied: no more than one of them takes memory


def _write(file: io.RawIOBase, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def strip_rows(width: int) -> int:
    """How many rows of RGB pixels are copied at once."""
    return max(_STRIP // (3 * width), 1)


__all__ = ["MESSAGE", "STATUS", "Ended", "Forks", "packed", "serve", "strip_rows", "unpacked"]
