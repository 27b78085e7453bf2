"""What a file holds, decoded in the process that asks: what :mod:`kvmm.media` and the decoding processes call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from kvmm.decoding.audio import read_audio
from kvmm.decoding.files import OpenFile, Source, kind_of, name_of, open_file, what_else
from kvmm.decoding.images import MAX_SHOWN_PIXELS, read_image
from kvmm.decoding.video import Frames, check_video, read_frames
from kvmm.errors import KVMMError

MAX_PDF_BYTES = 200 * 2**20
MAX_PDF_PAGES = 64


class Item(NamedTuple):
    """One thing that a file holds, as :class:`kvmm.media.Media` describes it; ``data`` is None for video, and
    :class:`~kvmm.decoding.video.Frames` for its "frames".
    """

    kind: str
    data: Any
    page: int | None = None
    text: str = ""
    text_length: int = 0


def read_here(what: str, source: Source, **options: Any) -> Iterator[Item | int]:
    """Decode a file in this process: how many pages it has, if it is a document, then what it holds.

    Args:
        what: "media", "image", "document", "audio", "preview" or "frames", as in :mod:`kvmm.media`, or "page".
        source: the file.
        options: ``max_pages`` of media and documents, ``max_pixels`` of an image, ``count`` and ``side`` of a preview,
            the ``number`` of a page, ``fps`` and ``max_frames`` of frames.

    Raises:
        KVMMError: as the public functions.
    """
    name = name_of(source)
    kind = kind_of(source)
    if what == "media":
        if kind is None:
            raise KVMMError(
                f"{name} {what_else(source)}: give a PNG, JPEG or WebP image, a PDF, or a WAV, FLAC or MP3 recording."
            )
        what = {"pdf": "document"}.get(kind, kind)
        options = {"max_pages": options["max_pages"]} if what == "document" else {"max_pixels": MAX_SHOWN_PIXELS}
    if what == "image":
        yield Item("image", read_image(source, options["max_pixels"]))
    elif what == "audio":
        yield Item("audio", read_audio(source))
    elif what == "video":
        video_path(source)
        check_video(source)
        yield Item("video", None)
    elif what == "frames":
        if kind != "video":
            raise KVMMError(f"{name} {what_else(source)}, not a video: give an MP4, Matroska, WebM or AVI file.")
        yield Item("frames", read_frames(source, **options))
    elif what == "preview" and kind != "pdf":
        picture = read_image(source, MAX_SHOWN_PIXELS)
        picture.thumbnail((options["side"], options["side"]))
        yield from (1, Item("image", picture))
    else:
        yield from _read_pdf(what, source, name, options)


def _read_pdf(what: str, source: Source, name: str, options: dict[str, Any]) -> Iterator[Item | int]:
    from kvmm import pdf  # who reads no documents needs no PDFium

    if kind_of(source) != "pdf":
        raise KVMMError(f"{name} {what_else(source)}, not a PDF: give a PDF file.")
    with open_file(source, MAX_PDF_BYTES) as stream:
        data = stream.read()
    if what == "page":
        page = pdf.read_page(data, name, options["number"])
        yield Item("image", page.image, options["number"], page.text, page.text_length)
        return
    if what == "preview":
        pages = pdf.first_pages(data, name, options["count"], options["side"])
    else:
        pages = pdf.read_pages(data, name, MAX_PDF_PAGES if options["max_pages"] is None else options["max_pages"])
    yield next(pages)
    for number, page in enumerate(pages, start=1):
        yield Item("image", page.image, number, page.text, page.text_length)


def video_path(source: Source) -> str:
    """Where a video is; empty in a process that was given the file open. Raises ``KVMMError`` for bytes."""
    if isinstance(source, bytes):
        raise KVMMError("A video can only be read from a file: save it and give its path.")
    return "" if isinstance(source, OpenFile) else os.fspath(source)


__all__ = ["MAX_PDF_BYTES", "MAX_PDF_PAGES", "Frames", "Item", "read_here", "video_path"]
