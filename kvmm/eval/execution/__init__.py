"""Execution of programs that a model wrote, in a process that may do nothing but compute.

:func:`run_program` starts :mod:`kvmm.eval.execution.jail` for each program. Before it runs, the process gives up: files
(none can be written, made or removed), the network, other processes, signals, and its limits of memory and time. What
it may still do is compute and read files; it has no way to tell anybody what it read. Linux has what that takes
(seccomp); elsewhere nothing is run.
"""

from __future__ import annotations

import platform
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from kvmm.errors import KVMMError
from kvmm.eval.execution.jail import ALLOWED, FAILED, NOT_CONFINED

SECONDS = 10.0  # of CPU
WAITS = 6  # times its seconds may a program take on a busy machine; ends what sleeps
MEMORY = 2**30  # bytes of address space
MAX_PROGRAM = 2**20  # characters
MAX_OUTPUT = 4096  # bytes that are read of what a program says


class Outcome(NamedTuple):
    """How a program ended: whether to its last line, and if not, why."""

    passed: bool
    reason: str


def available() -> bool:
    """Whether programs can be confined on this machine."""
    return sys.platform == "linux" and platform.machine() in ALLOWED


def run_program(source: str, *, seconds: float = SECONDS, memory: int = MEMORY) -> Outcome:
    """Run a Python program by itself, confined.

    Args:
        source: the program.
        seconds: of CPU time.
        memory: bytes of address space.

    Returns:
        ``passed`` if the program came to its end without an error; one that leaves by ``sys.exit`` or ``os._exit`` did
        not. ``reason`` is "passed", "timed out", or "failed: " and the error.

    Raises:
        KVMMError: nothing can be confined on this machine.
    """
    if not available():
        raise KVMMError("Programs cannot be confined on this machine: run them on Linux, on x86-64 or ARM64.")
    if len(source) > MAX_PROGRAM:
        return Outcome(False, f"failed: the program has more than {MAX_PROGRAM:,} characters")
    word = secrets.token_hex(16)  # said at the end of the program; one that looks for it in its own process can, too
    limits = f"{word} {seconds} {memory}\n"
    command = [sys.executable, "-I", "-S", "-B", str(Path(__file__).with_name("jail.py"))]
    # what it says goes to a file, which the jail keeps small: a pipe would be read into memory without end
    with tempfile.TemporaryDirectory(prefix="kvmm-") as folder, tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                command,
                input=(limits + source).encode("utf-8", "replace"),
                stdout=output,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
                timeout=WAITS * seconds + 30,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(False, "timed out")
        output.seek(0)
        said = output.read(MAX_OUTPUT).decode("utf-8", "replace")
    if done.returncode == NOT_CONFINED:
        raise KVMMError(f"Programs cannot be confined on this machine ({said.strip()}): leave execute=yes out.")
    if done.returncode == 0 and said == word:
        return Outcome(True, "passed")
    if done.returncode in (-24, -9):  # SIGXCPU, and SIGKILL where the hard limit is the soft one
        return Outcome(False, "timed out")
    return Outcome(False, f"failed: {said}" if done.returncode == FAILED else "failed: the program left early")


__all__ = ["MAX_PROGRAM", "MEMORY", "SECONDS", "Outcome", "available", "run_program"]
