"""Opening the formats of benchmarks: JSON and JSON lines, tables, parquet, data set ids, the bundled mini sets."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kvmm.embedded import assets_folder
from kvmm.errors import KVMMError
from kvmm.eval.tasks.hub import dataset_rows
from kvmm.eval.tasks.parquet import forget_columns, parquet_rows
from kvmm.eval.tasks.rows import Row, check_columns, check_items, forget_files
from kvmm.eval.tasks.splits import files_of_split

DATASET_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
JSON_ENDINGS, LINES_ENDINGS, PARQUET_ENDINGS = (".json",), (".jsonl", ".ndjson"), (".parquet",)
TABLE_ENDINGS = (".tsv", ".csv")
MAX_CELL = 2**24  # characters of one cell of a table
NOT_DATA = ("dataset_infos.json", "dataset_dict.json", "dataset_info.json", "state.json")  # beside hub parquet


def open_rows(
    source: str | os.PathLike[str],
    *,
    mini: str | None,
    split: str | None,
    required: Sequence[Sequence[str]] = (),
    many: bool = False,
    arrange: Callable[[Any], Any] | None = None,
) -> tuple[str, Iterator[Row | tuple[str, str]]]:
    """The rows of a source and its name for people.

    Args:
        mini: the folder in ``assets/mini`` that the source "mini" means.
        split: "val", "test", "train", or any part of a file's name.
        required: for parquet and data sets, groups of column names of which one must be there.
        many: all JSON files of a folder belong to the set, as shards do.
        arrange: makes the list of items from the content of a JSON file, where that is not a list already.

    Returns:
        the name, and an iterator of rows; ``(doc_id, reason)`` stands for an item that is no row at all.

    Raises:
        KVMMError: the source is not there, or cannot be read at all.
    """
    forget_files()
    forget_columns()
    name = os.fspath(source)
    if name == "mini":
        path = mini_folder(mini)
    else:
        path = Path(name).expanduser()
        if not path.exists():
            if DATASET_ID.fullmatch(name):
                return name, dataset_rows(name, split, required)
            raise KVMMError(
                f"{name} does not exist: give a file, a folder, a data set's id such as owner/name, or mini."
            )
    return name, _file_rows(data_files(path, split, many=many), required, arrange)


def mini_folder(mini: str | None) -> Path:
    """The folder of a bundled mini set."""
    if mini is None:
        raise KVMMError("There is no mini set for this task: give a file, a folder or a data set's id with --data.")
    path = assets_folder() / "mini" / mini
    if not path.is_dir():
        raise KVMMError(f"The mini set {mini} is not installed: give a file, a folder or a data set's id with --data.")
    return path


def data_files(path: Path, split: str | None, *, many: bool = False) -> list[Path]:
    """The data file, or the shards of one split, that a path means; with ``many`` all JSON files are shards."""
    if path.is_file():
        if not path.name.lower().endswith(JSON_ENDINGS + LINES_ENDINGS + PARQUET_ENDINGS + TABLE_ENDINGS):
            raise KVMMError(f"{path.name} is not JSON, JSON lines, a table or parquet: give the benchmark's data file.")
        return [path]
    for endings in (JSON_ENDINGS + LINES_ENDINGS, TABLE_ENDINGS, PARQUET_ENDINGS):
        files = [p for p in sorted(path.iterdir()) if p.name.lower().endswith(endings) and p.is_file()]
        files = [p for p in files if p.name not in NOT_DATA]
        if not files and endings == PARQUET_ENDINGS:
            files = sorted(p for p in path.rglob("*.parquet") if p.is_file())
        if files:
            return files_of_split(files, path, split, shards=many or endings == PARQUET_ENDINGS)
    raise KVMMError(f"{path} holds no .json, .jsonl, .tsv or .parquet file: give the folder of the benchmark's data.")


# --------------------------------------------------------------------------------------------------------------------
# Files


def _file_rows(
    files: Iterable[Path], required: Sequence[Sequence[str]], arrange: Callable[[Any], Any] | None
) -> Iterator[Row | tuple[str, str]]:
    start = 0
    for file in files:
        name = file.name.lower()
        if name.endswith(PARQUET_ENDINGS):
            rows: Iterable[Row | tuple[str, str]] = parquet_rows(file, start, required)
        elif name.endswith(LINES_ENDINGS):
            rows = _line_rows(file, start)
        elif name.endswith(TABLE_ENDINGS):
            rows = _table_rows(file, start, required)
        else:
            rows = _json_rows(file, start, arrange)
        for row in rows:
            yield row
            start += 1
            check_items(file.name, start)


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


def _json_rows(path: Path, start: int, arrange: Callable[[Any], Any] | None = None) -> Iterator[Row | tuple[str, str]]:
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        if _starts_as_lines(text):
            yield from _line_rows(path, start)  # JSON lines under the other name
            return
        raise KVMMError(f"{path.name} is not JSON ({where}): download or save it again.") from error
    if arrange is not None:
        content = arrange(content)
    if isinstance(content, dict):
        content = next((content[key] for key in ("data", "annotations", "questions") if key in content), content)
    if not isinstance(content, list):
        raise KVMMError(f"{path.name} holds no list of items: give the benchmark's data file.")
    for number, item in enumerate(content, start):
        yield _object_row(item, number, path.parent)


def _starts_as_lines(text: str) -> bool:
    try:
        return isinstance(json.loads(text.lstrip().split("\n", 1)[0]), dict)
    except (ValueError, RecursionError):
        return False


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


def _table_rows(path: Path, start: int, required: Sequence[Sequence[str]]) -> Iterator[Row | tuple[str, str]]:
    """The lines of a table with a head; a line of another length than the head has no row."""
    delimiter = "\t" if path.name.lower().endswith(".tsv") else ","
    csv.field_size_limit(MAX_CELL)
    lines = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=delimiter)
    try:
        head = next(lines, [])
        check_columns(path.name, head, required)
        for number, cells in enumerate(lines, start):
            if len(cells) != len(head):
                yield f"item {number}", f"wrong table: {len(cells)} cells instead of {len(head)}"
            else:
                yield Row(dict(zip(head, cells, strict=True)), number, {}, path.parent)
    except csv.Error as error:
        raise KVMMError(f"{path.name} is no table ({error}, line {lines.line_num}): download it again.") from error


def _object_row(item: Any, number: int, folder: Path) -> Row | tuple[str, str]:
    if not isinstance(item, dict):
        return f"item {number}", "wrong JSON: the item is no object"
    return Row(item, number, {}, folder)
