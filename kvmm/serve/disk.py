"""Prefixes on disk: one file each, written beside the answers and found again after a restart.

A file is named by its scope, its number of tokens and its key, so that the names of a folder are its index. Folders of
other models and policies lie beside: the key of a prefix depends on both, and each has a folder of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import queue
import re
import secrets
import stat
import threading
import time
from pathlib import Path

from kvmm.cache import KVMMCache
from kvmm.errors import KVMMError, one_line

logger = logging.getLogger(__name__)
Name = tuple[str, int, str]
METADATA = "kvmm_prefix"  # in the file: which prefix it is
MAX_PENDING = 64  # caches that wait to be written; more are not
UNFINISHED_SECONDS = 3600.0  # from then on nobody writes to a file that has not got its name
_SUFFIX = ".kvmmcache"
_FILE = re.compile(r"([0-9a-f]{32})-(\d{1,9})-([0-9a-f]{64})\.kvmmcache")
_SECRET, SECRET_BYTES = "secret", 32


class DiskPrefixes:
    """The files of one model and policy below a folder.

    Args:
        folder: made if it is missing, for its owner alone.
        fingerprint: of the model, the policy and the versions that the files depend on.
        budget: bytes of all files below ``folder``; those used longest ago are removed.

    Raises:
        KVMMError: the folder cannot be written, or others can write to it.
    """

    def __init__(self, folder: Path, fingerprint: bytes, budget: int) -> None:
        self.folder, self.budget = folder, budget
        self.failures = 0
        self.bytes_written = 0
        self._own = folder / hashlib.sha256(fingerprint).hexdigest()[:16]
        try:
            self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
            if hasattr(os, "getuid"):
                status = folder.stat()
                if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    raise KVMMError(
                        f"Other users can write to {folder}, and so what requests read: name a folder of your own with "
                        "--cache-dir, or chmod go-w it."
                    )
            self._secret = _secret_of(folder)
            _remove_unfinished(folder)
            self._names = {name: None for path in self._own.iterdir() if (name := _name_of(path)) is not None}
        except OSError as error:
            raise KVMMError(
                f"{folder} cannot be used ({error.strerror or error}): name another folder with --cache-dir."
            ) from None
        self._lengths: dict[str, set[int]] = {}
        for scope, length, _ in self._names:
            self._lengths.setdefault(scope, set()).add(length)
        self._queue: queue.Queue[tuple[Name, KVMMCache] | None] = queue.Queue(MAX_PENDING)
        self._guard = threading.Lock()
        self._writer = threading.Thread(target=self._run, name="kvmm-prefixes", daemon=True)
        self._writer.start()

    def scope(self, api_key: str) -> str:
        """What stands for an API key in names: keyed, so that a name gives no way to try keys."""
        return hmac.new(self._secret, api_key.encode(), hashlib.sha256).hexdigest()[:32]

    def __len__(self) -> int:
        return len(self._names)

    def lengths(self, scope: str) -> set[int]:
        """The lengths that prefixes of a scope have."""
        with self._guard:
            return set(self._lengths.get(scope, ()))

    def has(self, name: Name) -> bool:
        """Whether there is a file, or one is about to be written."""
        with self._guard:
            return name in self._names

    def path(self, name: Name) -> Path:
        """The file of a prefix."""
        scope, length, key = name
        return self._own / f"{scope}-{length}-{key}{_SUFFIX}"

    def load(self, name: Name, model: object) -> KVMMCache:
        """The cache in a file, which counts as used now.

        Raises:
            KVMMError: it is missing, damaged or of something else.
        """
        path = self.path(name)
        cache = KVMMCache.load(path, model, graph=False)
        if cache.metadata.get(METADATA) != list(name) or cache.get_seq_length() != name[1]:
            raise KVMMError(f"{path} holds another prefix than its name says.")
        with contextlib.suppress(OSError):
            os.utime(path)
        return cache

    def remove(self, name: Name) -> None:
        """Delete a file."""
        with self._guard:
            self._names.pop(name, None)
        with contextlib.suppress(OSError):
            self.path(name).unlink()

    def write(self, name: Name, cache: KVMMCache, *, wait: bool = False) -> None:
        """Have a cache written by another thread, unless it is there, or too many wait and ``wait`` is not set."""
        if not self.has(name):
            with contextlib.suppress(queue.Full):
                self._queue.put((name, cache), block=wait)

    def close(self) -> None:
        """Wait until everything is written."""
        self._queue.put(None)
        self._writer.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            name, cache = item
            if self.has(name):
                continue
            try:
                self._make_room(cache.memory().nbytes)
                cache.save(self.path(name), {METADATA: list(name)})
                self.path(name).chmod(0o600)
                with self._guard:
                    self._names[name] = None
                    self._lengths.setdefault(name[0], set()).add(name[1])
                self.bytes_written += self.path(name).stat().st_size
            except (KVMMError, OSError, RuntimeError, MemoryError) as error:  # the answer is unaffected
                self.failures += 1
                logger.warning("A prefix was not written to %s: %s", self.folder, one_line(error))
            del item, cache

    def _make_room(self, nbytes: int) -> None:
        """Remove the files used longest ago until ``nbytes`` more fit."""
        files = []
        for path in self.folder.glob(f"*/*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        total = nbytes + sum(size for _, size, _ in files)
        if nbytes > self.budget:
            raise KVMMError("it alone is larger than the disk budget")
        for _, size, path in sorted(files):
            if total <= self.budget:
                return
            path.unlink(missing_ok=True)
            total -= size
            if path.parent == self._own and (name := _name_of(path)) is not None:
                with self._guard:
                    self._names.pop(name, None)


def _remove_unfinished(folder: Path) -> None:
    """Delete what a server that was killed as it wrote left behind; what is new may be another server's at work."""
    for path in folder.glob(f"*/.*{_SUFFIX}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > UNFINISHED_SECONDS:
                path.unlink()


def _name_of(path: Path) -> Name | None:
    match = _FILE.fullmatch(path.name)
    return None if match is None else (match[1], int(match[2]), match[3])


def _secret_of(folder: Path) -> bytes:
    """The secret of a folder, made at first use, readable by its owner alone."""
    path = folder / _SECRET
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
        except OSError:  # a full disk; half a secret would be taken for a damaged one
            path.unlink(missing_ok=True)
            raise
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise KVMMError(f"{path} is damaged: delete {folder}, which holds nothing that cannot be made again.")
    return secret


__all__ = ["SECRET_BYTES", "DiskPrefixes", "Name"]
