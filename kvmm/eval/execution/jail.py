"""The process that runs a program: it confines itself by seccomp, runs it, and says the word if it came to its end.

Only the standard library is imported, so that ``python -I -S`` starts it in a few milliseconds. System calls that are
not named in :data:`ALLOWED` fail with EPERM; files can be opened for reading alone.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import io
import os
import platform
import struct
import sys

try:
    import resource
except ImportError:  # Windows, where nothing is run
    resource = None

FAILED, NOT_CONFINED = 3, 4  # exit codes
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


def main() -> int:
    """Read the word, the limits and a program from stdin, and run it; returns the exit code."""
    head, _, source = sys.stdin.buffer.read().decode("utf-8").partition("\n")
    word, seconds, memory = head.split()
    say = os.dup(1)
    empty = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(empty, descriptor)
    try:
        confine(float(seconds), int(memory))
    except (OSError, ValueError, KeyError) as error:
        os.write(say, f"{type(error).__name__}: {error}".encode())
        return NOT_CONFINED
    write, sys.stdin = os.write, io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(source, "<program>", "exec"), {"__name__": "__main__", "__builtins__": builtins})
    except BaseException as error:  # also SystemExit: a program that leaves has not come to its end
        with contextlib.suppress(BaseException):
            write(say, f"{type(error).__name__}: {error}"[:1000].encode("utf-8", "replace"))
        return FAILED
    write(say, word.encode())
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # nothing that the program left behind runs
