"""Images, PDF pages, audio and video in: what a file is comes from its content, never from its name.

Every way in which a file can be unusable ends in a ``KVMMError`` of one line that says what to do. The limits protect
the machine (a few megabytes can unpack to gigabytes), not the model: how many tokens fit is the conversation's matter.
Files are decoded in processes of their own, see :mod:`kvmm.decoding`; what is decoded already is taken as it is.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from kvmm import decoding
from kvmm.decoding import client
from kvmm.decoding.files import Source, kind_of
from kvmm.decoding.files import name_of as _name
from kvmm.decoding.files import open_file as _open
from kvmm.decoding.files import what_else as _what_else
from kvmm.decoding.images import (
    IMAGE_FORMATS,
    MAX_IMAGE_BYTES,
    MAX_IMAGE_PIXELS,
    MAX_IMAGE_SIDE,
    MAX_SHOWN_PIXELS,
    finish_image,
    read_image,
)
from kvmm.errors import KVMMError

MAX_PDF_BYTES = 200 * 2**20
MAX_PDF_PAGES = 64
SAMPLE_RATE = 16_000  # what every supported audio tower expects
MAX_AUDIO_SECONDS = 30 * 60
MAX_AUDIO_VALUES = MAX_AUDIO_SECONDS * 96_000 * 2  # samples of all channels
MIN_AUDIO_SECONDS = 0.1
SILENCE_PEAK = 1e-3  # of full scale, -60 dB: below this there is nothing to hear
MIN_SOURCE_RATE, MAX_SOURCE_RATE = 1_000, 768_000
MAX_AUDIO_CHANNELS = 8
AUDIO_BLOCK = 2**16  # frames that are mixed and resampled at a time
NO_VIDEO = 'Reading video needs torchvision, in the build that matches your torch: pip install "kvmm[video]".'


@dataclass(frozen=True, eq=False)
class Media:
    """One thing to show or play to a model.

    ``data`` is a Pillow RGB image ("image"), a float32 array ``[n]`` of mono samples at 16 kHz ("audio"), or the path
    of a file ("video"). ``page`` counts the pages of a document from 1 and is None for anything else. ``text`` is the
    text layer of a PDF's page, for people to compare with what the model read in its pixels; it may be cut
    (:data:`kvmm.pdf.MAX_PAGE_TEXT`), ``text_length`` is how many characters there are.
    """

    kind: Literal["image", "audio", "video"]
    data: Any
    name: str
    page: int | None = None
    text: str = ""
    text_length: int = 0


def load_media(source: Source, *, max_pages: int | None = None, stop: threading.Event | None = None) -> list[Media]:
    """Everything in one file: an image, the pages of a PDF, a recording or a video.

    ``max_pages`` as in ``load_pdf``, ``stop`` as in ``load_document``. Raises ``KVMMError`` when the file is none of
    these or cannot be used.
    """
    return _media_of("media", source, stop, max_pages=max_pages)


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
        return _finish_array(int(rate), np.asarray(samples), "The recording")
    (item,) = _media_of("audio", source)
    return item.data


# --------------------------------------------------------------------------------------------------------------------
# In this process or in another


def _media_of(what: str, source: Source, stop: threading.Event | None = None, **options: Any) -> list[Media]:
    return [item for item in _items(what, source, stop, **options) if not isinstance(item, int)]


def _items(what: str, source: Source, stop: threading.Event | None, **options: Any) -> Iterator[Media | int]:
    """What :func:`read_here` yields, from a process of its own unless :func:`kvmm.decoding.in_process` holds."""
    name, page, count = _name(source), 1, None
    try:
        found = read_here(what, source, **options) if decoding.is_in_process() else None
        for item in client.decode(what, source, stop, **options) if found is None else found:
            if isinstance(item, int):
                count = item
            elif found is None:
                # another process does not know the path of a video
                data = _video_path(source) if item.kind == "video" else item.data
                item = Media(item.kind, data, name, item.page, item.text, item.text_length)
            page += not isinstance(item, int)
            yield item
            if found is not None and count is not None and page <= count and stop is not None and stop.is_set():
                raise client.Stopped(page, count)
    except client.Stopped as error:
        where = "" if error.count is None else f" at page {min(error.page, error.count)} of {error.count}"
        raise KVMMError(f"{name} was stopped{where}: send it again.") from None


def read_here(what: str, source: Source, **options: Any) -> Iterator[Media | int]:
    """Decode a file in this process: how many pages it has, if it is a document, then what it holds.

    Args:
        what: "media", "image", "document", "audio" or "preview"; the public functions above say what these are.
        source: the file.
        options: ``max_pages`` of media and documents, ``max_pixels`` of an image, ``count`` and ``side`` of a preview.

    Raises:
        KVMMError: as the public functions.
    """
    name = _name(source)
    kind = kind_of(source)
    if what == "media":
        if kind is None:
            raise KVMMError(
                f"{name} {_what_else(source)}: give a PNG, JPEG or WebP image, a PDF, or a WAV, FLAC or MP3 recording."
            )
        what = {"pdf": "document"}.get(kind, kind)
        options = {"max_pages": options["max_pages"]} if what == "document" else {"max_pixels": MAX_SHOWN_PIXELS}
    if what == "image":
        yield Media("image", read_image(source, options["max_pixels"]), name)
    elif what == "audio":
        yield Media("audio", _read_audio(source), name)
    elif what == "video":
        yield Media("video", _video_path(source), name)
    elif what == "preview" and kind != "pdf":
        picture = read_image(source, MAX_SHOWN_PIXELS)
        picture.thumbnail((options["side"], options["side"]))
        yield from (1, Media("image", picture, name))
    else:
        yield from _read_pdf(what, source, name, options)


def _read_pdf(what: str, source: Source, name: str, options: dict[str, Any]) -> Iterator[Media | int]:
    from kvmm import pdf  # who reads no documents needs no PDFium

    if kind_of(source) != "pdf":
        raise KVMMError(f"{name} {_what_else(source)}, not a PDF: give a PDF file.")
    with _open(source, MAX_PDF_BYTES) as stream:
        data = stream.read()
    if what == "preview":
        pages = pdf.first_pages(data, name, options["count"], options["side"])
    else:
        pages = pdf.read_pages(data, name, MAX_PDF_PAGES if options["max_pages"] is None else options["max_pages"])
    yield next(pages)
    for number, page in enumerate(pages, start=1):
        yield Media("image", page.image, name, number, page.text, page.text_length)


def _video_path(source: Source) -> str:
    if isinstance(source, bytes):
        raise KVMMError("A video can only be read from a file: save it and give its path.")
    return "" if isinstance(source, decoding.files.OpenFile) else os.fspath(source)


# --------------------------------------------------------------------------------------------------------------------
# Audio


def _read_audio(source: Source) -> np.ndarray:
    name = _name(source)
    if kind_of(source) != "audio":
        raise KVMMError(f"{name} {_what_else(source)}, not a recording: give a WAV, FLAC, OGG, MP3 or M4A file.")
    rate, blocks = _decode_soundfile(source, name) or _decode_container(source, name)
    return _finish_audio(rate, blocks, name)


def _decode_soundfile(source: Source, name: str) -> tuple[int, Iterator[np.ndarray]] | None:
    """The rate and blocks ``[n, channels]`` of what libsndfile knows (WAV, FLAC, OGG, MP3 ...), else None."""
    import soundfile

    stream = _open(source, None)
    try:
        file = soundfile.SoundFile(stream)
    except (soundfile.LibsndfileError, TypeError):
        stream.close()
        return None
    if not file.seekable() or file.frames < 0:  # a coding that it reads only as a stream, such as GSM 6.10 in a WAV
        file.close()
        stream.close()
        return None

    def blocks() -> Iterator[np.ndarray]:
        with stream, file:
            _check_duration(file.frames / file.samplerate, name)
            _check_rate(file.samplerate, file.channels, name)
            _check_values(file.frames * file.channels, name)
            try:
                while len(block := file.read(AUDIO_BLOCK, dtype="float32", always_2d=True)):
                    yield block
            except (soundfile.LibsndfileError, MemoryError, ValueError, RuntimeError) as error:
                raise KVMMError(f"{name} is damaged or cut off: record or download it again.") from error

    return file.samplerate, blocks()


def _decode_container(source: Source, name: str) -> tuple[int, Iterator[np.ndarray]]:
    """The same of what FFmpeg's libraries know beside: M4A and WebM from phones and browsers."""
    blocks = _container_blocks(source, name)
    return int(next(blocks)), blocks


