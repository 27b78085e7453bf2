"""Small pictures of files: in a question's bubble, where a click shows one large (``kvmmEnlarge``), and of samples."""

from __future__ import annotations

import base64
import html
import io
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from PIL import Image

from kvmm.decoding import owned_by
from kvmm.errors import KVMMError
from kvmm.media import load_pdf, preview
from kvmm.samples import kind_of

SHOWN = 4  # pictures in a bubble; the others are counted
SIDE = 1100  # pixels of the longer side: small in the bubble, readable when enlarged
QUALITY = 60  # of WebP: 10 to 30 KiB for a page of text
SECONDS = 10  # that a file has for them; one that takes longer is a link
KEPT_FILES = 64  # whose previews are kept in memory, about 100 KiB each


def previews_html(paths: Sequence[str]) -> str:
    """The strip of a bubble: the first pages and images of some files, and how many more there are.

    The pictures are part of the HTML, so they do not depend on files of the server. Files that show none are not
    decoded; of PDFs among them the pages are counted.

    Raises:
        KVMMError: a file that shows a picture is not what its name says, or a file cannot be read.
    """
    written = [os.stat(path).st_mtime_ns for path in paths]
    found = [(path, *_pictures(path, when)) for path, when in zip(paths[:SHOWN], written, strict=False)]
    total = sum(count for _, _, count in found)
    total += sum(_count(path, when) for path, when in zip(paths[SHOWN:], written[SHOWN:], strict=True))
    tiles, left = [], max(SHOWN - len(found), 0)
    for path, pictures, count in found:
        name = html.escape(Path(path).name)
        further = min(left, len(pictures) - 1)  # every file shows its first page
        left -= further
        for number, source in enumerate(pictures[: 1 + further], start=1):
            label = f"{name}, page {number} of {count}" if count > 1 or kind_of(path) == "pdf" else name
            tiles.append(
                f'<button type="button" class="preview" title="{label}" aria-label="Enlarge {label}" '
                f'onclick="kvmmEnlarge(this)"><img src="{source}" alt="{label}"></button>'
            )
    more = f'<span class="more">+ {total - len(tiles)} more</span>' if total > len(tiles) else ""
    names = ", ".join(html.escape(Path(path).name) for path in paths)
    return f'<div class="previews">{"".join(tiles)}{more}</div><small class="preview-names">{names}</small>'


@lru_cache(maxsize=KEPT_FILES)
def _pictures(path: str, written: int) -> tuple[tuple[str, ...], int]:
    """Data URLs of a file's first pictures, and how many it holds; ``written`` tells versions of a file apart."""
    pictures, count = _preview(path, SHOWN)
    sources = []
    for picture in pictures:
        stream = io.BytesIO()
        picture.save(stream, "WEBP", quality=QUALITY, method=2)
        sources.append(f"data:image/webp;base64,{base64.b64encode(stream.getvalue()).decode()}")
    return tuple(sources), count


@lru_cache(maxsize=64 * KEPT_FILES)
def _count(path: str, written: int) -> int:
    """How many pictures a file holds; ``written`` as in :func:`_pictures`."""
    return _preview(path, 0)[1] if kind_of(path) == "pdf" else 1


def _preview(path: str, count: int) -> tuple[list[Image.Image], int]:
    late = threading.Event()
    timer = threading.Timer(SECONDS, late.set)
    timer.start()
    try:
        with owned_by(__name__):  # those of all visitors together count as one's
            return preview(path, count, SIDE, late)
    except OSError as error:
        raise KVMMError(f"{Path(path).name} cannot be opened: send it again.") from error
    finally:
        timer.cancel()


def icon_of(path: Path, kind: str, folder: Path) -> str:
    """A picture for the example: the file itself, the first page of a PDF, or a drawn wave for a recording."""
    if kind == "image":
        return str(path)
    target = folder / f"{path.stem}-{kind}.{'png' if kind == 'pdf' else 'svg'}"
    if kind == "pdf":
        page = load_pdf(path)[0].copy()
        page.thumbnail((320, 320))
        page.save(target)
    else:
        bars = "".join(
            f'<rect x="{8 + 7 * i}" y="{32 - h}" width="4" height="{2 * h}" rx="2" fill="#009E73"/>'
            for i, h in enumerate((5, 11, 20, 13, 24, 15, 8))
        )
        target.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">{bars}</svg>', encoding="utf-8")
    return str(target)


__all__ = ["SHOWN", "icon_of", "previews_html"]
