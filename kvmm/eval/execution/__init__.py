"""Execution of programs that a model wrote, in a process that may do nothing but compute.

:func:`run_program` starts :mod:`kvmm.eval.execution.jail` twice: for the program, and for the check of it. Before it
runs, each process gives up: files (none can be written, made or removed), the network, other processes, signals, and
its limits of memory and time. What it may still do is compute and read files; it has no way to tell anybody what it
read. Linux has what that takes (seccomp); elsewhere nothing is run.

The check calls the program's function through a pipe and has the verdict. A program can find and change whatever its
own process has; nothing there decides whether it passes, other than what the function returns.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from kvmm.errors import KVMMError
from kvmm.eval.execution.jail import ALLOWED, FAILED, LEFT, NOT_CONFINED

SECONDS = 10.0  # of CPU
WAITS = 6  # times its seconds may a program take on a busy machine; ends what sleeps
STARTS = 30.0  # seconds for the start of its processes there
ENDS = 5.0  # seconds for the end of one that has closed its pipes
MEMORY = 2**30  # bytes of address space
MAX_PROGRAM = 2**20  # characters
MAX_OUTPUT = 4096  # bytes that are read of what a check says


class Outcome(NamedTuple):
    """Whether a program passed its check, and if not, why."""

    passed: bool
    reason: str


def available() -> bool:
    """Whether programs can be confined on this machine."""
    return sys.platform == "linux" and platform.machine() in ALLOWED


def run_program(
    source: str, check: str = "", name: str = "", *, seconds: float = SECONDS, memory: int = MEMORY
) -> Outcome:
    """Run a Python program by itself, confined, and a check of it.

    Args:
        source: the program, which nobody has to trust.
        check: Python that is trusted, and runs to its end if the program is right. It calls the program's function
            ``name``; arguments and results are passed by value and are plain data (numbers, text, bytes, lists, tuples,
            sets, dicts, ranges), and iterators are read to their end.
        name: of the function.
        seconds: of CPU time, of each.
        memory: bytes of address space, of each.

    Returns:
        ``passed`` if the program was loaded and the check came to its end without an error. ``reason`` is "passed",
        "timed out", or "failed: " and the error.

    Raises:
        KVMMError: nothing can be confined on this machine.
    """
    if not available():
        raise KVMMError("Programs cannot be confined on this machine: run them on Linux, on x86-64 or ARM64.")
    if len(source) > MAX_PROGRAM:
        return Outcome(False, f"failed: the program has more than {MAX_PROGRAM:,} characters")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvmm-"))
        # what is said goes to a file, which the jail keeps small: a pipe would be read into memory without end
        output = stack.enter_context(tempfile.TemporaryFile())
        calls, replies = os.pipe(), os.pipe()
        limits = (str(seconds), str(memory))
        try:
            program = _start(stack, folder, source, ("program", name), (calls[0], replies[1]), limits)
            checked = _start(stack, folder, check, ("check", name), (replies[0], calls[1]), limits, output)
        finally:
            for end in (*calls, *replies):  # each process has its two; one that ends is noticed by the other
                os.close(end)
        try:
            code = checked.wait(WAITS * seconds + STARTS)
        except subprocess.TimeoutExpired:
            return Outcome(False, "timed out")
        output.seek(0)
        said = output.read(MAX_OUTPUT).decode("utf-8", "replace")
        if code == 0:
            return Outcome(True, "passed")
        if code == NOT_CONFINED:
            raise KVMMError(f"Programs cannot be confined on this machine ({said.strip()}): leave execute=yes out.")
        if code == LEFT:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = program.wait(ENDS)
        if code in (-signal.SIGXCPU, -signal.SIGKILL):  # SIGKILL where the hard limit is the soft one
            return Outcome(False, "timed out")
        return Outcome(False, f"failed: {said}" if code == FAILED and said else "failed: the program left early")


def _start(
    stack: contextlib.ExitStack,
    folder: str,
    source: str,
    role: tuple[str, str],
    ends: tuple[int, int],
    limits: tuple[str, str],
    output: Any = subprocess.DEVNULL,
) -> subprocess.Popen:
    """One of the two processes; it is ended with the stack."""
    jail = str(Path(__file__).with_name("jail.py"))
    with tempfile.TemporaryFile() as given:
        given.write(source.encode("utf-8", "replace"))
        given.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", jail, *role, *map(str, ends), *limits],
            stdin=given,
            stdout=output,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
            pass_fds=ends,
            start_new_session=True,
        )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


__all__ = ["MAX_PROGRAM", "MEMORY", "SECONDS", "Outcome", "available", "run_program"]
