"""Benchmarks that visitors send: a data file alone, or a .zip of it with its pictures or recordings."""

from __future__ import annotations

import lzma
import shutil
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from kvmm.errors import KVMMError

DATA_ENDINGS = (".json", ".jsonl", ".ndjson")
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
AUDIO_ENDINGS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a")
MAX_FILES = 10_000
MAX_UNPACKED_BYTES = 512 * 2**20
MAX_DATA_BYTES = 40 * 2**20  # of one data file, which is read as a whole
_CHUNK = 2**20
_NO_ZIP = "is not a .zip, .json or .jsonl file: send the benchmark's data file, or a .zip of it with its pictures."


def unpack_benchmark(path: str | Path, folder: str | Path, name: str | None = None) -> tuple[Path, str]:
    """Put an upload's files below ``folder``; only data files, images and recordings, and nothing outside.

    What archives claim is not believed: bytes are counted as they are written, links become ordinary files, and names
    that lead out of the folder are refused.

    Args:
        path: the upload.
        folder: an empty folder.
        name: what the visitor called the file; None for the path's own name.

    Returns:
        the folder that holds the data files, and a line about what arrived.

    Raises:
        KVMMError: the upload is of another kind, damaged, encrypted, too large, or holds no data file.
    """
    path, folder = Path(path), Path(folder)
    name = name or path.name
    if zipfile.is_zipfile(path):
        counts = _unpack(path, folder, name)
    elif name.lower().endswith(DATA_ENDINGS):
        if path.stat().st_size > MAX_DATA_BYTES:
            raise _too_large(name)
        shutil.copyfile(path, folder / f"data{Path(name).suffix.lower()}")
        counts = {"data": 1, "image": 0, "audio": 0}
    else:
        raise KVMMError(f"{name} {'is damaged: make it again.' if name.lower().endswith('.zip') else _NO_ZIP}")
    files = [file for file in folder.rglob("*") if file.suffix.lower() in DATA_ENDINGS]
    if not files:
        raise KVMMError(f"{name} holds no .json or .jsonl file: add the benchmark's data file.")
    top = min(files, key=lambda file: (len(file.parts), file)).parent
    words = (("data", "data file", "data files"), ("image", "picture", "pictures"))
    words += (("audio", "recording", "recordings"),)
    said = [f"{counts[kind]:,} {one if counts[kind] == 1 else many}" for kind, one, many in words if counts[kind]]
    return top, f"{name}: {', '.join(said)}."


def _kind(name: str) -> str | None:
    name = name.lower()
    kinds = {"data": DATA_ENDINGS, "image": IMAGE_ENDINGS, "audio": AUDIO_ENDINGS}
    return next((kind for kind, endings in kinds.items() if name.endswith(endings)), None)


def _unpack(path: Path, folder: Path, name: str) -> dict[str, int]:
    counts, left = dict.fromkeys(("data", "image", "audio"), 0), MAX_UNPACKED_BYTES
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                inner = PurePosixPath(entry.filename.replace("\\", "/"))
                if inner.is_absolute() or ".." in inner.parts or ":" in inner.name:
                    raise KVMMError(f"{name} has a file whose name leads out of it: make the archive again.")
                hidden = any(part.startswith((".", "__MACOSX")) for part in inner.parts)
                kind = None if entry.is_dir() or hidden else _kind(inner.name)
                if kind is None:
                    continue
                if entry.flag_bits & 1:
                    raise KVMMError(f"{name} is encrypted: make it without a password.")
                if sum(counts.values()) >= MAX_FILES:
                    raise KVMMError(f"{name} has more than {MAX_FILES:,} files: send a part of the benchmark.")
                target = folder / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                limit = min(left, MAX_DATA_BYTES) if kind == "data" else left
                with archive.open(entry) as source, target.open("wb") as sink:
                    left -= _copy(source, sink, limit, name)
                counts[kind] += 1
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError, ValueError) as error:
        if isinstance(error, KVMMError):
            raise
        raise KVMMError(f"{name} is damaged or of a kind that cannot be read: make the .zip again.") from error
    return counts


def _copy(source: IO[bytes], sink: IO[bytes], limit: int, name: str) -> int:
    written = 0
    while chunk := source.read(_CHUNK):
        written += len(chunk)
        if written > limit:
            raise _too_large(name)
        sink.write(chunk)
    return written


def _too_large(name: str) -> KVMMError:
    return KVMMError(
        f"{name} is too large: a data file may have {MAX_DATA_BYTES >> 20} MiB, and all files together "
        f"{MAX_UNPACKED_BYTES >> 20} MiB unpacked. Send a part of the benchmark."
    )


__all__ = ["AUDIO_ENDINGS", "DATA_ENDINGS", "IMAGE_ENDINGS", "unpack_benchmark"]
