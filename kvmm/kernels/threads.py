"""Work of C libraries on the threads that torch computes on.

Between two operations the threads of torch's OpenMP team wait awake for some milliseconds. Threads of another pool then
share the cores with them: on two cores attention of a prompt took up to 1.7 times as long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch

_Part = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def on_threads(function: Callable[[int, int], Any]) -> list[Any]:
    """Call ``function(index, count)`` once on each of ``count`` threads, at most as many as torch uses.

    Returns:
        what the calls return, in the order of their indexes.

    Raises:
        whatever a call does, once all have ended.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return [function(0, 1)]
    team = _team()
    if team is None:
        return list(_pool(threads).map(lambda index: function(index, threads), range(threads)))
    results: dict[int, Any] = {}
    errors: list[BaseException] = []

    def part(_: None) -> None:
        try:
            index, count = team.omp_get_thread_num(), team.omp_get_num_threads()
            results[index] = function(index, count)
        except BaseException as error:  # a callback of C has nobody to raise it to
            errors.append(error)

    team.GOMP_parallel(_Part(part), None, threads, 0)
    if errors:
        raise errors[0]
    return [results[index] for index in sorted(results)]


def in_parts(function: Callable[[int, int], Any], count: int) -> list[Any]:
    """Call ``function(first, last)`` for parts of ``range(count)`` on threads, as :func:`on_threads` does."""
    return on_threads(lambda index, threads: function(count * index // threads, count * (index + 1) // threads))


@lru_cache(maxsize=1)
def _team() -> Any:
    """The OpenMP library that torch has loaded, or None where it has another one than GNU's."""
    try:
        library = ctypes.CDLL(None)
        library.GOMP_parallel.argtypes = (_Part, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        library.GOMP_parallel.restype = None
        library.omp_get_thread_num.argtypes = library.omp_get_num_threads.argtypes = ()
    except (AttributeError, OSError, TypeError):  # TypeError: Windows opens no library without a name
        return None
    return library


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kvmm")
