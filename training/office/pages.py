"""Rendered pages of office documents, the same for the same seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from training.office import pdf_engine
from training.office.canvas_engine import office_style, set_on_canvas
from training.office.chart_ladder import NAMES, listing
from training.office.document import KIND_ASKED, SUMMARISE, Block, Document
from training.office.lookups import add_lookups, blocks_of
from training.office.near_misses import near_misses
from training.office.ornaments import ORNAMENT_SHARE, ornament
from training.office.passages import WRITTEN
from training.office.prose import pad, prose
from training.office.registry import kinds
from training.office.sentences import TOLD, tell
from training.office.stamps import STAMP_SHARE, STAMPED, stamp
from training.office.values import Dates, Money
from training.pages import Page
from training.pages.facts import Fact
from training.pages.values import Rng
from training.wordings import NOT_STATED

PDF_SHARE = 0.15  # of pages, where the second engine is installed
PADDED_SHARE = 0.55  # of pages of kinds that may be long
SHORT = frozenset(
    "badge ticket label receipt_world menu timetable prose slide invitation poster certificate business_card "
    "sticky_note sign chat shopping_list calendar settings prescription article email_thread recipe spreadsheet "
    "dashboard price_list name_badge group_chat credits "
    "shop_product shop_basket shop_listing terminal file_manager week_calendar messenger booking_page settings_dialog "
    "phone_notifications".split()
)
LONG = (
    "minutes",
    "minutes",
    "article",
    "article",
    "contract",
    "letter",
    "manual",
    "faq",
)  # documents that run over several pages
SECTIONS = ("Background", "Next steps", "Annex", "Notes", "Further remarks", "Details", "History", "Outlook", "Costs")
# pages that are nothing without their charts
CHARTED = frozenset(
    "plot plot_series subject_chart series_chart chart pictogram progress gauge timeline figure_page chart_table "
    "small_charts".split()
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


def own_questions(page: Page) -> Page:
    """The page of a written-out document with the questions of its file alone, not what any page may be asked."""
    return replace(page, facts=[fact for fact in page.facts if fact.asks not in (KIND_ASKED, SUMMARISE)])


def chart_lines(document: Document, drawn: set[int]) -> list[str]:
    """What the charts among the parts drawn show, one line for each series: its name and each label with its value.

    A transcription has the texts of a chart row by row, which tells neither which value belongs to which label nor
    anything of what marks alone show. Values are written as answers write them.
    """
    lines = []
    for block in blocks_of(document):
        if block.kind == "chart" and drawn.issuperset(block.parts):
            options = block.options
            names = options.get("series") or [options.get("title") or options.get("unit") or ""]
            looks, form = options.get("looks") or [""] * len(names), NAMES.get(options["form"], options["form"])
            for name, look, row in zip(names, looks, _told(options), strict=True):
                values = listing(block.texts, row) if any(block.texts) else ", ".join(row)  # a gauge has no labels
                lines.append(f"[{', '.join(filter(None, (form, name, look)))}] {values}")
    return lines


def _told(options: dict) -> list[list[str]]:
    """A chart's values as texts, a row for each series."""
    if texts := options.get("told") or options.get("value_texts"):
        return texts
    rows, printed = options["values"], options.get("printed")
    if "series" not in options:
        rows, printed = [rows], printed and [printed]
    return printed or [[f"{value:.10g}" for value in row] for row in rows]


def _shade(r: Rng) -> np.ndarray:
    """Colours of paper and ink, uint8 ``[6]``."""
    bright = r.randint(195, 255) if r.chance(0.6) else 255
    dark = r.randint(0, 110) if r.chance(0.6) else 0
    return np.array([bright] * 3 + [dark] * 3, np.uint8)


def _parts(block: Block) -> set[int]:
    return set(block.parts).union(*(_parts(b) for inner in block.inner for b in inner.blocks))


