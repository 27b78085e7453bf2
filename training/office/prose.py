"""Natural English paragraphs, from the assets."""

from __future__ import annotations

from functools import lru_cache

from training.office.document import Document
from training.pages import values as v
from training.pages.values import Rng, assets_dir

SMALL_PRINT = 130  # square pixels a character of a page that small print covers, margins included


@lru_cache(None)
def paragraphs() -> tuple[str, ...]:
    """All paragraphs of the assets, one a line; empty where they have none."""
    path = assets_dir() / "prose.txt"
    return tuple(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else ()


def prose(r: Rng, longest: int) -> str:
    """Sentences of one paragraph, up to ``longest`` characters, or sentences of random words without assets."""
    known = paragraphs()
    if not known:
        return " ".join(v.sentence(r) for _ in range(r.randint(1, 4)))[:longest]
    text = r.pick(known)
    while len(text) > longest:
        shorter = text.rpartition(". ")[0]
        if not shorter:
            return text[:longest].rpartition(" ")[0]
        text = shorter + "."
    return text


def pad(document: Document, r: Rng) -> None:
    """Add text that no question is about, as pages of an office have: from a paragraph to a page full of small print.

    It stands behind the rest or, as often, anywhere between its blocks below the first.
    """
    height, width = document.shape
    full = r.random() ** 1.3 * height * width / SMALL_PRINT
    while True:
        document.paragraph(prose(r, r.pick((150, 300, 500, 700))))
        if len(document.blocks) > 2 and r.chance(0.5):
            document.blocks.insert(r.randint(1, len(document.blocks) - 1), document.blocks.pop())
        if document.length >= full:
            return
