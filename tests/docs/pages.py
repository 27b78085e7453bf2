"""The README and the pages of docs/ as the tests of their claims read them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def text_of(page: str) -> str:
    """A page's Markdown; ``page`` is relative to the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """Markdown without fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def slug(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown and GitHub make it."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", plain.lower()).strip())


def anchors(text: str) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ +(.+)$", prose(text), re.MULTILINE)}


def rows(text: str, head: str) -> dict[str, list[str]]:
    """The body of the table whose head line begins with ``head``: first cell -> the others."""
    lines = text.splitlines()
    (start,) = [index for index, line in enumerate(lines) if line.startswith(head)]
    found = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *cells = (cell.strip() for cell in line.strip("| ").split(" | "))
        assert first not in found, first
        found[first] = cells
    return found


def results(name: str) -> Any:
    """``benchmarks/results/<name>.json``; rows with names by name."""
    found = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    if isinstance(found.get("results"), list) and "name" in found["results"][0]:
        return {row["name"]: row for row in found["results"]}
    return found
