"""Marks on saved conversations: an app loads only files that it has written itself.

A cache's tensors are read by compiled kernels, which trust them; a stranger's upload must not reach those. So a file
gets a keyed digest (HMAC-SHA256) in its header, made with a key that stays on the server. It remains a safetensors file
that ``Conversation.load`` reads.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Any

from kvmm.errors import KVMMError

KEY_BYTES = 32
MAX_HEADER = 64 * 2**20
CHUNK = 2**20
_NAME = "signature"


def app_key(folder: str | Path | None = None) -> bytes:
    """The key of this installation, made at first use; one of this process if it cannot be kept.

    It is in ``$XDG_STATE_HOME/kvmm`` (by default ``~/.local/state/kvmm``), readable by its owner alone.
    """
    folder = Path(folder or Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kvmm")
    path = folder / "app.key"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            key = path.read_bytes()
            return key if len(key) == KEY_BYTES else secrets.token_bytes(KEY_BYTES)
        with os.fdopen(handle, "wb") as file:
            key = secrets.token_bytes(KEY_BYTES)
            file.write(key)
        return key
    except (OSError, RuntimeError):  # no home folder, or a read-only one
        return secrets.token_bytes(KEY_BYTES)


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
