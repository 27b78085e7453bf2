"""One item of a source with references to its media, which are loaded when asked for.

A row hands out a path or a function that reads one cell, so that a set of many gigabytes is never held in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvmm.decoding.files import is_image
from kvmm.errors import KVMMError

MEDIA_COLUMNS = ("image", "images", "audio", "video", *(f"image_{page}" for page in range(1, 21)))
# folders of media that stand beside the folder of annotations
BESIDE = (
    *("images", "documents", "audio", "audios", "video", "videos"),
    *(f"{part}{year}" for part in ("val", "train") for year in (2014, 2017)),
)

# of data that somebody else sent
MAX_ITEMS = 50_000  # the largest split of DocVQA has 39,463
MAX_TEXT = 1_000_000  # characters of a question; a tokenizer takes seconds for so many

_HEAD = 64  # bytes that say whether a file is an image
_INSIDE: ContextVar[bool] = ContextVar("inside", default=False)


@contextlib.contextmanager
def media_inside_folder() -> Iterator[None]:
    """For data that somebody else sent: names of media that are absolute, or lead upwards, are not followed.

    Such media are looked for under the last part of their name alone. A source may have ``MAX_ITEMS`` items, and a
    question ``MAX_TEXT`` characters.
    """
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)


def check_items(name: str, count: int) -> None:
    """Raise ``KVMMError`` if data that somebody else sent have more than ``MAX_ITEMS`` items."""
    if _INSIDE.get() and count > MAX_ITEMS:
        raise KVMMError(f"{name} holds more than {MAX_ITEMS:,} items: send a part of the benchmark.")


class BadItem(Exception):
    """One item cannot be used; the text is the reason, "kind: detail" or only a kind."""


@dataclass(frozen=True, eq=False)
class Row:
    """One item of a source.

    Attributes:
        fields: its values; in parquet, media columns are left out here.
        number: its position in the source, from 0.
        media: a source by column: an image's or a recording's, or a tuple of them.
        folder: where relative paths of media start, or None.
    """

    fields: Mapping[str, Any]
    number: int
    media: Mapping[str, Any]
    folder: Path | None = None

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of the named values that is there and not null."""
        for name in names:
            if (value := self.fields.get(name)) is not None:
                return value
        return default

    def text(self, *names: str) -> str:
        """A text that must be there and must not be empty."""
        value = self.get(*names)
        if value is None:
            raise BadItem(f"no {names[0]}")
        if not isinstance(value, str):
            raise BadItem(f"{names[0]} is not a text")
        if not value.strip():
            raise BadItem(f"empty {names[0]}")
        if _INSIDE.get() and len(value) > MAX_TEXT:
            raise BadItem(f"long {names[0]}: more than {MAX_TEXT:,} characters")
        return value

    def texts(self, *names: str) -> list[str]:
        """A list of texts, or one text, or nothing."""
        value = self.get(*names, default=[])
        if not isinstance(value, (str, list, tuple)):
            raise BadItem(f"{names[0]} is not a list")
        return [value] if isinstance(value, str) else [str(part) for part in value]

    def answers(self, *names: str) -> tuple[str, ...]:
        """One or several reference answers; numbers become text, empty texts do not count."""
        value = self.get(*names)
        values = value if isinstance(value, (list, tuple)) else [value]
        texts = tuple(str(v) for v in values if isinstance(v, (str, int, float)) and str(v).strip())
        if not texts:
            raise BadItem("no answers")
        return texts

    def image(self, *names: str) -> Any:
        """The source of an image, checked by its first bytes."""
        source = self._medium("image", names)
        check_image(source)
        return source

    def images(self, *names: str, ending: str = "") -> tuple[Any, ...]:
        """The sources of several images: a list in one of the columns, or the columns ``image_1``, ``image_2`` ...

        ``ending``: added to names of files that have none.
        """
        numbered = [self.media[name] for name in MEDIA_COLUMNS if name[-1].isdigit() and self.media.get(name)]
        sources = next((self.media[name] for name in names if self.media.get(name)), tuple(numbered))
        if not sources:
            value = self.get(*names)
            listed = value if isinstance(value, (list, tuple)) else []
            if not listed or not all(isinstance(part, str) and part.strip() for part in listed):
                raise BadItem("missing image")
            sources = tuple(
                find_file(self.folder, part if Path(part).suffix else part + ending, "image") for part in listed
            )
        for source in sources:
            check_image(source)
        return tuple(sources)

    def documents(self, *names: str) -> tuple[Path, ...]:
        """Paths of images and PDFs: a list, or one name; an image is checked by its first bytes."""
        listed = self.texts(*names)
        if not listed:
            raise BadItem("missing document")
        paths = tuple(find_file(self.folder, name, "document") for name in listed)
        for path in paths:
            if path.suffix.lower() != ".pdf":
                check_image(path)
        return paths

    def audio(self, *names: str) -> Any:
        """The source of a recording; only its presence has been checked."""
        return self._medium("audio", names)

    def video(self, *names: str, ending: str = "") -> Any:
        """The source of a video; only its presence has been checked. ``ending``: of names of files that have none."""
        for name in names:
            if self.media.get(name) is not None:
                return self.media[name]
        value = self.get(*names)
        if isinstance(value, str) and value.strip():
            return find_file(self.folder, value if Path(value).suffix else value + ending, "video")
        raise BadItem("missing video")

    def _medium(self, kind: str, names: Sequence[str]) -> Any:
        for name in names:
            if self.media.get(name) is not None:
                return self.media[name]
        value = self.get(*names)
        if isinstance(value, str) and value.strip():
            return find_file(self.folder, value, kind)
        raise BadItem(f"missing {kind}")


