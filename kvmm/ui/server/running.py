"""Work under way in this process. It ends before the process does.

A thread that the interpreter ends inside torch unwinds C++ frames that may not be unwound: the process would abort.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

_RUNNING: set[threading.Event] = set()  # what stops each work
_CHANGED = threading.Condition()
_ENDING = threading.Event()


def began(stop: threading.Event) -> None:
    """Work has begun that ``stop`` stops; it is set at once if the process is about to end."""
    with _CHANGED:
        _RUNNING.add(stop)
        if _ENDING.is_set():
            stop.set()


def ended(stop: threading.Event) -> None:
    """The work that ``stop`` stops is over."""
    with _CHANGED:
        _RUNNING.discard(stop)
        _CHANGED.notify_all()


@contextlib.contextmanager
def under_way(stop: threading.Event) -> Iterator[None]:
    """:func:`began` and :func:`ended` around a block."""
    began(stop)
    try:
        yield
    finally:
        ended(stop)


@contextlib.contextmanager
def ending_with(seconds: float) -> Iterator[None]:
    """Stop all work after the block, and wait for it.

    Args:
        seconds: at most, in all.
    """
    _ENDING.clear()
    try:
        yield
    finally:
        end_all(seconds)


def end_all(seconds: float) -> bool:
    """Stop all work, also work that begins from now on, and wait for it.

    Args:
        seconds: at most.

    Returns:
        Whether all of it has ended.
    """
    until = time.monotonic() + seconds
    with _CHANGED:
        _ENDING.set()
        for stop in _RUNNING:
            stop.set()
        return _CHANGED.wait_for(lambda: not _RUNNING, timeout=max(0.0, until - time.monotonic()))


def ending() -> bool:
    """Whether :func:`end_all` was called: the process is about to end."""
    return _ENDING.is_set()


__all__ = ["began", "end_all", "ended", "ending", "ending_with", "under_way"]
