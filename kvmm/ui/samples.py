"""The sample questions that are one click away, from ``assets/samples/samples.json``."""

from __future__ import annotations

import json
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from kvmm.models.loading import assets_folder

SAMPLES = assets_folder() / "samples"


@dataclass(frozen=True)
class Sample:
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


def load_samples(folder: Path = SAMPLES) -> list[Sample]:
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
            samples.append(Sample(title=title, question=entry.get("question", ""), files=files))
    return samples


def icon_of(path: Path, kind: str, folder: Path) -> str:
    """A picture for the example: the file itself, the first page of a PDF, or a drawn wave for a recording."""
    if kind == "image":
        return str(path)
    target = folder / f"{path.stem}-{kind}.{'png' if kind == 'pdf' else 'svg'}"
    if kind == "pdf":
        from kvmm.media import load_pdf

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
