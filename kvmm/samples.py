"""The sample questions that are one click away, from ``assets/samples/samples.json``."""

from __future__ import annotations

import json
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from kvmm.embedded import assets_folder

SAMPLES = assets_folder() / "samples"


@dataclass(frozen=True)
class SampleQuestion:
    """One sample: ``files`` exist, ``question`` may be empty when a recording asks it."""

    title: str
    question: str
    files: tuple[Path, ...]

    @property
    def kind(self) -> str:
        """ "pdf", "audio" or "image", by the first file that is not a picture."""
        kinds = [kind_of(path) for path in self.files]
        return next((kind for kind in kinds if kind != "image"), "image")


def kind_of(path: str | Path) -> str:
    """ "image", "audio", "video", "pdf" or "file", from the name alone."""
    mime = mimetypes.guess_type(str(path))[0] or ""
    if mime == "application/pdf":
        return "pdf"
    kind = mime.split("/")[0]
    return kind if kind in ("image", "audio", "video") else "file"


def load_samples(folder: Path = SAMPLES) -> list[SampleQuestion]:
    """Samples of ``folder/samples.json``: a list of ``{"title", "question", "files"}``, files relative to the folder.

    An entry that names a missing file is left out; without the JSON file there are no samples.
    """
    listing = folder / "samples.json"
    if not listing.is_file():
        return []
    samples = []
    for entry in json.loads(listing.read_text(encoding="utf-8")):
        files = tuple(folder / name for name in entry["files"])
        if files and all(path.is_file() for path in files):
            title = entry.get("title") or entry["question"]
            samples.append(SampleQuestion(title=title, question=entry.get("question", ""), files=files))
    return samples


__all__ = ["SAMPLES", "SampleQuestion", "kind_of", "load_samples"]
