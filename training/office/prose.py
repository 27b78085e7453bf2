"""Natural English paragraphs, from the assets."""

from __future__ import annotations

import re
from functools import lru_cache

from training.office.document import Block, Document
from training.pages import values as v
from training.pages.values import Rng, assets_dir

_REFERENCE = re.compile(r"(?<!\$)\{([A-Za-z][\w .'-]*)\}")  # to another entry, as the Jargon File marks it
ABBREVIATED = ("e.g.", "i.e.", "esp.", "cf.", "etc.", "vs.")  # where no sentence ends
TRIES = 6  # paragraphs that are looked at for one whose first sentence is short enough
SMALL_PRINT = 130  # square pixels a character of a page that small print covers, margins included


@lru_cache(None)
def paragraphs() -> tuple[str, ...]:
    """All paragraphs of the assets, one a line; empty where they have none."""
    path = assets_dir() / "prose.txt"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return tuple(_REFERENCE.sub(r"\1", text).splitlines())


def prose(r: Rng, longest: int) -> str:
    """Sentences of one paragraph, up to ``longest`` characters, or sentences of random words without assets."""
    known = paragraphs()
    if not known:
        return " ".join(v.sentence(r) for _ in range(r.randint(1, 4)))[:longest]
    for _ in range(TRIES):
        text = r.pick(known)
        while len(text) > longest or text.endswith(ABBREVIATED):
            shorter = text.rpartition(". ")[0]
            if not shorter:
                break
            text = shorter + "."
        else:
            return text
    return text[:longest].rpartition(" ")[0]


def _runs(block: Block) -> bool:
    """Whether other text may follow a block."""
    if block.kind == "paragraph":
        return len(block.texts[0]) > 60
    return block.kind in ("table", "chart", "items", "columns", "framed", "hand_form")


def pad(document: Document, r: Rng) -> None:
    """Add text that no question is about, as pages of an office have: from a paragraph to a page full of small print.

    It stands behind the rest or, as often, behind other running text, a table or a chart: nobody writes between the
    lines of an address, or a heading and what it is of.
    """
    height, width = document.shape
    full = r.random() ** 1.3 * height * width / SMALL_PRINT
    while True:
        document.paragraph(prose(r, r.pick((150, 300, 500, 700))))
        places = [i for i, block in enumerate(document.blocks[:-2], 1) if _runs(block)]
        if places and r.chance(0.5):
            document.blocks.insert(r.pick(places), document.blocks.pop())
        if document.length >= full:
            return
