"""Pages of a PDF: what is drawn on them, for a model, and their text layer, for a reader who compares."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pypdfium2
from PIL import Image

from kvmm.errors import KVMMError

PDF_DPI = 150
MAX_PAGE_SIDE = 4096  # pixels; a poster is rendered at fewer dpi so that its longer side stays below this
MAX_PAGE_ASPECT = 200  # the limit of the Qwen VL image processors
MAX_PAGE_TEXT = 20_000  # characters of a page's text layer that are kept; a dense page of print has 6000
_LOCK = threading.Lock()  # PDFium is not thread-safe; held for one page, so that others may read between two


@dataclass(frozen=True, eq=False)
class PdfPage:
    """One page: an RGB image, and the page's text layer, empty without one.

    The text is at most ``MAX_PAGE_TEXT`` characters, free of control characters; ``text_length`` is how many there are.
    """

    image: Image.Image
    text: str
    text_length: int


def read_pages(data: bytes, name: str, limit: int, stop: threading.Event | None = None) -> list[PdfPage]:
    """All pages of a PDF, at 150 dpi or at what keeps the longer side below 4096 pixels.

    Args:
        data: the file.
        name: for messages.
        limit: most pages; a longer document is refused, not cut.
        stop: set it to end before the next page.

    Raises:
        KVMMError: it has more pages, is damaged or protected by a password, or nothing is drawn on it; or ``stop`` was
            set.
    """
    with _opened(data, name) as (document, count):
        if count > limit:
            raise KVMMError(f"{name} has {count} pages and may have {limit}: split it or choose some of its pages.")
        pages = []
        for index in range(count):
            if stop is not None and stop.is_set():
                raise KVMMError(f"{name} was stopped at page {index + 1} of {count}: send it again.")
            with _LOCK:
                pages.append(_read(document, index, name))
    if all(low == high for page in pages for low, high in page.image.getextrema()):
        raise KVMMError(f"{name} is empty: nothing is drawn on its {count} page{'s' * (count > 1)}.")
    return pages


def first_pages(data: bytes, name: str, count: int, side: int) -> tuple[list[Image.Image], int]:
    """The first ``count`` pages with a longer side of ``side`` pixels, and how many pages there are.

    Raises ``KVMMError`` for a PDF that is damaged or protected by a password.
    """
    with _opened(data, name) as (document, total):
        pictures = []
        for index in range(min(count, total)):
            with _LOCK:
                pictures.append(_render(document[index], index, name, side))
        return pictures, total


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
    scale = min(PDF_DPI / 72, MAX_PAGE_SIDE / max(width, height))
    bitmap = page.render(scale=scale if side is None else side / max(width, height))
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


__all__ = ["MAX_PAGE_SIDE", "MAX_PAGE_TEXT", "PDF_DPI", "PdfPage", "first_pages", "read_pages"]
