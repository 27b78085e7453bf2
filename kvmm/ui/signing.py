"""Marks on saved conversations: an app loads only files that it has written itself.

A cache's tensors are read by compiled kernels, which trust them; a stranger's upload must not reach those. So a file
gets a keyed digest (HMAC-SHA256) in its header, made with a key that stays on the server. It remains a safetensors file
that ``Conversation.load`` reads.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
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


def app_key(folder: str | Path | None = None) -> bytes:
    """The key of this installation, made at first use; one of this process if it cannot be kept.

    It is in ``$XDG_STATE_HOME/kvmm`` (by default ``~/.local/state/kvmm``), for its owner alone.

    Raises:
        KVMMError: others can read or replace the key, so that what it signs is not to be trusted.
    """
    try:
        folder = Path(folder or Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kvmm")
        path = folder / "app.key"
        folder.mkdir(parents=True, exist_ok=True)
        _check_owned(folder, 0o022)
        if not os.path.lexists(path):
            _write_key(path)
        _check_owned(path, 0o077)
        key = path.read_bytes()
        if len(key) != KEY_BYTES:  # an earlier version was interrupted while it wrote
            _write_key(path, replace=True)
            key = path.read_bytes()
        return key
    except (OSError, RuntimeError):  # no home folder, or a read-only one
        return secrets.token_bytes(KEY_BYTES)


def _check_owned(path: Path, forbidden: int) -> None:
    """Raise ``KVMMError`` for a path of another user, a link, or one with any of the mode bits ``forbidden``."""
    found = path.lstat() if path.name == "app.key" else path.stat()
    if not hasattr(os, "getuid"):  # Windows has no such modes
        return
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.getuid():
        why, do = "belongs to another user", "delete it, or set XDG_STATE_HOME to a folder of your own"
    elif found.st_mode & forbidden:
        why, do = "is open to other users", f"run chmod go-rwx {path}, and delete app.key if others may have changed it"
    else:
        return
    raise KVMMError(f"{path} {why}, and whoever has the key can forge saved conversations: {do}.")


def _write_key(path: Path, *, replace: bool = False) -> None:
    """Write a new key, whole or not at all. Of several processes that do so at once, the first one's stays."""
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".app.key-")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
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
