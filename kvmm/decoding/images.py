"""Images in: upright RGB, strip by strip, so that a picture takes little more memory than its pixels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
from PIL import Image

from kvmm.decoding.files import Source, kind_of, name_of, open_file, what_else
from kvmm.errors import KVMMError

# Pillow opens these alone: another of its formats runs programs (EPS starts Ghostscript) or was never asked for here
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "ICO", "AVIF", "JPEG2000")
MAX_IMAGE_BYTES = 100 * 2**20
MAX_IMAGE_PIXELS = 100_000_000  # an A1 page at 300 dpi has 70 million
MAX_SHOWN_PIXELS = 2**24  # larger images are shrunk to this; Qwen3-VL, which sees the finest, takes as many at most
MAX_IMAGE_SIDE = 20_000
MAX_ASPECT_RATIO = 200  # the limit of the Qwen VL image processors
_STRIP_PIXELS = 2**20
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_image(source: Source, max_pixels: int | None) -> Image.Image:
    """The image in a file, decoded in this process; see :func:`kvmm.media.load_image`."""
    name = name_of(source)
    stream = open_file(source, MAX_IMAGE_BYTES)
    try:
        with warnings.catch_warnings():
            # Pillow's own size warning: the limit below is the one that counts.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with stream, Image.open(stream, formats=IMAGE_FORMATS) as image:
                return finish_image(image, name, max_pixels, may_draft=True)
    except Image.DecompressionBombError as error:
        raise KVMMError(f"{name} unpacks to more than {MAX_IMAGE_PIXELS:,} pixels: make the image smaller.") from error
    except Image.UnidentifiedImageError as error:
        if kind_of(source) == "image":  # it begins as one, and ends too early
            raise KVMMError(f"{name} is damaged or cut off: save or download the image again.") from error
        raise KVMMError(f"{name} {what_else(source)}, not an image: give a PNG, JPEG or WebP file.") from error
    except KVMMError:
        raise
    except MemoryError as error:
        raise KVMMError(f"{name} does not fit in memory: make the image smaller.") from error
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error, EOFError ...
        raise KVMMError(f"{name} is damaged or cut off: save or download the image again.") from error


def finish_image(image: Image.Image, name: str, max_pixels: int | None, *, may_draft: bool = False) -> Image.Image:
    """An upright RGB image of at most ``max_pixels`` pixels.

    ``may_draft`` lets a JPEG be decoded at a half or a quarter of its size where that is enough, which changes
    ``image``; without it ``image`` keeps its size and its frame.

    Raises ``KVMMError`` beyond the limits above.
    """
    if image.tell():
        image = _first_frame(image)
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
    share = 1.0 if max_pixels is None else min(math.sqrt(max_pixels / (width * height)), 1.0)
    size = (max(int(width * share), 1), max(int(height * share), 1))
    if share < 1 and may_draft:
        image.draft("RGB", size)
    image.load()
    turn = _TURNS.get(image.getexif().get(_ORIENTATION))
    shown = _in_strips(image, size)
    return shown if turn is None else shown.transpose(turn)


def _first_frame(image: Image.Image) -> Image.Image:
    frame = image.tell()
    image.seek(0)
    try:
        return image.copy()
    finally:
        image.seek(frame)


def _in_strips(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """RGB of ``size``, as if the whole image were converted and then resized."""
    if image.mode == "RGB" and size == image.size and "transparency" not in image.info:
        return image.convert("RGB")
    convert = _converter(image)
    width, height = image.size
    step = height / size[1]
    margin = 0 if size == image.size else math.ceil(3 * step) + 1  # rows that the filter sees beyond a strip's own
    shown = Image.new("RGB", size)
    rows = max(int(_STRIP_PIXELS / (width * step)), 1)
    for top in range(0, size[1], rows):
        bottom = min(top + rows, size[1])
        first, last = max(int(top * step) - margin, 0), min(math.ceil(bottom * step) + margin, height)
        strip = convert(image.crop((0, first, width, last)))
        if size != image.size:
            box = (0, top * step - first, width, bottom * step - first)
            strip = strip.resize((size[0], bottom - top), Image.Resampling.LANCZOS, box=box)
        shown.paste(strip, (0, top))
    return shown


def _converter(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """What makes RGB, or 8 bits of grey, of a strip of ``image``."""
    if image.mode.startswith("I") or image.mode == "F":
        return _grey_from_deep(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        return _on_white
    return lambda strip: strip.convert("RGB")


def _on_white(strip: Image.Image) -> Image.Image:
    strip = strip.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", strip.size, "white"), strip).convert("RGB")


def _grey_from_deep(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """16- and 32-bit grey to 8 bits: Pillow's own conversion clips instead of scaling."""

    def values(strip: Image.Image) -> np.ndarray:
        return np.nan_to_num(np.asarray(strip, dtype=np.float64))

    def scaled(numbers: np.ndarray, top: float) -> np.ndarray:
        return np.clip(numbers / max(top, 1e-12) * 255.0, 0.0, 255.0).astype(np.uint8)

    if image.mode != "F" and image.getextrema()[1] <= 65535:
        table = scaled(np.arange(65536, dtype=np.float64), 65535.0)
        return lambda strip: Image.fromarray(table[np.clip(np.asarray(strip), 0, 65535)])
    width, height = image.size
    rows = max(_STRIP_PIXELS // width, 1)
    strips = (image.crop((0, y, width, min(y + rows, height))) for y in range(0, height, rows))
    top = max(float(values(strip).max(initial=0.0)) for strip in strips)
    if image.mode == "F" and top <= 255.0:
        top = 1.0 if top <= 1.0 else 255.0
    return lambda strip: Image.fromarray(scaled(values(strip), top))


__all__ = [
    "IMAGE_FORMATS",
    "MAX_ASPECT_RATIO",
    "MAX_IMAGE_BYTES",
    "MAX_IMAGE_PIXELS",
    "MAX_IMAGE_SIDE",
    "MAX_SHOWN_PIXELS",
    "finish_image",
    "read_image",
]
