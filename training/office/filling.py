"""How far a page is filled.

A photograph of a badge shows the badge, and an office's pages seldom end in their upper half. A document that would
fill less than four fifths of its page is therefore mostly set once more, in larger type and with more space between its
blocks, unless something would then be missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from training.office.document import Document
from training.pages.values import Rng

FILLED_SHARE = 0.75  # of pages; the others stay as they come
ENOUGH = 0.8  # of a page's height
WRAPS = 1.3  # power of the size of type by which the height of text grows, since larger type wraps sooner
RUNNING = 90  # characters of a paragraph of running text
GAP = 2.0  # lines at most that larger spacing leaves between paragraphs of running text
STEPS_BACK = (1.0, 0.6, 0.3)  # shares of the change, one after the other, until nothing is missing from the page


def type_share(r: Rng) -> float:
    """How much of the empty space larger type takes, 0 to 1, mostly much; negative for a page that stays as it is."""
    fills, share = r.chance(FILLED_SHARE), r.random() ** 0.5
    return share if fills else -1.0


def fillings(
    share: float, used: float, room: float, blocks: int, widest: float = math.inf
) -> Iterator[tuple[float, float]]:
    """``(factor, spread)`` to try: of the size of type, and pixels between two of ``blocks`` blocks.

    Args:
        share: of :func:`type_share`.
        used: height of the text, in pixels.
        room: height that it may take.
        blocks: as :func:`blocks_in` counts them.
        widest: most pixels between two blocks, of type as it is.
    """
    if share < 0 or not 0 < used < ENOUGH * room:
        return
    for part in STEPS_BACK:
        factor = 1 + part * share * ((room / used) ** 0.5 - 1)
        yield factor, min(part * max(room - used * factor**WRAPS, 0.0) / max(blocks, 1), widest * factor)


def widest_gap(document: Document, line: float) -> float:
    """Pixels that may be left between blocks, in lines of ``line`` pixels: paragraphs stand closer than a poster's."""
    blocks = [b for block in document.blocks for b in (block, *(c for inner in block.inner for c in inner.blocks))]
    running = any(block.kind == "paragraph" and len(block.texts[0]) >= RUNNING for block in blocks)
    return GAP * line if running else math.inf


def blocks_in(document: Document) -> int:
    """How many blocks stand below one another, with those in frames and of the longest column."""
    nested = ("framed", "columns")
    return sum(max(map(blocks_in, b.inner)) if b.kind in nested and b.inner else 1 for b in document.blocks)
