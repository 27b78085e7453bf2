"""Synthetic document pages with their transcription, their facts and the place of every character."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from training.pages.blocks import Box, Setter
from training.pages.canvas import Canvas
from training.pages.facts import Fact
from training.pages.kinds import KINDS as SIMPLE_KINDS
from training.pages.kinds import appendix
from training.pages.sheets import sheet
from training.pages.style import Style
from training.pages.values import Rng

__all__ = ["PAGE_SHAPES", "Fact", "Page", "Rng", "make_page"]

PAGE_SHAPES = ((560, 448), (756, 532), (812, 588), (448, 560), (784, 308), (504, 784), (616, 560), (336, 616))
KINDS = {**SIMPLE_KINDS, "sheet": (sheet, 34)}


@dataclass(frozen=True)
class Page:
    """A rendered page.

    Attributes:
        ink: uint8 ``[height, width]``, 0 background to 255 full ink.
        shade: uint8 ``[6]``, background RGB and ink RGB.
        chars: uint8 ``[height // 14, width // 7]``, the class in ``canvas.CHARACTERS`` of the character in each cell, 0
            for none.
        lines: the transcription.
        facts: what can be asked, each unambiguous on this page.
        kind: a key of ``KINDS``.
        absent: questions that this page leaves open; None where only general ones are known.
        charts: what its charts show, a line for each series, as ``lines`` have neither bars nor their order.
    """

    ink: np.ndarray
    shade: np.ndarray
    chars: np.ndarray
    lines: list[str]
    facts: list[Fact]
    kind: str
    absent: tuple[Fact, ...] | None = None
    charts: tuple[str, ...] = ()

    def rgb(self) -> np.ndarray:
        """uint8 ``[height, width, 3]``."""
        back, ink = self.shade[:3].astype(np.float32), self.shade[3:].astype(np.float32)
        mix = self.ink[..., None].astype(np.float32) / 255
        return np.round(back + (ink - back) * mix).astype(np.uint8)


def unambiguous(facts: list[Fact]) -> list[Fact]:
    """Facts whose identity has a single value; repeats are merged, contradictions dropped."""
    values: dict[tuple, set[str]] = {}
    for fact in facts:
        values.setdefault(fact.identity, set()).add(fact.value)
    seen, kept = set(), []
    for fact in facts:
        if len(values[fact.identity]) == 1 and fact.identity not in seen:
            seen.add(fact.identity)
            kept.append(fact)
    return kept


def _reading_facts(r: Rng, lines: list[str]) -> list[Fact]:
    """Facts about the lines themselves."""
    if not lines:
        return []
    facts = [Fact("first_line", lines[0]), Fact("last_line", lines[-1])]
    n = r.randint(0, len(lines) - 1)
    first_word = lines[n].split()[0]
    if sum(line.split()[0] == first_word for line in lines) == 1:
        facts.append(Fact("line_start", lines[n], subject=first_word))
    if n < 6:
        facts.append(Fact("numbered_line", lines[n], subject=str(n + 1)))
    return [f for f in facts if len(f.value) < 80]


def make_page(seed: int, height: int, width: int, held_fonts: bool = False, kind: str | None = None) -> Page:
    """One page, the same for the same arguments.

    Args:
        seed: any integer.
        height, width: pixels, multiples of 28.
        held_fonts: draw the fonts from the families kept out of training.
        kind: a key of ``KINDS``; drawn by their weights if not given.
    """
    r = Rng(seed)
    if kind is None:
        kind = r.choices(list(KINDS), [weight for _, weight in KINDS.values()])[0]
    canvas = Canvas(height, width)
    style = Style.random(r, width, held_fonts)
    setter = Setter(canvas, style, r)
    left = style.margin + (r.randint(0, width // 8) if r.chance(0.15) else 0)
    box = Box(
        left, width - style.margin, r.randint(6, 34) + (r.randint(0, height // 4) if r.chance(0.08) else 0), height - 8
    )
    if r.chance(0.07):  # a frame around the page
        canvas.rect(3, 3, width - 4, height - 4, outline=style.rule)
    KINDS[kind][0](setter, box)
    if kind not in ("sign", "text", "sheet") and r.chance(0.5):
        appendix(setter, box)
    lines = canvas.lines()
    facts = unambiguous(setter.facts)
    if kind not in ("sign", "program", "sheet"):
        facts.append(Fact("kind", kind))
    facts += _reading_facts(r, lines)
    bright = r.randint(205, 255) if r.chance(0.6) else 255
    dark = r.randint(0, 90) if r.chance(0.6) else 0
    shade = np.array([bright] * 3 + [dark] * 3, np.uint8)
    return Page(canvas.ink(), shade, canvas.chars, lines, [replace(f) for f in facts], kind)
