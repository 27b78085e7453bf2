"""Decoding of files that somebody sent: in processes of their own, with limits of memory and time.

A decoder of PDFs, images or recordings meets whatever a file holds. One of a few kilobytes can make it take gigabytes
or minutes, or end its process. So ``kvmm.media`` leaves decoding to a process that ends with the file:

- :mod:`~kvmm.decoding.client` is what this process does. It starts the *parent*, ``python -m kvmm.decoding``, once.
- :mod:`~kvmm.decoding.worker` is the parent. It imports the decoders and nothing of torch (50 MB, a third of a second),
  and forks for each file, which takes about two milliseconds. The fork limits itself (:mod:`~kvmm.decoding.limits`),
  decodes, hands over raw pixels or samples in a file in memory, and ends.

A fork that dies is one ``KVMMError`` for that file. It is killed when the caller stops waiting, and all of them end
with this process. Nothing of one file is left for the next.

Linux has what this takes; elsewhere, and inside :func:`in_process`, files are decoded in the calling process, without
limits of time. Video is decoded in the calling process everywhere.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar

_HERE: ContextVar[bool] = ContextVar("here", default=not sys.platform.startswith("linux"))
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


def start() -> None:
    """Start what reads files, so that the first file does not wait for it; it imports beside what the caller does."""
    if not is_in_process():
        from kvmm.decoding import client

        client.PARENT.start()


__all__ = ["in_process", "is_in_process", "owned_by", "owner", "start"]
