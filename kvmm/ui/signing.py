"""Marks on saved conversations: an app loads only files that it has written itself.

A cache's tensors are read by compiled kernels, which trust them; a stranger's upload must not reach those. So a file
gets a keyed digest (HMAC-SHA256) in its header, made with a key that stays on the server. It remains a safetensors file
that ``Conversation.load`` reads.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Any

from kvmm.errors import KVMMError

KEY_BYTES = 32
MAX_HEADER = 64 * 2**20
CHUNK = 2**20
_NAME = "signature"
_HAS_MODES = hasattr(os, "getuid")  # Windows has none

logger = logging.getLogger(__name__)


def app_key(folder: str | Path | None = None) -> bytes:
    """The key of this installation, made at first use; one of this process if it cannot be kept.

    It is in ``$XDG_STATE_HOME/kvmm`` (by default ``~/.local/state/kvmm``), for its owner alone. A folder of the owner
    that others may write to is closed to them; where the file system has no such modes, the key is one of this process.

    Raises:
        KVMMError: the folder or the key is another user's, or others can read the key or write to it, so that what it
            signs is not to be trusted.
    """
    try:
        folder = Path(folder or Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kvmm")
        path = folder / "app.key"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _close_folder(folder)
        if not os.path.lexists(path):
            _write_key(path)
        _check_key(path)
        key = path.read_bytes()
        if len(key) != KEY_BYTES:  # an earlier version was interrupted while it wrote
            _write_key(path, replace=True)
            key = path.read_bytes()
        return key
    except (OSError, RuntimeError) as error:  # no home folder, a read-only one, or a file system without modes
        _warn_once(f"{error}. Conversations that are saved now can be opened only until the app ends.")
        return secrets.token_bytes(KEY_BYTES)


@functools.cache
def _warn_once(line: str) -> None:
    logger.warning("The app's key cannot be kept: %s", line)


def _close_folder(folder: Path) -> None:
    """Take from other users the right to write to a folder of this one: they could put another key there.

    Raises:
        KVMMError: it belongs to another user.
        PermissionError: the file system keeps it open to them.
    """
    found = folder.stat()
    if not _HAS_MODES:
        return
    if found.st_uid != os.getuid():
        raise _not_trusted(
            folder, "belongs to another user", "delete it, or set XDG_STATE_HOME to a folder of your own"
        )
    if found.st_mode & 0o022:
        folder.chmod(stat.S_IMODE(found.st_mode) & ~0o022)
        if folder.stat().st_mode & 0o022:
            raise PermissionError(f"{folder} is on a file system where other users can write to it")


def _check_key(path: Path) -> None:
    """Raise ``KVMMError`` for a key of another user, a link, or one that others can read or write to."""
    found = path.lstat()
    if not _HAS_MODES:
        return
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.getuid():
        raise _not_trusted(path, "belongs to another user", "delete it")
    if found.st_mode & 0o077:
        raise _not_trusted(path, "is open to other users", f"delete it, or run chmod go-rwx {path} if none has used it")


def _not_trusted(path: Path, why: str, do: str) -> KVMMError:
    return KVMMError(f"{path} {why}, and whoever has the key can forge saved conversations: {do}.")


def _write_key(path: Path, *, replace: bool = False) -> None:
    """Write a new key, whole or not at all. Of several processes that do so at once, the first one's stays."""
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".app.key-")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            if _HAS_MODES and os.fstat(file.fileno()).st_mode & 0o077:
                raise PermissionError(f"{path.parent} is on a file system where other users can read every file")
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(unfinished, path)
            return
        try:
            os.link(unfinished, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(unfinished, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)


def sign(path: str | Path, key: bytes) -> None:
    """Put the digest of a safetensors file into its header."""
    path = Path(path)
    header, start = _header(path)
    header["__metadata__"][_NAME] = _digest(path, header, start, key)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_suffix(".signed")
    with path.open("rb") as old, unfinished.open("wb") as new:
        new.write(len(text).to_bytes(8, "little") + text)
        old.seek(start)
        while chunk := old.read(CHUNK):
            new.write(chunk)
    os.replace(unfinished, path)


def check_signature(path: str | Path, key: bytes) -> None:
    """Raise ``KVMMError`` unless the file was signed with ``key`` and is as it was then."""
    path = Path(path)
    header, start = _header(path)
    found = header["__metadata__"].pop(_NAME, "")
    if not isinstance(found, str) or not hmac.compare_digest(found, _digest(path, header, start, key)):
        raise KVMMError(
            f"{path.name} was not saved by this app: here only its own conversations are opened; in Python, "
            "Conversation.load opens any that you trust."
        )


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header, with a ``__metadata__``, and where the tensors begin."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_HEADER:
                raise ValueError("its header is too long")
            header = json.loads(file.read(length))
            if not isinstance(header["__metadata__"], dict):
                raise ValueError("its metadata is not a mapping")
            return header, 8 + length
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise KVMMError(f"{path.name} is not a saved conversation: choose a .kvmm file that this app wrote.") from None


def _digest(path: Path, header: dict[str, Any], start: int, key: bytes) -> str:
    digest = hmac.new(key, json.dumps(header, sort_keys=True).encode(), hashlib.sha256)
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


__all__ = ["app_key", "check_signature", "sign"]
