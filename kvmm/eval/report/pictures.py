"""Thumbnails of the pages, and the recordings, of questions in a report."""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from kvmm.errors import KVMMError
from kvmm.eval.tasks import Sample
from kvmm.eval.tasks.base import opened

MAX_PAGES = 8
WIDTH, HEIGHT = 420, 620  # pixels of a single page's thumbnail, half of it for one of several
MAX_AUDIO_BYTES = 200_000
_AUDIO_TYPES = {".mp3": "audio/mpeg", ".wav": "audio/wav", ".flac": "audio/flac", ".ogg": "audio/ogg"}


@dataclass(frozen=True)
class Picture:
    """A file to show: a thumbnail or a recording. ``path`` is where it was written, relative to the report."""

    data: bytes
    media_type: str
    path: str = ""

    @property
    def is_image(self) -> bool:
        return self.media_type.startswith("image/")

    @property
    def data_uri(self) -> str:
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode('ascii')}"


def pictures_of(sample: Sample) -> list[Picture]:
    """Thumbnails of the sample's pages and its recording; nothing for what cannot be opened or is large."""
    try:
        pages = sample.load_images()[:MAX_PAGES]
    except KVMMError:
        pages = []
    scale = 1 if len(pages) <= 1 else 2
    thumbnails = [_thumbnail(page, WIDTH // scale, HEIGHT // scale) for page in pages]
    source = opened(sample.audio) if sample.audio is not None else None
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        kind = _AUDIO_TYPES.get(path.suffix.lower())
        if kind and path.is_file() and path.stat().st_size <= MAX_AUDIO_BYTES:
            thumbnails.append(Picture(path.read_bytes(), kind))
    return thumbnails


def _thumbnail(page: Image.Image, width: int, height: int) -> Picture:
    page = page.copy()
    page.thumbnail((width, height), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    page.save(stream, "JPEG", quality=78, optimize=True)
    return Picture(stream.getvalue(), "image/jpeg")


def write_pictures(
    folder: Path, pictures: Mapping[tuple[str, str, str], Sequence[Picture]]
) -> dict[tuple[str, str, str], list[Picture]]:
    """Write the thumbnails below ``folder/pictures`` and return them with their paths."""
    written: dict[tuple[str, str, str], list[Picture]] = {}
    for number, (key, row_pictures) in enumerate(pictures.items()):
        written[key] = []
        for page, one in enumerate(row_pictures, 1):
            if one.is_image:
                stem = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(key[1:]))[:80]
                path = f"pictures/{number:03d}-{stem}-{page}.jpg"
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(one.data)
                one = replace(one, path=path)
            written[key].append(one)
    return written


__all__ = ["Picture", "pictures_of", "write_pictures"]
