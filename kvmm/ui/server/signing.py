"""Signatures of saved conversations: an app opens only files that it has written itself.

A loaded file is trusted, so a visitor must not be able to make one. An app therefore puts a keyed digest (HMAC-SHA256)
over all bytes of a file into its header, made with a key that stays on the server, and checks it before anything of the
file is parsed. The file remains a safetensors file that ``Conversation.load`` reads.
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
from typing import Any, BinaryIO

from kvmm.errors import KVMMError

KEY_BYTES = 32
CHUNK = 2**20
_NAME = "signature"
_BEFORE = b'{"__metadata__":{"signature":"'  # what the header of a signed file begins with; then the digest
_DIGEST = 64  # hexadecimal digits
_PURPOSE = b"saved conversation 2"  # cookies are marked with the same key
# Digests of earlier versions cover the parsed header, so their files are parsed before they are checked.
_OLD_HEADER = 16 * 2**20
_OLD_ITEMS = 200_000  # of all its lists and objects, about 1 us each
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
    status = folder.stat()
    if not _HAS_MODES:
        return
    if status.st_uid != os.getuid():
        raise _not_trusted(
            folder, "belongs to another user", "delete it, or set XDG_STATE_HOME to a folder of your own"
        )
    if status.st_mode & 0o022:
        folder.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
        if folder.stat().st_mode & 0o022:
            raise PermissionError(f"{folder} is on a file system where other users can write to it")


def _check_key(path: Path) -> None:
    """Raise ``KVMMError`` for a key of another user, a link, or one that others can read or write to."""
    status = path.lstat()
    if not _HAS_MODES:
        return
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid():
        raise _not_trusted(path, "belongs to another user", "delete it")
    if status.st_mode & 0o077:
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
    """Put the digest of a safetensors file into its header.

    Raises:
        KVMMError: it is no safetensors file with metadata.
    """
    path = Path(path)
    header, start = _header(path)
    metadata = header.pop("__metadata__")
    metadata.pop(_NAME, None)
    before, after = _BEFORE, b'"' + _members(metadata) + b"}" + _members(header) + b"}"
    after += b" " * (-(len(before) + _DIGEST + len(after)) % 8)
    length = (len(before) + _DIGEST + len(after)).to_bytes(8, "little")
    unfinished = path.with_suffix(".signed")
    with path.open("rb") as old, unfinished.open("wb") as new:
        new.write(length + before + b"0" * _DIGEST + after)
        old.seek(start)
        while chunk := old.read(CHUNK):
            new.write(chunk)
    with unfinished.open("r+b") as new:
        digest = _digest(new, key)
        new.seek(len(length) + len(before))
        new.write(digest)
    os.replace(unfinished, path)


def _members(mapping: dict[str, Any]) -> bytes:
    """The members of a JSON object, each after a comma."""
    return b"".join(b"," + json.dumps({name: value})[1:-1].encode() for name, value in mapping.items())


def check_signature(path: str | Path, key: bytes) -> None:
    """Raise ``KVMMError`` unless the file was signed with ``key`` and is as it was then.

    Its bytes are read once, in pieces; nothing of them is parsed but in files of versions before, whose headers are
    bounded.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            begin = file.read(8 + len(_BEFORE) + _DIGEST)
            if begin[8:-_DIGEST] == _BEFORE:
                is_ours = hmac.compare_digest(begin[-_DIGEST:], _digest(file, key))
            else:
                is_ours = _has_old_digest(path, key)
    except OSError:
        raise _no_conversation(path) from None
    if not is_ours:
        raise KVMMError(
            f"{path.name} was not saved by this app: here only its own conversations are opened; in Python, "
            "Conversation.load opens any that you trust."
        )


def _digest(file: BinaryIO, key: bytes) -> bytes:
    """The digest of a signed file, in hexadecimal digits: over all its bytes but the digest itself."""
    file.seek(0)
    digest = hmac.new(key, _PURPOSE + file.read(8 + len(_BEFORE)), hashlib.sha256)
    file.seek(_DIGEST, os.SEEK_CUR)
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest().encode()


def _has_old_digest(path: Path, key: bytes) -> bool:
    header, start = _header(path, _OLD_HEADER, _OLD_ITEMS)
    signature = header["__metadata__"].pop(_NAME, "")
    digest = hmac.new(key, json.dumps(header, sort_keys=True).encode(), hashlib.sha256)
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return isinstance(signature, str) and signature.isascii() and hmac.compare_digest(signature, digest.hexdigest())


def _header(path: Path, most_bytes: int | None = None, most_items: int | None = None) -> tuple[dict[str, Any], int]:
    """The header, with a ``__metadata__``, and where the tensors begin; bounded for a file that is not trusted."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > (path.stat().st_size if most_bytes is None else most_bytes):
                raise ValueError("its header is too long")
            text = file.read(length)
        if most_items is not None and sum(map(text.count, (b",", b"[", b"{"))) > most_items:
            raise ValueError("its header has too many items")
        header = json.loads(text)
        if not isinstance(header["__metadata__"], dict):
            raise ValueError("its metadata is not a mapping")
        return header, 8 + length
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise _no_conversation(path) from None


def _no_conversation(path: Path) -> KVMMError:
    return KVMMError(f"{path.name} is not a saved conversation: choose a .kvmm file that this app wrote.")


__all__ = ["app_key", "check_signature", "sign"]
