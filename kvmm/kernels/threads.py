"""Work of C libraries on the threads that torch computes on.

Between two operations the threads of torch's OpenMP team wait awake for some milliseconds. Threads of another pool then
share the cores with them: on two cores attention of a prompt took up to 1.7 times as long.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from kvmm.kernels import build

SOURCE = build.Source("threads", Path(__file__).with_name("threads.c"))


class _Task(ctypes.Structure):
    """``Task`` of ``threads.c``."""

    _fields_ = [
        ("work", ctypes.c_void_p),
        ("given", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "step", "next", "failed")),
    ]


def in_parts(function: Any, given: ctypes.Structure, count: int, step: int | None = None) -> int:
    """Have torch's threads call a C function ``int (const void *given, int64_t first, int64_t last)``.

    No Python runs on them, and a signal's exception waits until all have ended, as they read and write what is given.

    Args:
        function: of a library loaded with ctypes; it returns 0, or a positive number if it failed.
        given: the structure whose address every call gets.
        count: parts of the work, which calls share.
        step: parts of a call; None for as many as make one call a thread.

    Returns:
        the largest number that a call returned; where it is not 0, some parts may not have been worked on.
    """
    threads = torch.get_num_threads()
    step = -(-count // threads) if step is None else step
    take = _take_parts() if threads > 1 and count > step else None
    if take is None:
        return function(ctypes.byref(given), 0, count)
    task = _Task(ctypes.cast(function, ctypes.c_void_p).value, ctypes.addressof(given), count, step)
    team = _team()
    if team is not None:
        # the whole team, also for fewer parts: GNU's library ends the threads that a smaller one leaves out
        team(ctypes.cast(take, ctypes.c_void_p), ctypes.byref(task), threads, 0)
    else:
        _wait([_pool(threads).submit(take, ctypes.byref(task)) for _ in range(threads)])
    return task.failed


def _wait(futures: list[Future]) -> None:
    """Until all have ended, whatever is raised here meanwhile."""
    try:
        wait(futures)
    finally:
        while not all(future.done() for future in futures):
            wait(futures)


@lru_cache(maxsize=1)
def _take_parts() -> Any:
    """``kvmm_take_parts``, or None without a C compiler."""
    library = build.first_loaded(SOURCE)
    if library is None:
        return None
    library.kvmm_take_parts.argtypes, library.kvmm_take_parts.restype = (ctypes.c_void_p,), None
    return library.kvmm_take_parts


@lru_cache(maxsize=1)
def _team() -> Any:
    """``GOMP_parallel`` of the OpenMP library that torch has loaded, or None where none has it or shows it to all."""
    try:
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):  # TypeError: Windows opens no library without a name
        return None
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    return parallel


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kvmm")
