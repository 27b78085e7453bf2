"""Where and for whom files are decoded, as the code around a call says."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar

_HERE: ContextVar[bool] = ContextVar("here", default=not sys.platform.startswith("linux"))
_STOP: ContextVar[threading.Event | None] = ContextVar("stop", default=None)
_OWNER: ContextVar[str | None] = ContextVar("owner", default=None)


@contextlib.contextmanager
def in_process() -> Iterator[None]:
    """Decode in the calling process: for files that you trust, or where no other process may be started."""
    token = _HERE.set(True)
    try:
        yield
    finally:
        _HERE.reset(token)


def is_in_process() -> bool:
    """Whether files are decoded in the calling process."""
    return _HERE.get()


@contextlib.contextmanager
def owned_by(owner: str | None) -> Iterator[None]:
    """Decode files as those of ``owner``, who takes few of the places in which files are decoded; None has no limit."""
    token = _OWNER.set(owner)
    try:
        yield
    finally:
        _OWNER.reset(token)


def owner() -> str | None:
    """Whose files are decoded; see :func:`owned_by`."""
    return _OWNER.get()


@contextlib.contextmanager
def stopped_by(stop: threading.Event | None) -> Iterator[None]:
    """Once ``stop`` is set, what is being decoded is dropped: a ``KVMMError`` for that file, and for any later one."""
    token = _STOP.set(stop)
    try:
        yield
    finally:
        _STOP.reset(token)


def current_stop() -> threading.Event | None:
    """What ends decoding; see :func:`stopped_by`."""
    return _STOP.get()


__all__ = ["current_stop", "in_process", "is_in_process", "owned_by", "owner", "stopped_by"]
