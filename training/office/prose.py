"""Natural English paragraphs, from the assets."""

from __future__ import annotations

from functools import lru_cache

from training.pages import values as v
from training.pages.values import Rng, assets_dir


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
