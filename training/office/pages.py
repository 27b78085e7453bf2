"""Rendered pages of office documents, the same for the same seed."""

from __future__ import annotations

import numpy as np

from training.office import pdf_engine
from training.office.canvas_engine import set_on_canvas
from training.office.document import Document
from training.office.lookups import add_lookups
from training.office.near_misses import near_misses
from training.office.prose import prose
from training.office.registry import kinds
from training.office.sentences import tell
from training.office.stamps import STAMP_SHARE, STAMPED, stamp
from training.office.values import Dates, Money
from training.pages import Page
from training.pages.facts import Fact
from training.pages.values import Rng
from training.wordings import NOT_STATED

PDF_SHARE = 0.15  # of pages, where the second engine is installed
SHORT = frozenset(
    "badge ticket label receipt_world menu timetable prose slide invitation poster certificate business_card "
    "sticky_note sign chat shopping_list calendar settings prescription article email_thread recipe spreadsheet "
    "dashboard price_list".split()
)
TELLING = frozenset(("letter", "email", "web_page", "news", "manual", "prose"))  # where more facts may be told in prose


def facts_of(document: Document, drawn: set[int]) -> tuple[list[Fact], list[Fact]]:
    """Questions of a document that hold with the parts drawn: those with an answer and those without."""
    stated, absent = [], []
    for ask in document.asks:
        fact = Fact(
            "asked", NOT_STATED if ask.answer is None else ask.answer, subject=ask.questions[0], asks=ask.questions
        )
        if ask.answer is None:
            absent.append(fact)
        elif drawn.issuperset(ask.needs):
            stated.append(fact)
    known = [fact.subject for fact in (*stated, *absent)]
    once = lambda facts: [fact for fact in facts if known.count(fact.subject) == 1]  # noqa: E731
    return once(stated), once(absent)


def make_office_page(
    seed: int, height: int, width: int, held_fonts: bool = False, kind: str | None = None, engine: str | None = None
) -> Page:
    """One page of an office document.

    Args:
        seed: any integer.
        height, width: pixels, multiples of 28.
        held_fonts: draw the fonts from the families kept out of training.
        kind: a name of :func:`training.office.registry.kinds`; drawn by their weights if not given.
        engine: ``canvas`` or ``pdf``; drawn, as far as installed, if not given.
    """
    r = Rng(seed)
    known = kinds()
    if kind is None:
        kind = r.choices(list(known), [weight for _, weight in known.values()])[0]
    document = Document(r, (height, width))
    known[kind][0](document)
    if kind in TELLING and r.chance(0.35):
        tell(document, r.randint(1, 2), Dates(r), Money(r))
    add_lookups(document)
    if kind not in SHORT and r.chance(0.35):  # text that no question is about
        for _ in range(r.randint(1, 5)):
            document.paragraph(prose(r, 500))
    if engine is None:
        engine = "pdf" if pdf_engine.available() and r.chance(PDF_SHARE) else "canvas"
    if engine == "pdf":
        ink, chars, drawn, lines = pdf_engine.set_as_pdf(document, height, width, held_fonts)
    else:
        canvas, drawn, lines = set_on_canvas(document, height, width, held_fonts)
        ink, chars = canvas.ink(), canvas.chars
    if not lines:  # nothing fitted: large letters on a small page
        return make_office_page(seed + 1, height, width, held_fonts, kind, engine)
    document.asks += near_misses(r, document, lines)
    facts, absent = facts_of(document, drawn)
    if kind in STAMPED and r.chance(STAMP_SHARE):
        stamped, more = stamp(r, ink, held_fonts)
        lines, facts = [*lines, *stamped], [*facts, *more]
    bright = r.randint(195, 255) if r.chance(0.6) else 255
    dark = r.randint(0, 110) if r.chance(0.6) else 0
    shade = np.array([bright] * 3 + [dark] * 3, np.uint8)
    return Page(ink, shade, chars, lines, facts, kind, tuple(absent))
