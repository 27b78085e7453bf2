"""Rows of a data set by its id, through the ``datasets`` package."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvmm.errors import KVMMError
from kvmm.eval.tasks.rows import MEDIA_COLUMNS, Row, check_columns, medium_bytes
from kvmm.eval.tasks.splits import canonical_split


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


def dataset_rows(name: str, split: str | None, required: Sequence[Sequence[str]]) -> Iterator[Row]:
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
    feature = copy.deepcopy(feature)
    inner = getattr(feature, "feature", feature)
    inner = inner[0] if isinstance(inner, list) else inner
    inner.decode = False
    return feature


def _load_dataset(name: str, split: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise KVMMError(f'{name} needs the datasets package: pip install "kvmm[eval]", or give files.') from error
    identifier, _, config = name.partition(":")
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)  # one line of ours instead of one for each attempt
    try:
        splits = datasets.load_dataset(identifier, config or None)
    except Exception as error:  # no network, no such set, no such config: each has its own exceptions
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise KVMMError(
            f"The data set {name} cannot be loaded ({reason}): check the id (owner/name or owner/name:config) and the "
            "network, or download it and give the folder."
        ) from error
    finally:
        log.setLevel(level)
    by_split = {canonical_split(part): data for part, data in splits.items()}
    if split is None:
        return next((by_split[part] for part in ("val", "test") if part in by_split), next(iter(by_split.values())))
    if canonical_split(split) not in by_split:
        raise KVMMError(f"{name} has no split {split}: choose one of {', '.join(splits)}.")
    return by_split[canonical_split(split)]
