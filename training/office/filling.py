"""How far a page is filled.

A photograph of a badge shows the badge, and an office's pages seldom end in their upper half. A document that would
leave much of its page empty is therefore set once more, in larger type and with more space between its blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from training.pages.values import Rng

FILLED_SHARE = 0.75  # of pages; the others stay as they come
ENOUGH = 0.8  # of a page's height
WRAPS = 1.3  # power of the size of type by which the height of text grows, since larger type wraps sooner
PARTS = (1.0, 0.6, 0.3)  # of the change, one after the other, until nothing is missing from the page


def type_share(r: Rng) -> float:
    """How much of the empty space larger type takes, 0 to 1, mostly much; negative for a page that stays as it is."""
    fills, share = r.chance(FILLED_SHARE), r.random() ** 0.5
    return share if fills else -1.0


def fillings(share: float, used: float, room: float, blocks: int) -> Iterator[tuple[float, float]]:
    """``(factor, spread)`` to try: of the size of type, and pixels between two of ``blocks`` blocks.

    Args:
        share: of :func:`type_share`. used, room: heights of the text and of what it may take, in pixels.
    """
    if share < 0 or not 0 < used < ENOUGH * room:
        return
    for part in PARTS:
        factor = 1 + part * share * ((room / used) ** 0.5 - 1)
        yield factor, part * max(room - used * factor**WRAPS, 0.0) / max(blocks, 1)
