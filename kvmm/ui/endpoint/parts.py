"""Media as parts of a message for an OpenAI server: the files as they were sent, documents whole."""

from __future__ import annotations

import base64
import io
import mimetypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from kvmm.decoding.files import kind_of
from kvmm.errors import KVMMError
from kvmm.media import SAMPLE_RATE, Media


def message_of(question: str, media: Sequence[Media]) -> dict[str, Any]:
    """A message of the user: its files, then the question.

    Raises:
        KVMMError: a file is a video or is gone.
    """
    parts = [part for group in _documents(media) for part in _parts_of(group)]
    return {"role": "user", "content": [*parts, *([{"type": "text", "text": question}] if question else [])]}


def _documents(media: Sequence[Media]) -> Iterator[list[Media]]:
    """Media one by one, but the pages of a document together."""
    group: list[Media] = []
    for item in media:
        goes_on = bool(group) and item.page is not None and item.page == (group[-1].page or 0) + 1
        if group and not (goes_on and _file(item) == _file(group[-1])):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _file(item: Media) -> Any:
    return item.source if item.source is not None else id(item.content)


def _content(item: Media) -> bytes | None:
    """The bytes of the file that an item comes from; None where only what was decoded is at hand."""
    if item.content is not None:
        return item.content
    if item.source is None:
        return None
    try:
        return Path(item.source).read_bytes()
    except OSError:
        raise KVMMError(f"{item.name} is gone: upload it again.") from None


def _parts_of(group: Sequence[Media]) -> list[dict[str, Any]]:
    first = group[0]
    if first.kind == "video":
        raise KVMMError(f"{first.name} is a video, which the server does not read: send pictures of it.")
    content = _content(first)
    if first.kind == "audio":
        return [_recording(first, content)]
    if first.page is not None and content is not None and kind_of(content) == "pdf":
        data = f"data:application/pdf;base64,{_base64(content)}"
        return [{"type": "file", "file": {"filename": first.name, "file_data": data}}]
    return [_picture(item, content if item is first and first.page is None else None) for item in group]


def _recording(item: Media, content: bytes | None) -> dict[str, Any]:
    suffix = Path(item.name).suffix[1:].lower()
    if content is None:
        content, suffix = _wav(item.data), "wav"
    return {"type": "input_audio", "input_audio": {"data": _base64(content), "format": suffix or "wav"}}


def _wav(samples: np.ndarray) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, SAMPLE_RATE, format="WAV", subtype="FLOAT")
    return stream.getvalue()


def _picture(item: Media, content: bytes | None) -> dict[str, Any]:
    kind = mimetypes.guess_type(item.name)[0] or ""
    if content is None or not kind.startswith("image/"):
        content, kind = (_png(item.data), "image/png") if content is None else (content, "image/png")
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{_base64(content)}"}}


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


__all__ = ["message_of"]
