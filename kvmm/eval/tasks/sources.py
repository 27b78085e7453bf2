"""Opening what a benchmark comes in: JSON and JSON lines, parquet, data set ids, the bundled mini sets.

All of them become :class:`Row` objects. Media stay where they are: a row hands out a path or a function that reads
one cell, so that a set of many gigabytes is never held in memory.
"""

from __future__ import annotations

import io
import json
import os
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image

from kvmm.errors import KVMMError

DATASET_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
SPLIT_NAMES = {
    "val": ("validation", "val", "dev"),
    "test": ("test", "testing"),
    "train": ("train", "training"),
}
MEDIA_COLUMNS = ("image", "images", "audio", *(f"image_{page}" for page in range(1, 21)))
JSON_ENDINGS, LINES_ENDINGS, PARQUET_ENDINGS = (".json",), (".jsonl", ".ndjson"), (".parquet",)


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
        return value

    def answers(self, *names: str) -> tuple[str, ...]:
        """One or several reference answers; numbers become text, empty texts do not count."""
        value = self.get(*names)
        values = value if isinstance(value, (list, tuple)) else [value]
        texts = tuple(str(v) for v in values if isinstance(v, (str, int, float)) and str(v).strip())
        if not texts:
            raise BadItem("no answers")
        return texts

    def image(self, *names: str) -> Any:
        """The source of an image, whose header has been read."""
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

    def audio(self, *names: str) -> Any:
        """The source of a recording; only its presence has been checked."""
        return self._medium("audio", names)

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
    if isinstance(data, bytes) and not _is_image(io.BytesIO(data)):
        raise BadItem("damaged image" if data else "missing image")


