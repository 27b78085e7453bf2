"""Small files of many formats, made here."""

from __future__ import annotations

import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

SAMPLES = Path(__file__).parents[2] / "assets" / "samples"


def image_files() -> list[bytes]:
    """The same picture in every format that is read, and in several modes."""
    base = Image.open(SAMPLES / "table.png").convert("RGB")
    base.thumbnail((160, 160))
    modes = {"RGB": base, "L": base.convert("L"), "P": base.convert("P"), "RGBA": base.convert("RGBA"),
             "1": base.convert("1"), "CMYK": base.convert("CMYK"), "I;16": base.convert("I;16")}  # fmt: skip
    found = []
    for name in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "ICO", "JPEG2000", "AVIF"):
        for mode, picture in modes.items():
            stream = io.BytesIO()
            try:
                picture.save(stream, name)
            except (OSError, ValueError, KeyError):
                continue
            found.append(stream.getvalue())
            if name not in ("PNG", "TIFF") or mode == "RGB":
                break
    stream = io.BytesIO()
    base.save(stream, "GIF", save_all=True, append_images=[base.rotate(90), base.rotate(180)])
    return [*found, stream.getvalue()]


def pdf(content: bytes, extra: bytes = b"", box: bytes = b"0 0 200 200", deflate: bool = False) -> bytes:
    """A PDF of one page with a content stream and more objects, numbered from 5 on."""
    body, filters = (zlib.compress(content), b"/Filter/FlateDecode") if deflate else (content, b"")
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox["
        + box
        + b"]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>/XObject<</X 6 0 R>>>>>>",
        b"<</Length %d%s>>stream\n" % (len(body), filters) + body + b"\nendstream",
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, one in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n" % number + one + b"\nendobj\n"
    out += extra
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    return bytes(out + b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table))


def pdf_files() -> list[bytes]:
    """The sample report, and small documents whose objects a mutation can reach."""
    text = b"BT /F 12 Tf 20 100 Td (Total 42) Tj ET 0 0 m 100 100 l S 10 10 50 50 re f"
    form = b"<</Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</X 6 0 R>>>>/Length 4>>"
    form = b"6 0 obj\n" + form + b"stream\n/X Do\nendstream\nendobj\n"
    return [
        pdf(text),
        pdf(text, deflate=True),
        pdf(text * 50 + b" /X Do", form),
        pdf(text, box=b"0 0 14400 14400"),
        pdf(text, box=b"0 0 1 14400"),
        (SAMPLES / "report.pdf").read_bytes(),
    ]


def tone(rate: int = 16000, seconds: float = 0.6, channels: int = 1) -> np.ndarray:
    """float32 ``[n, channels]``."""
    wave = 0.3 * np.sin(np.arange(int(rate * seconds), dtype=np.float32) * 2 * math.pi * 330 / rate)
    return np.repeat(wave[:, None], channels, 1)


def recordings() -> list[bytes]:
    """A tone in every format and coding that libsndfile writes."""
    import soundfile

    found = []
    for kind in soundfile.available_formats():
        for coding in soundfile.available_subtypes(kind):
            for rate, channels in ((8000, 1), (16000, 2)):
                stream = io.BytesIO()
                try:
                    soundfile.write(stream, tone(rate, channels=channels), rate, subtype=coding, format=kind)
                except (soundfile.LibsndfileError, ValueError, RuntimeError, TypeError):
                    continue
                found.append(stream.getvalue())
    return found


def wav_of(tag: int, data: bytes, rate: int = 8000, bits: int = 4, align: int = 1, extra: bytes = b"") -> bytes:
    """A WAV file of any format tag."""
    body = struct.pack("<HHIIHH", tag, 1, rate, rate, align, bits) + struct.pack("<H", len(extra)) + extra
    chunks = b"fmt " + struct.pack("<I", len(body)) + body + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks
