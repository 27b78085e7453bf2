"""Pages of a PDF: what is drawn on them, for a model, and their text layer, for a reader who compares."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pypdfium2
from PIL import Image

from kvmm.decoding.files import MAX_PAGE_TEXT
from kvmm.errors import KVMMError

PDF_DPI = 150
MAX_PAGE_SIDE = 4096  # pixels; a poster is rendered at fewer dpi so that its longer side stays below this
MAX_PDF_PIXELS = 180_000_000  # of all pages: 64 of A4 have 139 million
MAX_PAGE_ASPECT = 200  # the limit of the Qwen VL image processors
_LOCK = threading.Lock()  # PDFium is not thread-safe; held for one page, so that others may read between two


@dataclass(frozen=True, eq=False)
class PdfPage:
    """One page: an RGB image, and the page's text layer, empty without one.

    The text is at most ``MAX_PAGE_TEXT`` characters, free of control characters; ``text_length`` is how many there are.
    """

    image: Image.Image
    text: str
    text_length: int


def read_pages(data: bytes, name: str, limit: int) -> Iterator[Any]:
    """How many pages a PDF has, then all its :class:`PdfPage`s, at 150 dpi or what keeps the longer side below 4096.

    Args:
        data: the file.
        name: for messages.
        limit: most pages; a longer document is refused, not cut.

    Raises:
        KVMMError: it has more pages, or pages of more than ``MAX_PDF_PIXELS`` in all, is damaged or protected by a
            password, or nothing is drawn on it (said after its last page).
    """
    is_empty = True
    with _opened(data, name) as (document, count):
        if count > limit:
            raise KVMMError(f"{name} has {count} pages and may have {limit}: split it or choose some of its pages.")
        _check_pixels(document, count, name)
        yield count
        for index in range(count):
            with _LOCK:
                page = _read(document, index, name)
            is_empty = is_empty and all(low == high for low, high in page.image.getextrema())
            yield page
    if is_empty:
        raise KVMMError(f"{name} is empty: nothing is drawn on its {count} page{'s' * (count > 1)}.")


def read_page(data: bytes, name: str, number: int) -> PdfPage:
    """One page, counted from 1, as :func:`read_pages` reads it. Raises ``KVMMError`` if it cannot be read."""
    with _opened(data, name) as (document, count):
        if not 1 <= number <= count:
            raise KVMMError(f"{name} has no page {number}: it has {count}.")
        with _LOCK:
            return _read(document, number - 1, name)


def first_pages(data: bytes, name: str, count: int, side: int) -> Iterator[Any]:
    """How many pages there are, then the first ``count`` as :class:`PdfPage`s without text, their longer side ``side``.

    Raises ``KVMMError`` for a PDF that is damaged or protected by a password.
    """
    with _opened(data, name) as (document, total):
        yield total
        for index in range(min(count, total)):
            with _LOCK:
                picture = _render(document[index], index, name, side)
            yield PdfPage(picture, "", 0)


def _check_pixels(document: pypdfium2.PdfDocument, count: int, name: str) -> None:
    """Before anything is drawn; what has no size is refused when its turn comes."""
    total = 0.0
    for index in range(count):
        with _LOCK:
            size = document.get_page_size(index)
        if all(map(math.isfinite, size)) and min(size) > 0:
            total += math.prod(size) * _scale(*size) ** 2
    if total > MAX_PDF_PIXELS:
        raise KVMMError(
            f"The {count} pages of {name} have {total / 1e6:.0f} million pixels at {PDF_DPI} dpi and may have "
            f"{MAX_PDF_PIXELS // 10**6}: split it or choose some of its pages."
        )


def _scale(width: float, height: float) -> float:
    """Pixels a point."""
    return min(PDF_DPI / 72, MAX_PAGE_SIDE / max(width, height))


@contextlib.contextmanager
def _opened(data: bytes, name: str) -> Iterator[tuple[pypdfium2.PdfDocument, int]]:
    """The document and how many pages it has; hold ``_LOCK`` around what is done with its pages."""
    try:
        with _LOCK:
            document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        # PDFium does not clear its last error: trust "password" only from a file that is encrypted.
        if "password" in str(error).lower() and b"/Encrypt" in data:
            raise KVMMError(f"{name} is protected by a password: save a copy without the password.") from error
        raise KVMMError(f"{name} has no pages or is damaged: save or download the PDF again.") from error
    try:
        with _LOCK:
            count = len(document)
        if count == 0:
            raise KVMMError(f"{name} has no pages: give another PDF.")
        yield document, count
    except pypdfium2.PdfiumError as error:
        raise KVMMError(f"{name} is damaged: save or download the PDF again.") from error
    finally:
        with _LOCK:
            document.close()


def _read(document: pypdfium2.PdfDocument, index: int, name: str) -> PdfPage:
    try:
        page = document[index]
        return PdfPage(_render(page, index, name), *_text(page))
    except pypdfium2.PdfiumError as error:
        raise KVMMError(f"Page {index + 1} of {name} is damaged: save or download the PDF again.") from error


def _render(page: pypdfium2.PdfPage, index: int, name: str, side: int | None = None) -> Image.Image:
    width, height = page.get_size()
    if not (math.isfinite(width) and math.isfinite(height)) or min(width, height) <= 0:
        raise KVMMError(f"Page {index + 1} of {name} has no size: save the PDF again.")
    if max(width, height) >= MAX_PAGE_ASPECT * min(width, height):
        raise KVMMError(f"Page {index + 1} of {name} is too narrow a strip to read: crop it.")
    bitmap = page.render(scale=_scale(width, height) if side is None else side / max(width, height))
    image = bitmap.to_pil().convert("RGB")
    bitmap.close()
    return image


def _text(page: pypdfium2.PdfPage) -> tuple[str, int]:
    """The text layer and its length; a layer that cannot be read is none, because the picture is what counts."""
    try:
        layer = page.get_textpage()
        length = layer.count_chars()
        text = layer.get_text_range(0, min(length, MAX_PAGE_TEXT)) if length > 0 else ""
    except (pypdfium2.PdfiumError, ValueError):
        return "", 0
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    # a terminal would obey control characters; U+FFFE is where PDFium joined a hyphenated word
    text = "".join(c for c in text if c == "\n" or c == "\t" or (c.isprintable() and c != "\ufffe"))
    text = "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")
    return (text, max(length, 0)) if text.strip() else ("", 0)


__all__ = [
    "MAX_PAGE_SIDE",
    "MAX_PAGE_TEXT",
    "MAX_PDF_PIXELS",
    "PDF_DPI",
    "PdfPage",
    "first_pages",
    "read_page",
    "read_pages",
]