@lru_cache(maxsize=100_000)
def _path_fault(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return None if _is_image(stream) else f"damaged image: {path.name}"
    except OSError:
        return f"missing image: {path.name}"


def _is_image(stream: Any) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(stream) as image:
                return min(image.size) > 0
    except Exception:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error, EOFError ...
        return False


def find_file(folder: Path | None, name: str, kind: str) -> Path:
    """A medium named in a data file: relative to its folder, or to one folder below or beside it.

    Archives unpack under names that differ from those in the annotations, so the last part of the path is looked for
    in the neighbouring folders too.
    """
    if folder is not None:
        wanted = Path(unicodedata.normalize("NFC", name))
        for root in _roots(folder):
            for candidate in (root / wanted, root / wanted.name):
                if candidate.is_file():
                    return candidate
    raise BadItem(f"missing {kind}: {name}")


@lru_cache(maxsize=64)
def _roots(folder: Path) -> tuple[Path, ...]:
    below = sorted(p for p in folder.iterdir() if p.is_dir())
    beside = [folder.parent / name for name in ("images", "documents", "audio")]
    return (folder, *below, *(p for p in beside if p.is_dir()))


# --------------------------------------------------------------------------------------------------------------------
# Which files


def open_rows(
    source: str | os.PathLike[str], *, mini: str | None, split: str | None, required: Sequence[Sequence[str]] = ()
) -> tuple[str, Iterator[Row | tuple[str, str]]]:
    """The rows of a source and its name for people.

    Args:
        mini: the folder in ``assets/mini`` that the source "mini" means.
        split: "val", "test", "train", or any part of a file's name.
        required: for parquet and data sets, groups of column names of which one must be there.

    Returns:
        the name, and an iterator of rows; ``(doc_id, reason)`` stands for an item that is no row at all.

    Raises:
        KVMMError: the source is not there, or cannot be read at all.
    """
    name = os.fspath(source)
    if name == "mini":
        path = mini_folder(mini)
    else:
        path = Path(name).expanduser()
        if not path.exists():
            if DATASET_ID.fullmatch(name):
                return name, _dataset_rows(name, split, required)
            raise KVMMError(
                f"{name} does not exist: give a file, a folder, a data set's id such as owner/name, or mini."
            )
    files = data_files(path, split)
    return name, _file_rows(files, required)


def mini_folder(mini: str | None) -> Path:
    """The folder of a bundled mini set."""
    from kvmm.models.loading import assets_folder

    if mini is None:
        raise KVMMError("There is no mini set for this task: give a file, a folder or a data set's id with --data.")
    path = assets_folder() / "mini" / mini
    if not path.is_dir():
        raise KVMMError(f"The mini set {mini} is not installed: give a file, a folder or a data set's id with --data.")
    return path


def data_files(path: Path, split: str | None) -> list[Path]:
    """The data file, or the shards of one split, that a path means."""
    if path.is_file():
        if not path.name.lower().endswith(JSON_ENDINGS + LINES_ENDINGS + PARQUET_ENDINGS):
            raise KVMMError(f"{path.name} is not JSON, JSON lines or parquet: give the benchmark's data file.")
        return [path]
    for endings in (JSON_ENDINGS + LINES_ENDINGS, PARQUET_ENDINGS):
        files = [p for p in sorted(path.iterdir()) if p.name.lower().endswith(endings) and p.is_file()]
        if not files and endings == PARQUET_ENDINGS:
            files = sorted(p for p in path.rglob("*.parquet") if p.is_file())
        if files:
            return _of_split(files, path, split, shards=endings == PARQUET_ENDINGS)
    raise KVMMError(f"{path} holds no .json, .jsonl or .parquet file: give the folder that holds the benchmark's data.")


def _of_split(files: list[Path], folder: Path, split: str | None, shards: bool) -> list[Path]:
    by_split: dict[str, list[Path]] = {}
    for file in files:
        by_split.setdefault(_split_of(file.relative_to(folder)), []).append(file)
    if split is not None:
        wanted = canonical_split(split)
        chosen = by_split.get(wanted) or [f for f in files if split in f.name]
        if not chosen:
            known = ", ".join(sorted(name for name in by_split if name)) or ", ".join(f.name for f in files[:5])
            raise KVMMError(f"{folder} has no split {split}: choose one of {known}.")
    else:
        chosen = next((by_split[name] for name in ("val", "test", "", "train") if name in by_split), files)
    if len(chosen) > 1 and not shards:
        names = ", ".join(f.name for f in chosen[:5])
        raise KVMMError(f"{folder} holds several data files ({names}): give one of them, or a split.")
    return chosen


def canonical_split(name: str) -> str:
    """ "validation" and "dev" are "val", and so on; other names stay."""
    return next((split for split, names in SPLIT_NAMES.items() if name.lower() in names), name)


def _split_of(path: Path) -> str:
    words = re.split(r"[^a-z]+", path.name.lower()) + [part.lower() for part in path.parts[:-1]]
    return next((split for split, names in SPLIT_NAMES.items() if any(name in words for name in names)), "")


# --------------------------------------------------------------------------------------------------------------------
# Files


def _file_rows(files: Iterable[Path], required: Sequence[Sequence[str]]) -> Iterator[Row | tuple[str, str]]:
    start = 0
    for file in files:
        name = file.name.lower()
        if name.endswith(PARQUET_ENDINGS):
            rows: Iterable[Row | tuple[str, str]] = _parquet_rows(file, start, required)
        elif name.endswith(LINES_ENDINGS):
            rows = _line_rows(file, start)
        else:
            rows = _json_rows(file, start)
        for row in rows:
            yield row
            start += 1


def read_text(path: Path) -> str:
    """A text file, UTF-8 or with a byte order mark. Raises ``KVMMError`` for anything else."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KVMMError(f"{path} cannot be read ({error.strerror}): check the path and its permissions.") from error
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise KVMMError(f"{path.name} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error


def _json_rows(path: Path, start: int) -> Iterator[Row | tuple[str, str]]:
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        if "\n{" in text.strip() and text.lstrip().startswith("{"):
            yield from _line_rows(path, start)  # JSON lines under the other name
            return
        raise KVMMError(f"{path.name} is not JSON ({where}): download or save it again.") from error
    if isinstance(content, dict):
        content = next((content[key] for key in ("data", "annotations", "questions") if key in content), content)
    if not isinstance(content, list):
        raise KVMMError(f"{path.name} holds no list of items: give the benchmark's data file.")
    for number, item in enumerate(content, start):
        yield _object_row(item, number, path.parent)


def _line_rows(path: Path, start: int) -> Iterator[Row | tuple[str, str]]:
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise KVMMError(f"{path} cannot be read ({error.strerror}): check the path and its permissions.") from error
    number = start
    for index, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _object_row(json.loads(line.decode("utf-8")), number, path.parent)
        except UnicodeDecodeError:
            yield f"line {index}", f"wrong encoding: line {index} is not UTF-8"
        except (ValueError, RecursionError):
            yield f"line {index}", f"wrong JSON: line {index}"
        number += 1


def _object_row(item: Any, number: int, folder: Path) -> Row | tuple[str, str]:
    if not isinstance(item, dict):
        return f"item {number}", "wrong JSON: the item is no object"
    return Row(item, number, {}, folder)


# --------------------------------------------------------------------------------------------------------------------
# Parquet


@dataclass(frozen=True)
class ParquetCell:
    """One media cell of a parquet file; calling it reads the bytes. Can be pickled."""

    path: str
    group: int
    row: int
    column: str
    index: int | None = None

    def __call__(self) -> bytes:
        value = _media_column(self.path, self.group, self.column)[self.row].as_py()
        return medium_bytes(value if self.index is None else value[self.index])


@lru_cache(maxsize=2)  # neighbours are read one after another
def _media_column(path: str, group: int, column: str) -> Any:
    with _pyarrow().ParquetFile(path) as file:
        return file.read_row_group(group, columns=[column]).column(0)


def medium_bytes(value: Any) -> bytes:
    """The bytes of a media cell: plain, or a struct of ``bytes`` and ``path``. Empty when there are none."""
    if isinstance(value, dict):
        value = value.get("bytes")
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else b""


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise KVMMError('Reading parquet needs pyarrow: pip install "kvmm[eval]".') from error
    return pyarrow.parquet


def _parquet_rows(path: Path, start: int, required: Sequence[Sequence[str]]) -> Iterator[Row | tuple[str, str]]:
    parquet = _pyarrow()
    try:
        file = parquet.ParquetFile(path)
    except Exception as error:  # pyarrow raises ArrowInvalid, OSError ... for what is no parquet
        raise KVMMError(f"{path.name} is not parquet or is damaged: download it again.") from error
    with file:
        check_columns(path.name, file.schema_arrow.names, required)
        media = [name for name in MEDIA_COLUMNS if _holds_media(file.schema_arrow, name)]
        plain = [name for name in file.schema_arrow.names if name not in media]
        number = start
        for group in range(file.num_row_groups):
            try:
                rows = file.read_row_group(group, columns=plain).to_pylist()
                count = file.metadata.row_group(group).num_rows
                rows = rows or [{} for _ in range(count)]
                cells = {name: _media_column(str(path), group, name) for name in media}
            except Exception as error:
                lost = file.metadata.row_group(group).num_rows
                for row in range(lost):
                    yield f"item {number + row}", f"damaged parquet: row group {group} ({type(error).__name__})"
                number += lost
                continue
            for row, fields in enumerate(rows):
                sources = {name: _cell_source(str(path), group, row, name, column) for name, column in cells.items()}
                yield Row(fields, number, sources, path.parent)
                number += 1


def _holds_media(schema: Any, name: str) -> bool:
    import pyarrow

    if name not in schema.names:
        return False
    kind = schema.field(name).type
    while pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        kind = kind.value_type
    return pyarrow.types.is_struct(kind) or pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)


def _cell_source(path: str, group: int, row: int, name: str, column: Any) -> Any:
    cell = column[row]
    if not cell.is_valid:
        return None
    if hasattr(cell, "__len__") and not hasattr(cell, "keys"):  # a list of media
        return tuple(ParquetCell(path, group, row, name, index) for index in range(len(cell)))
    return ParquetCell(path, group, row, name)


def check_columns(name: str, columns: Iterable[str], required: Sequence[Sequence[str]]) -> None:
    """Raise ``KVMMError`` unless of each group of column names one is there."""
    columns = list(columns)
    for names in required:
        if not set(names) & set(columns):
            raise KVMMError(f"{name} has no column {' or '.join(names)} (it has {', '.join(columns)}): wrong data set?")


# --------------------------------------------------------------------------------------------------------------------
# Data set ids


@dataclass(frozen=True, eq=False)
class DatasetCell:
    """One media cell of a loaded data set; calling it reads the bytes."""

    dataset: Any
    row: int
    column: str
    index: int | None = None

    def __call__(self) -> bytes | str:
        value = self.dataset[self.row][self.column]
        value = value if self.index is None else value[self.index]
        return medium_bytes(value) or (value.get("path") or b"" if isinstance(value, dict) else b"")


def _dataset_rows(name: str, split: str | None, required: Sequence[Sequence[str]]) -> Iterator[Row]:
    dataset = _load_dataset(name, split)
    features = dict(dataset.features)
    check_columns(name, features, required)
    media = [
        column
        for column in MEDIA_COLUMNS
        if "Image" in repr(features.get(column)) or "Audio" in repr(features.get(column))
    ]
    raw = dataset
    for column in media:
        raw = raw.cast_column(column, _undecoded(features[column]))
    plain = dataset.remove_columns(media)
    cells = raw.select_columns(media)
    for number, fields in enumerate(plain):
        sources: dict[str, Any] = {}
        for column in media:
            value = cells[number][column]
            if isinstance(value, list):
                sources[column] = tuple(DatasetCell(cells, number, column, index) for index in range(len(value)))
            elif value is not None:
                sources[column] = DatasetCell(cells, number, column)
        yield Row(fields, number, sources)


def _undecoded(feature: Any) -> Any:
    """The same feature, handing out bytes instead of decoding them."""
    import copy

    feature = copy.deepcopy(feature)
    inner = getattr(feature, "feature", feature)
    inner = inner[0] if isinstance(inner, list) else inner
    inner.decode = False
    return feature


def _load_dataset(name: str, split: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise KVMMError(
            f'{name} is read with the datasets package: pip install "kvmm[eval]", or give files.'
        ) from error
    identifier, _, config = name.partition(":")
    try:
        found = datasets.load_dataset(identifier, config or None)
    except Exception as error:  # no network, no such set, no such config: each has its own exceptions
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise KVMMError(
            f"The data set {name} cannot be loaded ({reason}): check the id (owner/name or owner/name:config) and the "
            "network, or download it and give the folder."
        ) from error
    by_split = {canonical_split(part): data for part, data in found.items()}
    if split is None:
        return next((by_split[part] for part in ("val", "test") if part in by_split), next(iter(by_split.values())))
    if canonical_split(split) not in by_split:
        raise KVMMError(f"{name} has no split {split}: choose one of {', '.join(found)}.")
    return by_split[canonical_split(split)]
