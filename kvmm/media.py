"""Images, PDF pages, audio and video in: what a file is comes from its content, never from its name.

Every way in which a file can be unusable ends in a ``KVMMError`` of one line that says what to do. The limits protect
the machine (a few megabytes can unpack to gigabytes), not the model: how many tokens fit is the conversation's matter.
"""

from __future__ import annotations

import io
import os
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps

from kvmm.errors import KVMMError

# Pillow opens these alone: another of its formats runs programs (EPS starts Ghostscript) or was never asked for here
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "ICO", "AVIF", "JPEG2000")
MAX_IMAGE_BYTES = 100 * 2**20
MAX_IMAGE_PIXELS = 100_000_000  # an A1 page at 300 dpi has 70 million
MAX_IMAGE_SIDE = 20_000
MAX_ASPECT_RATIO = 200  # the limit of the Qwen VL image processors
MAX_PDF_BYTES = 200 * 2**20
MAX_PDF_PAGES = 64
SAMPLE_RATE = 16_000  # what every supported audio tower expects
MAX_AUDIO_SECONDS = 30 * 60
MIN_AUDIO_SECONDS = 0.1
SILENCE_PEAK = 1e-3  # of full scale, -60 dB: below this there is nothing to hear
MIN_SOURCE_RATE, MAX_SOURCE_RATE = 1_000, 768_000
MAX_AUDIO_CHANNELS = 8
NO_VIDEO = 'Reading video needs torchvision, in the build that matches your torch: pip install "kvmm[video]".'

Source = str | os.PathLike[str] | bytes


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
    kind, name = _kind(source), _name(source)
    if kind == "image":
        return [Media("image", load_image(source), name)]
    if kind == "pdf":
        return load_document(source, max_pages, stop)
    if kind == "audio":
        return [Media("audio", load_audio(source), name)]
    if kind == "video":
        if isinstance(source, bytes):
            raise KVMMError("A video can only be read from a file: save it and give its path.")
        return [Media("video", os.fspath(source), name)]
    raise KVMMError(
        f"{name} {_what_else(source)}: give a PNG, JPEG or WebP image, a PDF, or a WAV, FLAC or MP3 recording."
    )


# --------------------------------------------------------------------------------------------------------------------
# Images


def load_image(source: Source | Image.Image) -> Image.Image:
    """An upright RGB image; transparency becomes white, of several frames the first is taken.

    Raises ``KVMMError`` for content that is no image, is cut off, or exceeds the limits above.
    """
    if isinstance(source, Image.Image):
        return _finish_image(source, "The image")
    name = _name(source)
    stream = _open(source, MAX_IMAGE_BYTES)
    try:
        with warnings.catch_warnings():
            # Pillow's own size warning: the limit below is the one that counts.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with stream, Image.open(stream, formats=IMAGE_FORMATS) as image:
                return _finish_image(image, name)
    except Image.DecompressionBombError as error:
        raise KVMMError(f"{name} unpacks to more than {MAX_IMAGE_PIXELS:,} pixels: make the image smaller.") from error
    except Image.UnidentifiedImageError as error:
        if _kind(source) == "image":  # it begins as one, and ends too early
            raise KVMMError(f"{name} is damaged or cut off: save or download the image again.") from error
        raise KVMMError(f"{name} {_what_else(source)}, not an image: give a PNG, JPEG or WebP file.") from error
    except KVMMError:
        raise
    except MemoryError as error:
        raise KVMMError(f"{name} does not fit in memory: make the image smaller.") from error
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error, EOFError ...
        raise KVMMError(f"{name} is damaged or cut off: save or download the image again.") from error


