"""Limit glibc's malloc arenas and return their free memory, so that later questions can use it."""

from __future__ import annotations

import ctypes
import os

_M_ARENA_MAX = -8  # <malloc.h>


def share_arenas(count: int = 2) -> bool:
    """Let all threads of this process allocate from ``count`` of glibc's arenas; call it before threads start.

    Gradio answers requests on up to forty threads. By default nearly each gets an arena of its own and keeps what it
    once needed, so that the process grows for hours although nothing leaks (``benchmarks/app_soak.py``).

    Returns:
        Whether it was done: False without glibc, and where ``MALLOC_ARENA_MAX`` says what the user wants.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return False
    try:
        return bool(ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, count))
    except (OSError, AttributeError):  # another C library
        return False


def return_memory() -> bool:
    """Give what threads have freed back to the system: glibc keeps it, hundreds of megabytes after a large picture.

    Returns:
        Whether it was done: False without glibc.
    """
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return False
    return True
