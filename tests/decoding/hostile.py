"""Files of a few kilobytes that ask for gigabytes or minutes. They are written here, so that none has to be kept."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np


def pdf(objects: list[bytes]) -> bytes:
    """A PDF of numbered objects; the first one is the catalogue."""
    out, places = b"%PDF-1.7\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n" % number + body + b"\nendobj\n"
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    table += b"".join(b"%010d 00000 n \n" % place for place in places)
    return out + table + b"trailer <</Size %d /Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(out))


def stream(data: bytes, entries: bytes = b"") -> bytes:
    """A compressed stream."""
    packed = zlib.compress(data, 9)
    return b"<<%s /Filter /FlateDecode /Length %d>>\nstream\n" % (entries, len(packed)) + packed + b"\nendstream"


def repeated(block: bytes, count: int) -> bytes:
    """The same as ``zlib.compress(block * count)``, made of one block."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    once = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    check = 1
    for _ in range(count):
        check = zlib.adler32(block, check)
    return b"\x78\xda" + once * count + b"\x03\x00" + struct.pack(">I", check)


def one_page(*rest: bytes, resources: bytes = b"", size: bytes = b"612 792", content: int = 4) -> bytes:
    """A page whose content is object ``content``; ``rest`` are the objects from number 4."""
    page = b"<</Type /Page /Parent 2 0 R /MediaBox [0 0 %s] /Contents %d 0 R /Resources <<%s>>>>"
    return pdf(
        [
            b"<</Type /Catalog /Pages 2 0 R>>",
            b"<</Type /Pages /Kids [3 0 R] /Count 1>>",
            page % (size, content, resources),
            *rest,
        ]
    )


def nested_forms(levels: int = 24) -> bytes:
    """Forms that draw the next one twice: 2 ** levels pictures, and a recursion as deep as PDFium goes."""
    forms = []
    for level in range(levels):
        entries = b"/Type /XObject /Subtype /Form /BBox [0 0 612 792] /Resources <</XObject <</F %d 0 R>>>>" % (
            6 + level
        )
        forms.append(b"<<%s /Length 11>>\nstream\n/F Do /F Do\nendstream" % entries)
    last = b"<</Type /XObject /Subtype /Form /BBox [0 0 612 792] /Length 18>>\nstream\n0 0 100 100 re f  \nendstream"
    return one_page(b"<</Length 5>>\nstream\n/F Do\nendstream", *forms, last, resources=b"/XObject <</F 5 0 R>>")


def strokes(count: int = 600_000) -> bytes:
    """A page of thin dashed curves."""
    line = b"0 0 m 100 700 500 10 600 780 c S\n"
    return one_page(stream(b"[1 1] 0 d 0.1 w\n" + line * count))


def square_pages(count: int = 64) -> bytes:
    """One page of the largest picture, named many times."""
    kids = b" ".join([b"3 0 R"] * count)
    return pdf(
        [
            b"<</Type /Catalog /Pages 2 0 R>>",
            b"<</Type /Pages /Kids [%s] /Count %d>>" % (kids, count),
            b"<</Type /Page /Parent 2 0 R /MediaBox [0 0 5000 5000] /Contents 4 0 R>>",
            b"<</Length 19>>\nstream\n0 0 2500 2500 re f  \nendstream",
        ]
    )


def deflated_stream(megabytes: int = 1500) -> bytes:
    """A content stream of spaces, compressed twice: a thousandth of a thousandth."""
    twice = zlib.compress(repeated(b" " * 2**20, megabytes), 9)
    entries = b"<</Filter [/FlateDecode /FlateDecode] /Length %d>>\nstream\n" % len(twice)
    return one_page(entries + twice + b"\nendstream")


def deep_png(side: int = 10_000) -> bytes:
    """A picture of one colour in 16 bits of grey, as many pixels as are allowed."""
    return _png(side, 16, 0, repeated(b"\0" + b"\x80\x01" * side, side))


def wide_png(side: int = 10_000) -> bytes:
    """A picture of one colour in 8 bits of red, green and blue."""
    return _png(side, 8, 2, repeated(b"\0" + b"\xff\x80\x10" * side, side))


def _png(side: int, bits: int, color: int, data: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, bits, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def flac(minutes: float = 29.9, rate: int = 96_000, channels: int = 2) -> bytes:
    """One loudness for half an hour, as many samples as are allowed."""
    import soundfile

    out = io.BytesIO()
    block = np.full((rate, channels), 8000, np.int16)
    with soundfile.SoundFile(out, "w", rate, channels, format="FLAC") as file:
        for _ in range(int(60 * minutes)):
            file.write(block)
    return out.getvalue()


def opus(minutes: float = 15, rate: int = 48_000, channels: int = 2, form: str = "ogg") -> bytes:
    """A quiet tone as phones record it."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=form) as container:
        track = container.add_stream("libopus", rate=rate, layout="stereo")
        track.bit_rate = 8_000
        samples = np.zeros((1, rate * channels), np.float32)
        samples[0, ::50] = 0.1
        for _ in range(int(60 * minutes)):
            frame = av.AudioFrame.from_ndarray(samples, format="flt", layout="stereo")
            frame.rate = rate
            for packet in track.encode(frame):
                container.mux(packet)
        for packet in track.encode(None):
            container.mux(packet)
    return out.getvalue()


CASES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "PDF of nested forms": ("forms.pdf", nested_forms),
    "PDF of 600 000 strokes": ("strokes.pdf", strokes),
    "PDF of 64 square pages": ("square.pdf", square_pages),
    "PDF with a deflated stream": ("stream.pdf", deflated_stream),
    "PNG of 16 bits": ("deep.png", deep_png),
    "FLAC of half an hour": ("long.flac", flac),
    "Opus of 15 minutes": ("long.opus", opus),
}
"""By what the file is: its name, and what writes it."""