def make_office_document(seed: int, count: int, height: int, width: int, held: bool = False) -> list[Page]:
    """``count`` pages of one document, in one typography: what does not fit a page stands on the next.

    A question belongs to the last page that its answer rests on.
    """
    r = Rng(seed)
    known = kinds()
    name = r.pick(LONG)
    document = Document(r, (height, width), held)
    known[name][0](document)
    style, dates, money = office_style(r, width, held), Dates(r), Money(r)
    letter = style.body.width("etaoin shrdlu") / 13
    rows = height / (style.body.height + style.leading)
    while document.length < 0.8 * (count - 0.4) * rows * (width - 2 * style.margin) / letter:
        if r.chance(0.4):
            document.heading(r.pick(SECTIONS), level=2)
        if len(document.told) < len(TOLD) - 1:
            tell(document, 1, dates, money, hide=0.0)
        document.paragraph(prose(r, r.pick((200, 400, 600))))
    add_lookups(document)
    blocks, pages, drawn = document.blocks, [], set()
    shade, open_asks = _shade(r), [ask for ask in document.asks if ask.answer is not None]
    for _ in range(count):
        page = Document(r, (height, width), held, blocks=list(blocks), _parts=document._parts)
        if not blocks:
            page.paragraph(prose(r, 300))
        canvas, here, lines = set_on_canvas(page, height, width, held, style)
        drawn |= here
        stated = [ask for ask in open_asks if drawn.issuperset(ask.needs) and here.intersection(ask.needs)]
        open_asks = [ask for ask in open_asks if ask not in stated]
        facts = [Fact("told", a.answer, subject=a.questions[0], asks=a.questions) for a in stated]
        once = Counter(fact.subject for fact in facts)
        facts = [fact for fact in facts if once[fact.subject] == 1]
        pages.append(Page(canvas.ink(), shade, canvas.chars, lines, facts, name, ()))
        set_here = [bool(_parts(b) & here) for b in blocks]
        blocks = blocks[max((i for i, there in enumerate(set_here) if there), default=-1) + 1 :]
    return pages


def make_office_page(
    seed: int,
    height: int,
    width: int,
    held: bool = False,
    kind: str | None = None,
    engine: str | None = None,
    tries: int = 6,
) -> Page:
    """One page of an office document.

    Args:
        seed: any integer.
        height, width: pixels, multiples of 28.
        held: draw fonts and written-out documents from those kept out of training.
        kind: a name of :func:`training.office.registry.kinds`; drawn by their weights if not given.
        engine: ``canvas`` or ``pdf``; drawn, as far as installed, if not given.
        tries: how often another seed is taken where a page about a chart has no room for it.
    """
    r = Rng(seed)
    known = kinds()
    if kind is None:
        kind = r.choices(list(known), [weight for _, weight in known.values()])[0]
    document = Document(r, (height, width), held)
    known[kind][0](document)
    if kind in TELLING and r.chance(0.35):
        tell(document, r.randint(1, 2), Dates(r), Money(r))
    add_lookups(document)
    if kind not in SHORT and r.chance(PADDED_SHARE):
        pad(document, r)
    if engine is None:
        engine = "pdf" if pdf_engine.available() and r.chance(PDF_SHARE) else "canvas"
    if engine == "pdf" and pdf_engine.can_set(document):
        ink, chars, drawn, lines = pdf_engine.set_as_pdf(document, height, width, held)
    else:
        canvas, drawn, lines = set_on_canvas(document, height, width, held)
        ink, chars = canvas.ink(), canvas.chars
    charts = {part for block in blocks_of(document) if block.kind == "chart" for part in block.parts}
    if not lines or (kind in CHARTED and tries and not charts <= drawn):  # no room: large letters on a small page
        return make_office_page(seed + 1, height, width, held, kind, engine, max(tries - 1, 0))
    if kind != WRITTEN:  # they bring unanswerable questions of their own, for words that a list cannot foresee
        document.asks += near_misses(r, document, lines)
    facts, absent = facts_of(document, drawn)
    if kind in STAMPED and r.chance(STAMP_SHARE):
        stamped, more = stamp(r, ink, held)
        lines, facts = [*lines, *stamped], [*facts, *more]
    screen = any(block.kind == "screen" for block in document.blocks)
    # within a chart or a program's window an ornament would look like a part of it
    if r.chance(ORNAMENT_SHARE) and not charts and not screen:
        ornament(r, ink)
    told = tuple(chart_lines(document, drawn))
    return Page(ink, _shade(r), chars, lines, facts, kind, tuple(absent), told)
