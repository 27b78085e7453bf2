"""The two processes of a program and its check: each confines itself by seccomp and runs its source.

The program's process loads the program and answers calls of one of its functions. The check's process runs the check,
for which that function is a stand-in, and has the verdict: it never runs a line of the program, and reads from it
nothing but plain data.

Only the standard library is imported, so that ``python -I -S`` starts it in a few milliseconds. System calls that are
not named in :data:`ALLOWED` fail with EPERM; files can be opened for reading alone.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib
import io
import json
import os
import platform
import struct
import sys
from typing import Any

try:
    import resource
except ImportError:  # Windows, where nothing is run
    resource = None

FAILED, NOT_CONFINED, LEFT = 3, 4, 5  # exit codes
MAX_MESSAGE = 2**24  # bytes of one message
_DENY, _ALLOW, _KILL = 0x0005_0000 | 1, 0x7FFF_0000, 0x8000_0000  # errno 1 is EPERM
_WRITES = (
    os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | getattr(os, "O_TMPFILE", 0) & ~os.O_DIRECTORY
)
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # classic BPF

# AUDIT_ARCH, the calls that open files with the number of their flags' argument, and the calls that are allowed
ALLOWED: dict[str, tuple[int, dict[int, int], tuple[int, ...]]] = {
    "x86_64": (
        0xC000_003E,
        {2: 1, 257: 2},  # open, openat
        (
            # read write close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sig* pread64 readv writev access
            *(0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19, 20, 21),
            # sched_yield mremap mincore madvise nanosleep getitimer setitimer getpid exit uname fcntl getcwd readlink
            *(24, 25, 27, 28, 35, 36, 38, 39, 60, 63, 72, 79, 89),
            # gettimeofday getrlimit getrusage sysinfo times get*id sigaltstack arch_prctl gettid futex
            *(96, 97, 98, 99, 100, 102, 104, 107, 108, 110, 131, 158, 186, 202),
            # sched_getaffinity getdents64 set_tid_address clock_* exit_group newfstatat readlinkat faccessat
            *(204, 217, 218, 228, 229, 230, 231, 262, 267, 269),
            *(273, 318, 332, 334),  # set_robust_list getrandom statx rseq
        ),
    ),
    "aarch64": (
        0xC000_00B7,
        {56: 2},  # openat
        (
            # getcwd fcntl faccessat close getdents64 lseek read write readv writev pread64 ppoll readlinkat fstat*
            *(17, 25, 48, 57, 61, 62, 63, 64, 65, 66, 67, 73, 78, 79, 80),
            # exit exit_group set_tid_address futex set_robust_list nanosleep *itimer clock_* sched_*
            *(93, 94, 96, 98, 99, 101, 102, 103, 113, 114, 115, 123, 124),
            # sigaltstack rt_sig* times uname getrusage gettimeofday get*id sysinfo
            *(132, 134, 135, 139, 153, 160, 165, 169, 172, 173, 174, 175, 176, 177, 178, 179),
            *(214, 215, 216, 222, 226, 232, 233, 278, 291, 293),  # brk, memory, getrandom statx rseq
        ),
    ),
}


def filter_program(machine: str) -> bytes:
    """The seccomp filter of a machine, as ``struct sock_filter`` after ``struct sock_filter``."""
    arch, opens, allowed = ALLOWED[machine]
    out = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for number in allowed:
        out += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for number, argument in opens.items():
        flags = 16 + 8 * argument  # the low half of an argument, little-endian
        out += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, flags), (_ANY_BIT, 0, 1, _WRITES)]
        out += [(_RETURN, 0, 0, _DENY), (_RETURN, 0, 0, _ALLOW)]
    out.append((_RETURN, 0, 0, _DENY))
    return b"".join(struct.pack("HBBI", *one) for one in out)


def confine(seconds: float, memory: int) -> None:
    """Give up everything but computing and reading. Raises ``OSError`` if the kernel refuses."""
    for kind, most in (
        (resource.RLIMIT_CPU, max(int(seconds), 1)),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 2**16),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most + 1 if kind == resource.RLIMIT_CPU else most))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    code = filter_program(platform.machine())
    kept = ctypes.create_string_buffer(code, len(code))
    program = Program(len(code) // 8, ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if libc.prctl(22, 2, ctypes.byref(program), 0, 0):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(ctypes.get_errno(), "seccomp")


class Left(Exception):
    """The other process has ended."""


class Messages:
    """Lines of JSON to the other process and from it."""

    def __init__(self, read: int, write: int):
        self._lines, self._write = os.fdopen(read, "rb"), write

    def send(self, message: dict[str, Any]) -> None:
        """Raises :class:`Left`."""
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._write, data) :]
        except BrokenPipeError:
            raise Left from None

    def receive(self) -> dict[str, Any]:
        """Raises :class:`Left`, or ``ValueError`` for what is no message."""
        line = self._lines.readline(MAX_MESSAGE)
        if not line:
            raise Left
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("the program's answer is no message")
        return message


def pack(value: Any) -> Any:
    """Plain data as JSON: what is no scalar of JSON is an object of one key, the type's name.

    Raises:
        TypeError: it is no plain data.
    """
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else {"int": hex(value)}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {"dict": [[pack(key), pack(one)] for key, one in value.items()]}
    for plain in (list, tuple, set, frozenset):
        if isinstance(value, plain):
            return {plain.__name__: [pack(one) for one in value]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if name in _NUMBERS:
        return {name: str(value)}
    if hasattr(value, "__next__") or isinstance(value, _VIEWS):
        return {"iterator": [pack(one) for one in value]}
    raise TypeError(f"{name} is no plain data")


_NUMBERS = ("fractions.Fraction", "decimal.Decimal")
_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))


def unpack(value: Any) -> Any:
    """What :func:`pack` was given, subclasses as their plain types. Raises ``ValueError`` for anything else."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError("the program's answer is no plain data")
    ((kind, inner),) = value.items()
    if kind in _NUMBERS:
        module, _, name = kind.partition(".")
        return getattr(importlib.import_module(module), name)(inner)
    make = {
        "int": lambda: int(inner, 16),
        "complex": lambda: complex(*inner),
        "bytes": lambda: bytes.fromhex(inner),
        "range": lambda: range(*inner),
        "dict": lambda: {unpack(key): unpack(one) for key, one in inner},
        "iterator": lambda: iter([unpack(one) for one in inner]),
        **{plain.__name__: lambda plain=plain: plain(map(unpack, inner)) for plain in (list, tuple, set, frozenset)},
    }
    if kind not in make:
        raise ValueError("the program's answer is no plain data")
    return make[kind]()