def _container_blocks(source: Source, name: str) -> Iterator[Any]:
    """The rate, then blocks ``[n]``."""
    import av

    damaged = f"{name} is damaged or coded in a way that cannot be read: save it as WAV (PCM), FLAC, OGG, MP3 or M4A."
    try:
        with _open(source, None) as stream, av.open(stream) as container:
            track = container.streams.audio[0]
            if container.duration is not None:
                _check_duration(container.duration / av.time_base, name)
            _check_rate(track.rate, track.channels, name)
            if container.duration is not None:
                _check_values(container.duration / av.time_base * track.rate * track.channels, name)
            yield track.rate
            length = 0
            resampler = av.AudioResampler(format="flt", layout="mono", rate=track.rate)
            for frame in container.decode(track):
                for part in resampler.resample(frame):
                    yield part.to_ndarray().reshape(-1)
                # Containers written while recording do not know their length.
                length += frame.samples
                _check_values(length * track.channels, name)
    except (av.FFmpegError, IndexError, ValueError, AttributeError, TypeError, RuntimeError, OSError) as error:
        # AttributeError: a track of a coding that FFmpeg has no decoder for has no rate
        if isinstance(error, KVMMError):
            raise
        raise KVMMError(damaged) from error
    if not length:
        raise KVMMError(damaged)


def _to_float(samples: np.ndarray) -> np.ndarray:
    if samples.dtype.kind == "u":
        middle = (np.iinfo(samples.dtype).max + 1) / 2
        return ((samples - middle) / middle).astype(np.float32)
    if samples.dtype.kind == "i":
        return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    raise KVMMError(f"The recording holds {samples.dtype} values: give integer or float samples.")


