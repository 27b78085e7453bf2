"""The file or the shards of a split in a folder."""

from __future__ import annotations

import re
from pathlib import Path

from kvmm.errors import KVMMError

SPLIT_NAMES = {
    "val": ("validation", "val", "dev"),
    "test": ("test", "testing"),
    "train": ("train", "training"),
}


def files_of_split(files: list[Path], folder: Path, split: str | None, shards: bool) -> list[Path]:
    by_split: dict[str, list[Path]] = {}
    for file in files:
        by_split.setdefault(_split_of(file.relative_to(folder)), []).append(file)
    if split is not None:
        wanted = canonical_split(split)
        chosen = by_split.get(wanted) or [f for f in files if split in f.name]
        if not chosen:
            split_names = ", ".join(sorted(name for name in by_split if name)) or ", ".join(f.name for f in files[:5])
            raise KVMMError(f"{folder} has no split {split}: choose one of {split_names}.")
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