def check_image(source: Any) -> None:
    """Raise :class:`BadItem` unless the source starts as an image does; the pixels are not decoded."""
    key = source if isinstance(source, (str, os.PathLike)) else None
    if key is not None:
        if (reason := _path_fault(Path(key))) is not None:
            raise BadItem(reason)
        return
    data = source() if callable(source) else source
    if isinstance(data, str):  # a path that a data set points to
        return check_image(data)
    if isinstance(data, bytes) and not is_image(data[:_HEAD]):
        raise BadItem("damaged image" if data else "missing image")


@lru_cache(maxsize=100_000)
def _path_fault(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return None if is_image(stream.read(_HEAD)) else f"damaged image: {path.name}"
    except OSError:
        return f"missing image: {path.name}"


def find_file(folder: Path | None, name: str, kind: str) -> Path:
    """A medium named in a data file: relative to its folder, or to one folder below or beside it.

    Archives unpack under names that differ from those in the annotations, so the last part of the path is looked for
    in the neighbouring folders too.
    """
    if folder is not None:
        wanted = Path(unicodedata.normalize("NFC", name))
        if _INSIDE.get() and (wanted.is_absolute() or ".." in wanted.parts):
            wanted = Path(wanted.name)
        for root in _roots(folder):
            for candidate in (root / wanted, root / wanted.name):
                with contextlib.suppress(OSError):  # a name that is too long
                    if candidate.is_file():
                        return candidate
    raise BadItem(f"missing {kind}: {name}")


@lru_cache(maxsize=64)
def _roots(folder: Path) -> tuple[Path, ...]:
    below = sorted(p for p in folder.iterdir() if p.is_dir())
    beside = [folder.parent / name for name in BESIDE]
    return (folder, *below, *(p for p in beside if p.is_dir()))


def media_key(*sources: Any) -> str:
    """Equal for the same media: a file's path, or a digest of the bytes that a cell holds."""
    keys = []
    for source in sources:
        data = source() if callable(source) else source
        is_bytes = isinstance(data, bytes)
        keys.append(hashlib.blake2b(data, digest_size=12).hexdigest() if is_bytes else os.fspath(data))
    return "|".join(keys)


def forget_files() -> None:
    """Look at files anew: what was missing may be there by now."""
    _path_fault.cache_clear()
    _roots.cache_clear()


def medium_bytes(value: Any) -> bytes:
    """The bytes of a media cell: plain, or a struct of ``bytes`` and ``path``. Empty when there are none."""
    if isinstance(value, dict):
        value = value.get("bytes")
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else b""


def check_columns(name: str, columns: Iterable[str], required: Sequence[Sequence[str]]) -> None:
    """Raise ``KVMMError`` unless of each group of column names one is there."""
    columns = list(columns)
    for names in required:
        if not set(names) & set(columns):
            raise KVMMError(f"{name} has no column {' or '.join(names)} (it has {', '.join(columns)}): wrong data set?")
