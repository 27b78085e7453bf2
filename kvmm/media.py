"""Images, PDF pages, audio and video in: what a file is comes from its content, never from its name.

Every way in which a file can be unusable ends in a ``KVMMError`` of one line that says what to do. The limits protect
the machine (a few megabytes can unpack to gigabytes), not the model: how many tokens fit is the conversation's matter.
Files are decoded in processes of their own, see :mod:`kvmm.decoding`; what is decoded already is taken as it is.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from kvmm import decoding
from kvmm.decoding import client
from kvmm.decoding.audio import MAX_AUDIO_SECONDS, MAX_AUDIO_VALUES, SAMPLE_RATE, finish_array
from kvmm.decoding.files import Source, kind_of
from kvmm.decoding.files import name_of as _name
from kvmm.decoding.files import open_file as _open
from kvmm.decoding.images import (
    IMAGE_FORMATS,
    MAX_IMAGE_BYTES,
    MAX_IMAGE_PIXELS,
    MAX_IMAGE_SIDE,
    MAX_SHOWN_PIXELS,
    finish_image,
)
from kvmm.decoding.read import MAX_PDF_BYTES, MAX_PDF_PAGES, read_here, video_path
from kvmm.decoding.video import FPS, MAX_FRAMES, Frames
from kvmm.errors import KVMMError


class Media:
    """One thing to show or play to a model.

    Args:
        kind: "image", "audio" or "video".
        data: a Pillow RGB image, a float32 array ``[n]`` of mono samples at 16 kHz, or the path of a video.
        name: the file's.
        page: counts the pages of a document from 1; None for anything else.
        text: the text layer of a PDF's page, for people to compare with what the model read in its pixels; it may be
            cut (:data:`kvmm.pdf.MAX_PAGE_TEXT`).
        text_length: how many characters the text layer has.
        content: the file that an image or a page comes from, or an image of the page. With it the pixels can be
            released.
        source: the path of a file that stays, so that all of it can be put away.
        max_pixels: of an image that is decoded again, as in :func:`load_image`.
        sampling: ``fps`` and ``max_frames`` of a video, as in :func:`load_video`; nothing is its defaults.
    """

    def __init__(
        self,
        kind: Literal["image", "audio", "video"],
        data: Any,
        name: str,
        page: int | None = None,
        text: str = "",
        text_length: int = 0,
        *,
        content: bytes | None = None,
        source: Path | None = None,
        max_pixels: int | None = MAX_SHOWN_PIXELS,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self.sampling = dict(sampling or {})
        self.kind, self.name, self.page, self.text, self.text_length = kind, name, page, text, text_length
        self.content, self.source = content, source
        self._data, self._max_pixels = data, max_pixels

    def __repr__(self) -> str:
        page = "" if self.page is None else f", page {self.page}"
        return f"Media({self.kind!r}, {self.name!r}{page})"

    @property
    def data(self) -> Any:
        """The pixels, samples or path; those that were released or put away are decoded for this caller alone.

        Raises:
            KVMMError: the file that they were put away to is gone.
        """
        data, content = self._data, self.content  # another thread may put them away
        file = self.source if content is None else content
        if data is not None or file is None:
            return data
        what, options = "page", {"number": self.page}
        if self.kind == "audio":
            what, options = "audio", {}
        elif kind_of(file) != "pdf":  # a page in a saved conversation is an image
            what, options = "image", {"max_pixels": self._max_pixels}
        (item,) = _items(what, file, None, name=self.name, **options)
        return item.data

    def hold(self) -> None:
        """Decode pixels that were released, and keep them until :meth:`release`."""
        self._data = self.data

    def release(self) -> None:
        """Let the pixels go where the file is at hand; who uses ``data`` again waits for its decoding."""
        if self.content is not None or (self.kind == "image" and self.source is not None):
            self._data = None

    def put_away(self) -> None:
        """Let everything go where the file stays on disk; ``data`` reads it again."""
        if self.source is not None:
            self._data = self.content = None

    @property
    def nbytes(self) -> int:
        """Bytes of the pixels or samples that are held; the file is not among them, pages may share it."""
        data = self._data
        if data is None:
            return 0
        if self.kind == "image":
            return 4 * math.prod(data.size)  # as Pillow holds RGB
        return data.nbytes if self.kind == "audio" else 0


def media_nbytes(media: Iterable[Media]) -> int:
    """Bytes that media take together, with their files, each counted once."""
    own = {id(item): item for item in media}.values()
    contents = [content for item in own if (content := item.content) is not None]
    return sum(item.nbytes for item in own) + sum({id(content): len(content) for content in contents}.values())


def load_media(
    source: Source, *, max_pages: int | None = None, stop: threading.Event | None = None, keep: bool = False
) -> list[Media]:
    """Everything in one file: an image, the pages of a PDF, a recording or a video.

    Args:
        source: the file.
        max_pages: as in :func:`load_pdf`.
        stop: as in :func:`load_document`.
        keep: the content of a file with pictures is kept with them, so that their pixels can be released
            (:meth:`Media.release`); unless the pixels are the smaller of the two. A path is kept, too: the file stays,
            and all can be put away (:meth:`Media.put_away`).

    Raises:
        KVMMError: the file is none of these or cannot be used.
    """
    media = _media_of("media", source, stop, max_pages=max_pages)
    if keep and isinstance(source, (str, os.PathLike)) and media[0].kind != "video":
        for item in media:
            item.source = Path(source)
    if keep and media[0].kind == "image":
        with _open(source, None) as stream:
            content = stream.read()
        if len(content) < sum(item.nbytes for item in media):
            for item in media:
                item.content = content
    return media


def load_image(source: Source | Image.Image, *, max_pixels: int | None = MAX_SHOWN_PIXELS) -> Image.Image:
    """An upright RGB image; transparency becomes white, of several frames the first is taken.

    Args:
        source: a file, or an image that is decoded already.
        max_pixels: a larger image is shrunk to so many; None leaves it as large as ``MAX_IMAGE_PIXELS`` allows.

    Raises ``KVMMError`` for content that is no image, is cut off, or exceeds the limits of
    :mod:`kvmm.decoding.images`.
    """
    if isinstance(source, Image.Image):
        return finish_image(source, "The image", max_pixels)
    (item,) = _media_of("image", source, max_pixels=max_pixels)
    return item.data


def load_pdf(source: Source, max_pages: int | None = None) -> list[Image.Image]:
    """The pages of a PDF as RGB images, at 150 dpi or at what keeps the longer side below 4096 pixels.

    ``max_pages`` (default ``MAX_PDF_PAGES``) is how many pages a document may have; a longer one is refused, not cut,
    because an answer from half a document looks like an answer from all of it. Raises ``KVMMError`` for that, for
    pages of more pixels in all than :data:`kvmm.pdf.MAX_PDF_PIXELS`, and for files that are no PDF, damaged, protected
    by a password, or without anything on their pages.
    """
    return [item.data for item in load_document(source, max_pages)]


def load_document(source: Source, max_pages: int | None = None, stop: threading.Event | None = None) -> list[Media]:
    """The pages of a PDF with their text layers; limits and errors are those of :func:`load_pdf`.

    Once ``stop`` is set, the page that is being read is dropped, and a ``KVMMError`` is raised.
    """
    return _media_of("document", source, stop, max_pages=max_pages)


def preview(
    source: Source, count: int, side: int, stop: threading.Event | None = None
) -> tuple[list[Image.Image], int]:
    """The first ``count`` pictures of an image or a PDF, their longer side at most ``side``, and how many there are.

    Raises ``KVMMError`` for a file that is neither, or that cannot be read, or once ``stop`` is set.
    """
    total, *pictures = _items("preview", source, stop, count=count, side=side)
    return [item.data for item in pictures], total


def load_audio(source: Source | tuple[int, np.ndarray]) -> np.ndarray:
    """Mono samples, float32 ``[n]`` in [-1, 1] at 16 kHz, from a file or from ``(sample_rate, samples)``.

    Samples may be integers of any width or floats, ``[n]`` or ``[n, channels]``. The length is checked before anything
    is decoded. Raises ``KVMMError`` for what is no recording, is damaged, silent, too long or too short.
    """
    if isinstance(source, tuple):
        rate, samples = source
        return finish_array(int(rate), np.asarray(samples), "The recording")
    (item,) = _media_of("audio", source)
    return item.data


# --------------------------------------------------------------------------------------------------------------------
# In this process or in another


def _media_of(what: str, source: Source, stop: threading.Event | None = None, **options: Any) -> list[Media]:
    return [item for item in _items(what, source, stop, **options) if not isinstance(item, int)]


def _items(
    what: str, source: Source, stop: threading.Event | None, *, name: str | None = None, **options: Any
) -> Iterator[Media | int]:
    """What :func:`~kvmm.decoding.read.read_here` yields, from another process unless ``decoding.in_process`` holds."""
    name, page, count = name or _name(source), 1, None
    stop = decoding.current_stop() if stop is None else stop
    try:
        found = read_here(what, source, **options) if decoding.is_in_process() else None
        for item in client.decode(what, source, stop, name=name, **options) if found is None else found:
            if isinstance(item, int):
                count = item
            else:
                data = video_path(source) if item.kind == "video" else item.data
                item = Media(item.kind, data, name, item.page, item.text, item.text_length)
            page += not isinstance(item, int)
            yield item
            if found is not None and count is not None and page <= count and stop is not None and stop.is_set():
                raise client.Stopped(page, count)
    except client.Stopped as error:
        where = "" if error.count is None else f" at page {min(error.page, error.count)} of {error.count}"
        raise KVMMError(f"{name} was stopped{where}: send it again.") from None


# --------------------------------------------------------------------------------------------------------------------
# Video


def load_video(
    source: Source, *, fps: float = FPS, max_frames: int = MAX_FRAMES, stop: threading.Event | None = None
) -> Frames:
    """Frames of a video, evenly spread over its length; see :func:`kvmm.decoding.video.read_frames`.

    Args:
        source: the file.
        fps: frames a second of the video; qwen-vl-utils' default is 2.
        max_frames: at most so many; a longer video has fewer a second.
        stop: as in :func:`load_document`.

    Raises:
        KVMMError: the file is no video, is damaged, or has more pixels than ``limits.VIDEO_PIXELS``; or ``fps`` is not
            positive, or ``max_frames`` below 2.
    """
    if not fps > 0 or max_frames < 2:
        raise KVMMError(f"A video cannot be read at {fps} frames a second, at most {max_frames}: use 2 and 32.")
    (item,) = _media_of("frames", source, stop, fps=fps, max_frames=max_frames)
    return item.data


__all__ = [
    "FPS",
    "IMAGE_FORMATS",
    "MAX_AUDIO_SECONDS",
    "MAX_AUDIO_VALUES",
    "MAX_FRAMES",
    "MAX_IMAGE_BYTES",
    "MAX_IMAGE_PIXELS",
    "MAX_IMAGE_SIDE",
    "MAX_PDF_BYTES",
    "MAX_PDF_PAGES",
    "MAX_SHOWN_PIXELS",
    "SAMPLE_RATE",
    "Frames",
    "Media",
    "Source",
    "load_audio",
    "load_document",
    "load_image",
    "load_media",
    "load_pdf",
    "load_video",
    "media_nbytes",
    "preview",
]
