"""Rows of parquet files as the hub stores them: media as structs of ``bytes`` and ``path``, read when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvmm.errors import KVMMError
from kvmm.eval.tasks.rows import MEDIA_COLUMNS, Row, check_columns, medium_bytes


@dataclass(frozen=True)
class ParquetCell:
    """One media cell of a parquet file; calling it reads the bytes. Can be pickled."""

    path: str
    group: int
    row: int
    column: str
    index: int | None = None

    def __call__(self) -> bytes:
        try:
            value = _media_column(self.path, self.group, self.column)[self.row].as_py()
        except KVMMError:
            raise
        except Exception as error:  # pyarrow raises ArrowInvalid, OSError, IndexError ...
            raise KVMMError(f"{Path(self.path).name} cannot be read any more: download it again.") from error
        return medium_bytes(value if self.index is None else value[self.index])


@lru_cache(maxsize=2)  # neighbours are read one after another
def _media_column(path: str, group: int, column: str) -> Any:
    with _pyarrow().ParquetFile(path) as file:
        return file.read_row_group(group, columns=[column]).column(0)


def forget_columns() -> None:
    """Read files anew: a file may have been replaced."""
    _media_column.cache_clear()


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise KVMMError('Reading parquet needs pyarrow: pip install "kvmm[eval]".') from error
    return pyarrow.parquet


def parquet_rows(path: Path, start: int, required: Sequence[Sequence[str]]) -> Iterator[Row | tuple[str, str]]:
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
