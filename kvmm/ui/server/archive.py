"""Benchmarks that visitors send: a data file alone, or a .zip of it with its pictures or recordings."""

from __future__ import annotations

import lzma
import os
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
MAX_FOLDERS = 100  # media are looked for in each
MAX_DATA_BYTES = 40 * 2**20  # of all data files, which are read as a whole
MAX_DATA_VALUES = 1_000_000  # of all data files; each takes up to 200 bytes once it is read, and two in the file
MAX_DIRECTORY_BYTES = 8 * 2**20  # of a .zip's list of files, which is read as a whole, too
_CHUNK = 2**20
_TAIL = 2**16 + 256  # bytes: a comment of any length after the records that say where the list of files is
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
        with path.open("rb") as source, (folder / f"data{Path(name).suffix.lower()}").open("wb") as sink:
            _Budget(name).copy(source, sink, is_data=True)
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
    counts, budget, folders = dict.fromkeys(("data", "image", "audio"), 0), _Budget(name), set()
    try:
        if _directory_bytes(path) > MAX_DIRECTORY_BYTES:
            raise _too_many(name)
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.filename:
                    raise KVMMError(f"{name} has a file without a name: make the archive again.")
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
                    raise _too_many(name)
                folders.update(inner.parents)
                if len(folders) > MAX_FOLDERS:
                    raise KVMMError(f"{name} has more than {MAX_FOLDERS} folders: put the pictures into one.")
                target = folder / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, target.open("wb") as sink:
                    budget.copy(source, sink, is_data=kind == "data")
                counts[kind] += 1
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError, ValueError) as error:
        if isinstance(error, KVMMError):
            raise
        raise KVMMError(f"{name} is damaged or of a kind that cannot be read: make the .zip again.") from error
    return counts


class _Budget:
    """The bytes and values that one upload may still unpack."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bytes, self.data_bytes, self.values = MAX_UNPACKED_BYTES, MAX_DATA_BYTES, MAX_DATA_VALUES

    def copy(self, source: IO[bytes], sink: IO[bytes], *, is_data: bool) -> None:
        """Write ``source`` to ``sink``; raises ``KVMMError`` as soon as it is too much."""
        while chunk := source.read(_CHUNK):
            self.bytes -= len(chunk)
            if is_data:
                self.data_bytes -= len(chunk)
                # every value but the first follows one of these, so there are no more values than that
                self.values -= sum(map(chunk.count, (b",", b"[", b"{", b"\n")))
            if min(self.bytes, self.data_bytes) < 0:
                raise _too_large(self.name)
            if self.values < 0:
                raise KVMMError(
                    f"{self.name} has more than {MAX_DATA_VALUES:,} values in its data files: send a part of the "
                    "benchmark."
                )
            sink.write(chunk)


def _directory_bytes(path: Path) -> int:
    """Bytes of the central directory of a .zip, as its end record states them; 0 without one."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _TAIL, 0))
        tail = file.read()
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or len(tail) < at + 16:
            return 0  # zipfile finds no list, either
        nbytes = int.from_bytes(tail[at + 12 : at + 16], "little")
        if at >= 76 and tail[at - 20 : at - 16] == b"PK\x06\x07":  # more than 65,535 files have a second record
            file.seek(min(int.from_bytes(tail[at - 12 : at - 4], "little"), size))
            for record in (tail[at - 76 : at - 20], file.read(56)):  # readers look for it in either place
                nbytes = max(nbytes, int.from_bytes(record[40:48], "little"))
    return nbytes


def _too_many(name: str) -> KVMMError:
    return KVMMError(f"{name} has more than {MAX_FILES:,} files: send a part of the benchmark.")


def _too_large(name: str) -> KVMMError:
    return KVMMError(
        f"{name} is too large: its data files may have {MAX_DATA_BYTES >> 20} MiB, and all files together "
        f"{MAX_UNPACKED_BYTES >> 20} MiB unpacked. Send a part of the benchmark."
    )


__all__ = ["AUDIO_ENDINGS", "DATA_ENDINGS", "IMAGE_ENDINGS", "unpack_benchmark"]
