"""The README.md of the mini sets."""

from __future__ import annotations

from collections import Counter

from training.mini.lettering import HANDWRITING
from training.mini.scenes import PHOTOGRAPHS

WHAT = {
    "docvqa": "DocVQA's JSON (`val_v1.0_withQT.json`, `documents/`), several questions a page",
    "ocrbench": "OCRBench's JSON (`OCRBench.json`, `images/`), its ten types",
    "audio": 'DocVQA\'s JSON with `"audio"`: facts that a voice says; spoken questions about a page (`"images"`)',
    "multipage": 'DocVQA\'s JSON with `"images": [...]`: documents of 2 to 8 pages',
}
APPROXIMATIONS = """\
tiny-omni reads printed ASCII, so some types of OCRBench are only approximated:

- **Handwriting Recognition**: fonts that imitate a hand, not handwriting.
- **Handwritten Mathematical Expression Recognition**: printed sums of numbers, transcribed as plain text instead of
  LaTeX. `dataset_name` is `HME100k`, which selects that type's rule of scoring; nothing of HME100k is included.
- **Artistic Text Recognition**: printed fonts with shadows, outlines and blended colours on plain paper.
- **Irregular Text Recognition**: lettering bent, slanted or turned by the generator.
- **Scene Text-centric VQA**: rendered signs in front of photographs, not photographs of signs.

Questions use wordings that tiny-omni knows. Scores on these sets compare policies of one model; they say
nothing about how a model does on the real benchmarks.
"""


def readme(sets: dict[str, list[dict]], seeds: dict[str, int]) -> str:
    """What the sets are, how they were made, counts by type and licences."""
    lines = [
        "# Mini sets",
        "",
        "Small benchmarks in the official formats for tiny-omni, bundled so that `kvmm eval` runs offline:",
        "`kvmm eval docvqa --data mini`. Everything asked about is invented.",
        "",
        "| set | questions | media | format | seed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, rows in sets.items():
        media = {path for row in rows for path in _media(row)}
        lines.append(f"| {name} | {len(rows)} | {len(media)} files | {WHAT[name]} | {seeds[name]} |")
    lines += [
        "",
        "`python -m training.mini --out assets/mini` made them from the held-out set of tiny-omni's training",
        "(`python -m training.heldout`): fonts, values, voices and page layouts that training never shows. Of pages",
        "laid out by a browser (`layout` in mini-DocVQA) the layouts are unseen, and three in ten use a training font.",
        "Two runs write the same bytes. Clean pages are lossless WebP, scans and photographs JPEG, recordings MP3 of",
        "about 25 kbit/s. Ids, file names and `ucsf_` fields are the generator's own.",
        "",
        "## Counts by type",
        "",
        "| set | type | questions |",
        "| --- | --- | --- |",
    ]
    for name, rows in sets.items():
        counts = Counter(" + ".join(row.get("question_types") or [row.get("type", "")]) for row in rows)
        lines += [f"| {name} | {kind} | {count} |" for kind, count in counts.items()]
    lines += ["", "## What OCRBench's types are here", "", APPROXIMATIONS, "## Licences", ""]
    lines += [
        "Pages, recordings and questions are generated, under kvmm's licence, Apache 2.0; espeak-ng speaks.",
        "",
        "Pictures show lettering in fonts of these Debian packages (the fonts themselves are not included): "
        + ", ".join(HANDWRITING)
        + " (Z003: AGPL-3 with a font exception, the others OFL-1.1) and of those that `training/assets.py` lists.",
        "",
        "The scenes (`ocrbench/images/scene-*.jpg`) are these photographs, scaled, cut, blurred, with a sign:",
        "",
        "| photograph | from the PyPI package | shows, by | licence |",
        "| --- | --- | --- | --- |",
    ]
    packages = {"sklearn": "scikit-learn", "skimage": "scikit-image"}
    for name, (package, what, licence) in PHOTOGRAPHS.items():
        lines.append(f"| {name} | {packages[package]} | {what} | {licence} |")
    lines += [
        "",
        "The scenes with china.jpg and flower.jpg stay under CC BY 2.0, <https://creativecommons.org/licenses/by/2.0/>.",
        "",
    ]
    return "\n".join(lines)


def _media(row: dict) -> list[str]:
    paths = [*row.get("images", []), row.get("image"), row.get("image_path"), row.get("audio")]
    return [path for path in paths if path]