def _finish_image(image: Image.Image, name: str) -> Image.Image:
    width, height = image.size
    if min(width, height) < 1:
        raise KVMMError(f"{name} has no pixels: give another image.")
    if max(width, height) > MAX_IMAGE_SIDE:
        raise KVMMError(
            f"{name} is {width} x {height} pixels and a side may have {MAX_IMAGE_SIDE}: resize it or cut it into parts."
        )
    if width * height > MAX_IMAGE_PIXELS:
        raise KVMMError(f"{name} has {width * height:,} pixels and may have {MAX_IMAGE_PIXELS:,}: make it smaller.")
    if max(width, height) >= MAX_ASPECT_RATIO * min(width, height):
        raise KVMMError(f"{name} is {width} x {height} pixels, too narrow a strip to read: crop or pad it.")
    image.seek(0)
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        return _grey_from_deep(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _grey_from_deep(image: Image.Image) -> Image.Image:
    """16- and 32-bit grey to 8 bits: Pillow's own conversion clips instead of scaling."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))
    top = 65535.0 if image.mode.startswith("I") and values.max(initial=0.0) <= 65535.0 else values.max(initial=0.0)
    if image.mode == "F" and top <= 255.0:
        top = 1.0 if top <= 1.0 else 255.0
    grey = np.clip(values / max(top, 1e-12) * 255.0, 0.0, 255.0).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")


# --------------------------------------------------------------------------------------------------------------------
# PDF


def load_pdf(source: Source, max_pages: int | None = None) -> list[Image.Image]:
    """The pages of a PDF as RGB images, at 150 dpi or at what keeps the longer side below 4096 pixels.

    ``max_pages`` (default ``MAX_PDF_PAGES``) is how many pages a document may have; a longer one is refused, not cut,
    because an answer from half a document looks like an answer from all of it. Raises ``KVMMError`` for that and for
    files that are no PDF, damaged, protected by a password, or without anything on their pages.
    """
    return [item.data for item in load_document(source, max_pages)]


def load_document(source: Source, max_pages: int | None = None, stop: threading.Event | None = None) -> list[Media]:
    """The pages of a PDF with their text layers; limits and errors are those of :func:`load_pdf`.

    Once ``stop`` is set no further page is read and a ``KVMMError`` is raised.
    """
    name = _name(source)
    from kvmm import pdf  # who reads no documents needs no PDFium

    pages = pdf.read_pages(_pdf_bytes(source), name, MAX_PDF_PAGES if max_pages is None else max_pages, stop)
    return [Media("image", page.image, name, k, page.text, page.text_length) for k, page in enumerate(pages, start=1)]


def preview(source: Source, count: int, side: int) -> tuple[list[Image.Image], int]:
    """The first ``count`` pictures of an image or a PDF, their longer side at most ``side``, and how many there are.

    Raises ``KVMMError`` for a file that is neither, or that cannot be read.
    """
    if _kind(source) == "pdf":
        from kvmm import pdf

        return pdf.first_pages(_pdf_bytes(source), _name(source), count, side)
    picture = load_image(source)
    picture.thumbnail((side, side))
    return [picture], 1


def _pdf_bytes(source: Source) -> bytes:
    if _kind(source) != "pdf":
        raise KVMMError(f"{_name(source)} {_what_else(source)}, not a PDF: give a PDF file.")
    with _open(source, MAX_PDF_BYTES) as stream:
        return stream.read()


# --------------------------------------------------------------------------------------------------------------------
# Audio


def load_audio(source: Source | tuple[int, np.ndarray]) -> np.ndarray:
    """Mono samples, float32 ``[n]`` in [-1, 1] at 16 kHz, from a file or from ``(sample_rate, samples)``.

    Samples may be integers of any width or floats, ``[n]`` or ``[n, channels]``. The length is checked before anything
    is decoded. Raises ``KVMMError`` for what is no recording, is damaged, silent, too long or too short.
    """
    if isinstance(source, tuple):
        rate, samples = source
        return _finish_audio(int(rate), _to_float(np.asarray(samples)), "The recording")
    name = _name(source)
    if _kind(source) != "audio":
        raise KVMMError(f"{name} {_what_else(source)}, not a recording: give a WAV, FLAC, OGG, MP3 or M4A file.")
    rate, samples = _decode_soundfile(source, name) or _decode_container(source, name)
    return _finish_audio(rate, samples, name)


def _decode_soundfile(source: Source, name: str) -> tuple[int, np.ndarray] | None:
    """Decode what libsndfile knows (WAV, FLAC, OGG, MP3 ...); None when it does not know the format."""
    import soundfile

    with _open(source, None) as stream:
        try:
            file = soundfile.SoundFile(stream)
        except (soundfile.LibsndfileError, TypeError):
            return None
        with file:
            _check_duration(file.frames / file.samplerate, name)
            _check_rate(file.samplerate, file.channels, name)
            if not file.seekable() or file.frames < 0:
                return None  # a coding that libsndfile reads only as a stream, such as GSM 6.10 in a WAV
            try:
                return file.samplerate, file.read(dtype="float32", always_2d=True)
            except (soundfile.LibsndfileError, MemoryError, ValueError, RuntimeError) as error:
                raise KVMMError(f"{name} is damaged or cut off: record or download it again.") from error


def _decode_container(source: Source, name: str) -> tuple[int, np.ndarray]:
    """Decode with FFmpeg's libraries what libsndfile does not know: M4A and WebM from phones and browsers."""
    import av

    damaged = f"{name} is damaged or coded in a way that cannot be read: save it as WAV (PCM), FLAC, OGG, MP3 or M4A."
    try:
        with _open(source, None) as stream, av.open(stream) as container:
            track = container.streams.audio[0]
            if container.duration is not None:
                _check_duration(container.duration / av.time_base, name)
            _check_rate(track.rate, track.channels, name)
            parts, length = [], 0
            resampler = av.AudioResampler(format="flt", layout="mono", rate=track.rate)
            for frame in container.decode(track):
                for part in resampler.resample(frame):
                    parts.append(part.to_ndarray().reshape(-1))
                    length += parts[-1].size
                # Containers written while recording do not know their length.
                _check_duration(length / track.rate, name)
            rate = track.rate
    except (av.FFmpegError, IndexError, ValueError, AttributeError, TypeError, RuntimeError, OSError) as error:
        # AttributeError: a track of a coding that FFmpeg has no decoder for has no rate
        if isinstance(error, KVMMError):
            raise
        raise KVMMError(damaged) from error
    if not parts:
        raise KVMMError(damaged)
    return rate, np.concatenate(parts)


def _to_float(samples: np.ndarray) -> np.ndarray:
    if samples.dtype.kind == "u":
        middle = (np.iinfo(samples.dtype).max + 1) / 2
        return ((samples - middle) / middle).astype(np.float32)
    if samples.dtype.kind == "i":
        return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    raise KVMMError(f"The recording holds {samples.dtype} values: give integer or float samples.")


def _finish_audio(rate: int, samples: np.ndarray, name: str) -> np.ndarray:
    if samples.ndim not in (1, 2) or samples.size == 0:
        raise KVMMError(f"{name} has no samples: record it again.")
    if samples.ndim == 2:
        # [n, channels] is the convention; [channels, n] is recognised by its shape.
        channel_axis = 0 if samples.shape[0] <= MAX_AUDIO_CHANNELS < samples.shape[1] else 1
        _check_rate(rate, samples.shape[channel_axis], name)
        samples = samples.mean(axis=channel_axis)
    _check_rate(rate, 1, name)
    _check_duration(samples.size / rate, name)
    if samples.size < MIN_AUDIO_SECONDS * rate:
        raise KVMMError(f"{name} is shorter than {MIN_AUDIO_SECONDS} seconds: record it again.")
    if not np.isfinite(samples).all():
        raise KVMMError(f"{name} holds values that are not numbers: record or export it again.")
    if float(np.abs(samples).max()) < SILENCE_PEAK:
        raise KVMMError(f"{name} is silent: check the microphone and record it again.")
    if rate != SAMPLE_RATE:
        import librosa

        samples = librosa.resample(samples, orig_sr=rate, target_sr=SAMPLE_RATE, res_type="soxr_hq")
    return np.ascontiguousarray(np.clip(samples, -1.0, 1.0), dtype=np.float32)


def _check_duration(seconds: float, name: str) -> None:
    if seconds > MAX_AUDIO_SECONDS:
        raise KVMMError(
            f"{name} is {seconds / 60:.0f} minutes long and may be {MAX_AUDIO_SECONDS // 60}: cut it into parts."
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


# --------------------------------------------------------------------------------------------------------------------
# Files and what they hold


def _name(source: Source) -> str:
    return "The upload" if isinstance(source, bytes) else Path(source).name


def _open(source: Source, limit: int | None) -> io.BufferedIOBase:
    """A readable stream of a file or of bytes, after the checks that hold for every kind."""
    if isinstance(source, bytes):
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
        raise KVMMError(f"{_name(source)} is an empty file: save or download it again.")
    if limit is not None and size > limit:
        raise KVMMError(f"{_name(source)} has {size >> 20} MiB and may have {limit >> 20}: make it smaller.")
    try:
        return opener()
    except OSError as error:
        raise KVMMError(f"{_name(source)} cannot be opened: check its permissions.") from error


def _head(source: Source, count: int = 4096) -> bytes:
    with _open(source, None) as stream:
        return stream.read(count)


def _kind(source: Source) -> Literal["image", "pdf", "audio", "video"] | None:
    """What the content is, from its first bytes; None for anything else."""
    head = _head(source)
    if b"%PDF-" in head[:1024]:
        return "pdf"
    if _is_image(head):
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


def _is_image(head: bytes) -> bool:
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
        with _open(source, None) as stream, av.open(stream) as container:
            if any(not track.disposition & av.stream.Disposition.attached_pic for track in container.streams.video):
                return "video"
            return "audio" if container.streams.audio else None
    except (av.FFmpegError, ValueError) as error:
        if isinstance(error, KVMMError):
            raise
        raise KVMMError(f"{_name(source)} is damaged or cut off: save or download it again.") from error


def _is_text(head: bytes) -> bool:
    return not any(byte < 9 or 13 < byte < 32 for byte in head)


_WHAT = {
    "image": "is an image",
    "pdf": "is a PDF",
    "audio": "is a recording",
    "video": "is a video",
}


def _what_else(source: Source) -> str:
    """A phrase for an error message: what a file is instead of what was hoped for."""
    kind = _kind(source)
    if kind is not None:
        return _WHAT[kind]
    return "is a text file" if _is_text(_head(source)) else "is of an unknown format"
