"""Compiles C libraries, and keeps them where nobody else can put another in its place.

A library lies in the user's cache folder, which has to be this user's own and writable by nobody else; so has the
file. Its name holds a digest of its bytes: one that was cut by a crash or changed since is built again. Without such a
folder (no home, a home of somebody else) every process builds its own and leaves nothing behind.

For tests libraries can be built with sanitizers: ``KVMM_SANITIZE=address,undefined``, in an environment from
:func:`sanitized_environment`.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-shared", "-fPIC")
SANITIZE = "KVMM_SANITIZE"  # the variable: names of sanitizers, as -fsanitize takes them
_SECONDS = 120  # for the compiler
_LOADING: dict[str, threading.Lock] = {}  # by name: a library that two threads ask for at once is compiled once
_FILES: list[int] = []  # of loaded libraries: glibc knows one by its name, so no number may be given away again

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """What a library is made of.

    Attributes:
        name: of the library.
        path: its C file.
        headers: makes the headers that the file includes beside those of the system, by name.
    """

    name: str
    path: Path
    headers: Callable[[], dict[str, str]] = dict


def vectors_header() -> dict[str, str]:
    """The header ``vectors.h``, for :attr:`Source.headers`."""
    path = Path(__file__).with_name("vectors.h")
    return {path.name: path.read_text(encoding="utf-8")}


def first_loaded(source: Source) -> ctypes.CDLL | None:
    """The library of the first C compiler that makes one, for this processor if it can; None without any.

    Threads that ask for one at the same time wait for the first of them, whose file the others load.
    """
    lock = _LOADING.setdefault(source.name, threading.Lock())
    for name in ("cc", "gcc", "clang"):
        compiler = shutil.which(name)
        if compiler is None:
            continue
        for tuned in (("-march=native",), ()):
            with lock, contextlib.suppress(OSError, subprocess.SubprocessError):
                return load(source, compiler, tuned)
    return None


def load(source: Source, compiler: str, tuned: tuple[str, ...]) -> ctypes.CDLL:
    """The library for this compiler and processor, compiled unless the cache folder has it.

    Raises:
        OSError, subprocess.SubprocessError: the compiler fails, or what it makes cannot be loaded.
    """
    folder = cache_folder()
    if folder is not None:
        try:
            return _loaded(library_in(folder, source, compiler, tuned))
        except OSError as error:  # a folder that cannot be written, or from which nothing may be loaded
            logger.warning("The compiled library is not kept: %s", error)
    with tempfile.TemporaryDirectory(prefix="kvmm-") as private:  # a loaded library no longer needs its file
        return _loaded(library_in(Path(private), source, compiler, tuned))


def cache_folder() -> Path | None:
    """``kvmm`` in the user's cache folder, which may not exist yet; None for a user without a home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given) / "kvmm"
    try:
        return Path.home() / ".cache" / "kvmm"
    except (RuntimeError, KeyError):  # neither HOME nor an entry in the list of users
        return None


def library_in(folder: Path, source: Source, compiler: str, tuned: tuple[str, ...]) -> Path:
    """The library's file in a folder, compiled unless it is there whole.

    Raises:
        OSError: the folder cannot be written, or belongs to somebody else or is writable for others.
    """
    flags = (*FLAGS, *_sanitizer_flags(), *tuned)
    # what the compiler knows of the processor: a home folder may be shared by machines
    known = _run(compiler, *tuned, "-dM", "-E", "-x", "c", os.devnull)
    headers = {name: text.encode() for name, text in source.headers().items()}
    parts = source.path.read_bytes(), *headers.values(), known, " ".join(flags).encode()
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_own(os.lstat(folder), folder, stat.S_ISDIR)
    for found in sorted(folder.glob(f"{source.name}-{key}-*.so")):
        with contextlib.suppress(OSError):
            os.close(_opened(found))
            return found
        with contextlib.suppress(OSError):
            found.unlink()  # damaged, or somebody else's
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = Path(work) / f"{source.name}.so"
        for name, text in headers.items():
            Path(work, name).write_bytes(text)
        _run(compiler, *flags, "-I", work, "-o", str(made), str(source.path), "-lm")
        made.chmod(0o700)
        library = folder / f"{source.name}-{key}-{_digest(made.read_bytes())}.so"
        _sync(made)
        made.replace(library)  # at once: another process may be looking
        _sync(folder)
    return library


def _run(*command: str) -> bytes:
    return subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS).stdout


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _sync(path: Path) -> None:
    """Have what is at a path on the disk: a power cut leaves the old file or the whole new one."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_own(found: os.stat_result, path: Path, is_kind: object) -> None:
    """Raise ``OSError`` unless a file or folder is this user's and writable by nobody else."""
    if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
        raise PermissionError(f"{path} belongs to somebody else, or others may write to it")
    if not is_kind(found.st_mode):
        raise PermissionError(f"{path} is not what it should be")


def _opened(path: Path) -> int:
    """A descriptor of a library that is this user's own and whole; ``OSError`` for any other."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        _check_own(os.fstat(descriptor), path, stat.S_ISREG)
        with open(descriptor, "rb", closefd=False) as file:
            if path.stem.rpartition("-")[2] != _digest(file.read()):
                raise OSError(f"{path} is damaged")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _loaded(path: Path) -> ctypes.CDLL:
    """The library in a file, which is loaded by the descriptor that was looked at, where there is a way."""
    descriptor = _opened(path)
    by_number = Path(f"/proc/self/fd/{descriptor}")
    if not by_number.exists():
        os.close(descriptor)
        return ctypes.CDLL(str(path))
    _FILES.append(descriptor)
    return ctypes.CDLL(str(by_number))


# -- sanitizers --------------------------------------------------------------------------------------------------------


def _sanitizer_flags() -> tuple[str, ...]:
    wanted = os.environ.get(SANITIZE)
    if not wanted:
        return ()
    if "address" in wanted and "asan" not in os.environ.get("LD_PRELOAD", ""):
        raise OSError(f"{SANITIZE}={wanted} needs the sanitizer's runtime: use sanitized_environment()")
    return ("-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize={wanted}", "-fno-sanitize-recover=all")


def sanitized_environment(names: str = "address,undefined") -> dict[str, str]:
    """Environment variables for a process whose C library is built with sanitizers, which end it at the first error.

    Raises:
        OSError: there is no gcc with their runtime.
    """
    compiler = shutil.which("gcc")
    if compiler is None:
        raise OSError("the sanitizers need gcc")
    runtime = Path(_run(compiler, "-print-file-name=libasan.so").decode().strip())
    if not runtime.is_absolute():  # gcc prints the name alone of what it does not have
        raise OSError("gcc has no address sanitizer here")
    return {
        SANITIZE: names,
        "LD_PRELOAD": str(runtime.resolve()),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:handle_segv=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:abort_on_error=1",
    }


__all__ = [
    "FLAGS",
    "SANITIZE",
    "Source",
    "cache_folder",
    "first_loaded",
    "library_in",
    "load",
    "sanitized_environment",
    "vectors_header",
]
