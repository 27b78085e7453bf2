"""Files as they arrive: how they are opened, and what they are by their first bytes, never by their name."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvmm.errors import KVMMError

MAX_PAGE_TEXT = 20_000  # characters of a page's text layer that are kept; a dense page of print has 6000


@dataclass(frozen=True)
class OpenFile:
    """A file that is open already; ``descriptor`` stays the caller's. ``name`` is for messages."""

    descriptor: int
    name: str


Source = str | os.PathLike[str] | bytes | OpenFile


def name_of(source: Source) -> str:
    """What messages call a file."""
    if isinstance(source, OpenFile):
        return source.name
    return "The upload" if isinstance(source, bytes) else Path(source).name


def open_file(source: Source, limit: int | None) -> io.BufferedIOBase:
    """A readable stream of a file or of bytes, after the checks that hold for every kind.

    Raises ``KVMMError`` for what cannot be opened, is empty, or has more than ``limit`` bytes.
    """
    if isinstance(source, OpenFile):
        os.lseek(source.descriptor, 0, os.SEEK_SET)
        size, opener = os.fstat(source.descriptor).st_size, lambda: os.fdopen(os.dup(source.descriptor), "rb")
    elif isinstance(source, bytes):
        size, opener = len(source), lambda: io.BytesIO(source)
    else:
        path = Path(source).expanduser()
        try:
            size, opener, is_folder = path.stat().st_size, lambda: path.open("rb"), path.is_dir()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise KVMMError(f"There is no file {path}: check the path.") from error
        except (OSError, ValueError) as error:
            raise KVMMError(f"{path!s} cannot be opened: check its name and permissions.".replace("\0", "")) from error
        if is_folder:
            raise KVMMError(f"{path} is a folder: give a file.")
    if size == 0:
        raise KVMMError(f"{name_of(source)} is an empty file: save or download it again.")
    if limit is not None and size > limit:
        raise KVMMError(f"{name_of(source)} has {size >> 20} MiB and may have {limit >> 20}: make it smaller.")
    try:
        return opener()
    except OSError as error:
        raise KVMMError(f"{name_of(source)} cannot be opened: check its permissions.") from error


def head_of(source: Source, count: int = 4096) -> bytes:
    """The first bytes of a file."""
    with open_file(source, None) as stream:
        return stream.read(count)


def kind_of(source: Source) -> Literal["image", "pdf", "audio", "video"] | None:
    """What the content is, from its first bytes; None for anything else."""
    head = head_of(source)
    if b"%PDF-" in head[:1024]:
        return "pdf"
    if is_image(head):
        return "image"
    if head[:4] in (b"fLaC", b"OggS", b"FORM", b".snd", b"caff") or (
        head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE"
    ):
        return "audio"
    if head[:3] == b"ID3" or _is_mpeg_audio(head):
        return "audio"
    if (
        head[4:8] in (b"ftyp", b"moov")
        or head[:4] == b"\x1a\x45\xdf\xa3"
        or (head[:4] == b"RIFF" and head[8:12] == b"AVI ")
    ):
        return _container_kind(source)
    return None


_IMAGE_MAGIC = (
    b"\x89PNG\r\n\x1a\n",
    b"\xff\xd8\xff",
    b"GIF87a",
    b"GIF89a",
    b"BM",
    b"II*\x00",
    b"MM\x00*",
    b"\x00\x00\x01\x00",
)


def is_image(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is an image by its first bytes; nothing of it is decoded."""
    if head.startswith(_IMAGE_MAGIC) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP"):
        return not (head.startswith(b"BM") and _is_text(head))
    is_netpbm = head[:1] == b"P" and head[1:2].isdigit() and head[2:3].isspace()
    return is_netpbm or head[4:12] in (b"ftypavif", b"ftypavis") or head[:12] == b"\x00\x00\x00\x0cjP  \r\n\x87\n"


def _is_mpeg_audio(head: bytes) -> bool:
    """A frame header of MPEG audio: eleven set bits, then no reserved layer, bit rate or sample rate."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return False
    adts = head[1] & 0xF6 == 0xF0  # AAC in ADTS frames has layer bits 00
    return adts or ((head[1] >> 1) & 3 != 0 and head[2] >> 4 not in (0, 15) and (head[2] >> 2) & 3 != 3)


def _container_kind(source: Source) -> Literal["audio", "video"] | None:
    """Whether an MP4, Matroska or AVI container holds moving pictures or only sound."""
    import av

    try:
        with open_file(source, None) as stream, av.open(stream) as container:
            if any(not track.disposition & av.stream.Disposition.attached_pic for track in container.streams.video):
                return "video"
            return "audio" if container.streams.audio else None
    except (av.FFmpegError, ValueError) as error:
        if isinstance(error, KVMMError):
            raise
        raise KVMMError(f"{name_of(source)} is damaged or cut off: save or download it again.") from error


def _is_text(head: bytes) -> bool:
    return not any(byte < 9 or 13 < byte < 32 for byte in head)


_WHAT = {
    "image": "is an image",
    "pdf": "is a PDF",
    "audio": "is a recording",
    "video": "is a video",
}


def what_else(source: Source) -> str:
    """A phrase for an error message: what a file is instead of what was hoped for."""
    kind = kind_of(source)
    if kind is not None:
        return _WHAT[kind]
    return "is a text file" if _is_text(head_of(source)) else "is of an unknown format"


__all__ = ["OpenFile", "Source", "head_of", "is_image", "kind_of", "name_of", "open_file", "what_else"]
