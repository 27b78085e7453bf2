"""Files to decode, made here: pictures, PDFs, recordings and videos; and the check of how a bad one ends."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
import soundfile
from PIL import Image
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen import canvas

from kvmm.errors import KVMMError


def refused(call, *args, match: str, **kwargs) -> str:
    """The one-line message of the KVMMError that ``call`` must raise."""
    with pytest.raises(KVMMError, match=match) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 250
    assert message.endswith((".", '".')) and ":" in message, "says what is wrong, then what to do"
    return message


def encode(image: Image.Image, form: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def photo(size=(64, 48)) -> Image.Image:
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size, with almost no data behind it."""
    chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))  # noqa: E731
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    )


def make_pdf(pages: int = 1, size=(595, 842), blank: bool = False, **options) -> bytes:
    out = io.BytesIO()
    document = canvas.Canvas(out, pagesize=size, **options)
    for page in range(1, pages + 1):
        if not blank:
            document.drawString(size[0] / 10, size[1] / 2, f"This is page {page}")
        document.showPage()
    document.save()
    return out.getvalue()


def sine(rate: int, seconds: float = 1.0, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def wav(samples: np.ndarray, rate: int, form: str = "WAV", **options) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=form, **options)
    return out.getvalue()


def aac_in_mp4(samples: np.ndarray, rate: int) -> bytes:
    import av

    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        track = container.add_stream("aac", rate=rate)
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="fltp", layout="mono")
        frame.rate = rate
        for packet in [*track.encode(frame), *track.encode(None)]:
            container.mux(packet)
    return out.getvalue()


def mp4(frames: int = 8, form: str = "mp4") -> bytes:
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=form) as container:
        track = container.add_stream("mpeg4", rate=4)
        track.width, track.height, track.pix_fmt = 64, 64, "yuv420p"
        for index in range(frames):
            picture = np.full((64, 64, 3), 30 * index % 256, np.uint8)
            for packet in track.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        for packet in track.encode(None):
            container.mux(packet)
    return out.getvalue()


def scan_pdf(image: Image.Image, text: str = "") -> bytes:
    """A page with nothing but a picture, and a text layer that nobody sees, as text recognition leaves it."""
    out = io.BytesIO()
    document = canvas.Canvas(out, pagesize=image.size)
    document.drawImage(ImageReader(image), 0, 0, *image.size)
    if text:
        layer = document.beginText(20, image.size[1] - 40)
        layer.setTextRenderMode(3)
        layer.textLines(text)
        document.drawText(layer)
    document.showPage()
    document.save()
    return out.getvalue()