def _finish_array(rate: int, samples: np.ndarray, name: str) -> np.ndarray:
    """Samples of any type, ``[n]``, ``[n, channels]`` or ``[channels, n]``, to what :func:`load_audio` returns."""
    if samples.ndim not in (1, 2) or samples.size == 0:
        raise KVMMError(f"{name} has no samples: record it again.")
    if samples.ndim == 1:
        samples = samples[:, None]
    elif samples.shape[0] <= MAX_AUDIO_CHANNELS < samples.shape[1]:
        samples = samples.T  # [n, channels] is the convention; [channels, n] is recognised by its shape
    _check_rate(rate, samples.shape[1], name)
    _check_duration(len(samples) / rate, name)
    return _finish_audio(
        rate, (_to_float(samples[k : k + AUDIO_BLOCK]) for k in range(0, len(samples), AUDIO_BLOCK)), name
    )


def _finish_audio(rate: int, blocks: Iterator[np.ndarray], name: str) -> np.ndarray:
    """Blocks ``[n]`` or ``[n, channels]``, float32, mixed to mono and resampled one after another."""
    stream, parts, length, peak = None, [], 0, 0.0
    for block in blocks:
        block = block.mean(axis=1) if block.ndim == 2 else block
        if not length:
            _check_rate(rate, 1, name)
            stream = _resampler(rate)
        length += block.size
        _check_duration(length / rate, name)
        if not np.isfinite(block).all():
            raise KVMMError(f"{name} holds values that are not numbers: record or export it again.")
        peak = max(peak, float(np.abs(block).max(initial=0.0)))
        parts.append(np.clip(block if stream is None else stream.resample_chunk(block), -1.0, 1.0))
    if not length:
        raise KVMMError(f"{name} has no samples: record it again.")
    if length < MIN_AUDIO_SECONDS * rate:
        raise KVMMError(f"{name} is shorter than {MIN_AUDIO_SECONDS} seconds: record it again.")
    if peak < SILENCE_PEAK:
        raise KVMMError(f"{name} is silent: check the microphone and record it again.")
    if stream is not None:
        parts.append(np.clip(stream.resample_chunk(np.empty(0, np.float32), last=True), -1.0, 1.0))
    samples = np.zeros(math.ceil(length * SAMPLE_RATE / rate), np.float32)
    whole = np.concatenate(parts)[: samples.size]
    samples[: whole.size] = whole
    return samples


def _resampler(rate: int) -> Any:
    """What turns blocks of float32 at ``rate`` into those at 16 kHz; None where they are that already."""
    if rate == SAMPLE_RATE:
        return None
    import soxr

    return soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")


def _check_duration(seconds: float, name: str) -> None:
    if seconds > MAX_AUDIO_SECONDS:
        raise KVMMError(
            f"{name} is {seconds / 60:.0f} minutes long and may be {MAX_AUDIO_SECONDS // 60}: cut it into parts."
        )


def _check_values(count: float, name: str) -> None:
    if count > MAX_AUDIO_VALUES:
        raise KVMMError(
            f"{name} has {count / 1e6:.0f} million samples and may have {MAX_AUDIO_VALUES / 1e6:.0f}: save it in mono, "
            "or with 16000 samples a second."
        )


def _check_rate(rate: int, channels: int, name: str) -> None:
    if not MIN_SOURCE_RATE <= rate <= MAX_SOURCE_RATE:
        raise KVMMError(f"{name} has {rate} samples a second: save it with 8000 to 48000.")
    if not 1 <= channels <= MAX_AUDIO_CHANNELS:
        raise KVMMError(f"{name} has {channels} channels and may have {MAX_AUDIO_CHANNELS}: mix it down to mono.")


# --------------------------------------------------------------------------------------------------------------------
# Video


def load_video(path: str | os.PathLike[str]) -> Any:
    """Frames of a video, uint8 ``[T, 3, H, W]``, sampled by qwen-vl-utils. Needs torchvision.

    Raises ``KVMMError`` when torchvision is not installed or the file cannot be decoded.
    """
    try:
        from qwen_vl_utils import fetch_video  # imports torchvision, which the default install leaves out
    except ImportError as error:
        raise KVMMError(NO_VIDEO) from error
    try:
        return fetch_video({"type": "video", "video": os.fspath(path)})
    except Exception as error:  # several decoders, each with its own errors
        raise KVMMError(f"{Path(path).name} cannot be decoded as a video: save it as MP4 (H.264).") from error


__all__ = [
    "IMAGE_FORMATS",
    "MAX_AUDIO_SECONDS",
    "MAX_AUDIO_VALUES",
    "MAX_IMAGE_BYTES",
    "MAX_IMAGE_PIXELS",
    "MAX_IMAGE_SIDE",
    "MAX_PDF_BYTES",
    "MAX_PDF_PAGES",
    "MAX_SHOWN_PIXELS",
    "NO_VIDEO",
    "SAMPLE_RATE",
    "Media",
    "Source",
    "load_audio",
    "load_document",
    "load_image",
    "load_media",
    "load_pdf",
    "load_video",
    "preview",
    "read_here",
]