def raised(error: BaseException) -> dict[str, Any]:
    """An error as a message."""
    return {"raised": [type(error).__name__, str(error)[:1000]]}


def error_of(name: str, text: str) -> Exception:
    """The error of a message, of a type of the same name."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):
            return kind(text)
    return type(name if name.isidentifier() else "Error", (Exception,), {})(text)


def answer_calls(source: str, name: str, messages: Messages) -> None:
    """Load a program and answer calls of its function ``name`` until nobody calls any more."""
    namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
    try:
        exec(compile(source, "<program>", "exec"), namespace)
        reply: dict[str, Any] = {"value": None}
    except BaseException as error:  # also SystemExit: a program that leaves has not come to its end
        reply = raised(error)
    while True:
        messages.send(reply)
        call = messages.receive()
        try:
            arguments, named = unpack(call["arguments"]), unpack(call["named"])
            if name not in namespace:
                raise NameError(f"the program has no {name}")
            reply = {"value": pack(namespace[name](*arguments, **named))}
        except BaseException as error:
            reply = raised(error)


def run_check(source: str, name: str, messages: Messages) -> None:
    """Run a check, in which ``name`` calls the program's function. Raises what the check raises, or :class:`Left`."""

    def replied() -> Any:
        message = messages.receive()
        if "raised" in message:
            kind, text = message["raised"]
            raise error_of(str(kind), str(text))
        return unpack(message["value"])

    def function(*arguments: Any, **named: Any) -> Any:
        messages.send({"arguments": pack(arguments), "named": pack(named)})
        return replied()

    replied()  # the program is loaded
    exec(compile(source, "<check>", "exec"), {"__name__": "__main__", "__builtins__": builtins, name: function})


def main(role: str, name: str, read: str, write: str, seconds: str, memory: str) -> int:
    """Run the source in stdin, as the program or as its check; returns the exit code.

    Args:
        role: "program" or "check".
        name: of the function that the check calls.
        read, write: descriptors of the messages.
        seconds, memory: the limits.
    """
    source = sys.stdin.buffer.read().decode("utf-8")
    say = os.dup(1)
    empty = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(empty, descriptor)
    messages = Messages(int(read), int(write))
    try:
        confine(float(seconds), int(memory))
    except (OSError, ValueError, KeyError) as error:
        os.write(say, f"{type(error).__name__}: {error}".encode())
        return NOT_CONFINED
    sys.stdin = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            (answer_calls if role == "program" else run_check)(source, name, messages)
    except Left:
        return LEFT
    except BaseException as error:
        with contextlib.suppress(BaseException):
            os.write(say, f"{type(error).__name__}: {error}"[:1000].encode("utf-8", "replace"))
        return FAILED
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    os._exit(code)  # nothing that the program left behind runs
