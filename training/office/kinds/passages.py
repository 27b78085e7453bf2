"""Pages that set a written-out document of :mod:`training.office.passages`, in many layouts."""

# fmt: off

from __future__ import annotations

import itertools
import re

from training.office.document import KIND_ASKED, Document, Part, a_kind
from training.office.hiding import hide
from training.office.lookups import blocks_of
from training.office.passages import WRITTEN, Passage, Question, chart_of, draw, passages
from training.office.prose import prose
from training.office.registry import kind
from training.office.stems import PLAIN, stems
from training.pages.values import Rng

HIDDEN = 0.55  # of pages: sentences or values are left out, and what they answered is not stated any more
HIDDEN_PIECES, PIECE_WEIGHTS = (1, 2, 3), (5, 3, 2)  # how many at most
FOREIGN = 0.4  # of pages: asked more often, words that the page has not come to mean that it does not say
LETTER = 92  # square pixels of a small letter with its share of the leading
COLUMNS = ("news", "article", "newsletter", "feature", "review", "leaflet", "brochure")
FRAMED = ("notice", "badge", "label", "ticket", "card", "voucher", "poster", "sign")
# what the document of any kind may say in other words
ROLES = frozenset(word[:5] for word in "sender sent signed signature sign wrote write written writer author addressed addressee address recipient receives total amount money cost price deadline date dated time when currency customer client phone telephone call contact number town city place street company firm title subject issued issuer year month weekday language country owner holder paid pays".split())


@kind(WRITTEN, 280.0)
def passage_page(d: Document) -> None:
    r, known = d.r, passages(d.held)
    if not known:
        d.paragraph(prose(r, 400))
        return
    room = d.shape[0] * d.shape[1] / LETTER
    fitting = (p for p in (draw(r, d.held) for _ in range(12)) if p.length < room)
    chosen = next(fitting, None) or min(known, key=lambda p: p.length)
    title, lines, questions = chosen.fill(r)
    left = hide(r, title, lines, questions, r.choices(HIDDEN_PIECES, PIECE_WEIGHTS)[0]) if not d.held and r.chance(HIDDEN) else None
    lines, questions = left or (lines, questions)  # what is derived, a summary among it, is not asked where something is gone
    texts = set_passage(d, chosen, title, lines)
    for question in questions:
        ask(d, question, texts)
    d.ask(KIND_ASKED, a_kind(chosen.kind), *(part for _, part in texts[:1]))
    other = draw(r, d.held)
    if r.chance(FOREIGN) and other.kind != chosen.kind and (foreign := foreign_question(r, other.fill(r)[2], " ".join(text for text, _ in texts))):
        d.absent(*foreign)


def set_passage(d: Document, passage: Passage, title: str, lines: list[tuple[str, str]]) -> list[tuple[str, Part]]:
    """Sets a document; returns the texts of its parts."""
    r, texts = d.r, []
    if title:
        texts.append((title, d.heading(title, align=r.pick("lllc"))))
    place = d
    if passage.kind.split()[-1] in FRAMED and r.chance(0.35):
        place = d.framed()
    paragraphs = sum(sort == "text" for sort, _ in lines)
    narrow = paragraphs > 1 and d.shape[1] >= 500 and r.chance(0.45 if passage.kind.split()[-1] in COLUMNS else 0.08)
    columns = d.columns(2) if narrow else [place]
    align, bold, marker = r.pick("lllcr" if passage.kind.split()[-1] in FRAMED else "lllll"), r.chance(0.1), r.pick("-\u2022*1a")
    airy = r.chance(0.6)
    cut = _middle(lines) if narrow else len(lines)
    for column, half in zip(columns, (lines[:cut], lines[cut:]), strict=False):
        texts += _fill(column, half, align, bold, marker, airy)
    return texts


def _middle(lines: list[tuple[str, str]]) -> int:
    """Where to go on in a second column: at the line behind which half of the characters stand, not within a table."""
    total, before = sum(len(text) for _, text in lines), 0
    for i, (sort, text) in enumerate(lines):
        if i and before >= total / 2 and (sort != "row" or lines[i - 1][0] != "row"):
            return i
        before += len(text)
    return max(len(lines) - 1, 1)


def _fill(d: Document, lines: list[tuple[str, str]], align: str, bold: bool, marker: str, airy: bool) -> list[tuple[str, Part]]:
    texts = []
    for sort, group in itertools.groupby(lines, key=lambda line: line[0]):
        if airy and d.blocks and sort not in ("head", "text"):
            d.gap()
        texts += _set(d, sort, [text for _, text in group], align, bold, marker)
    return texts


def _set(d: Document, sort: str, group: list[str], align: str, bold: bool, marker: str) -> list[tuple[str, Part]]:
    if sort == "head":
        return [(text, d.heading(text, level=2)) for text in group]
    if sort == "line":
        return list(zip(group, d.lines(*group, align=align, bold=bold), strict=True))
    if sort == "item":
        return list(zip(group, d.items(group, marker=marker), strict=True))
    if sort == "field":
        pairs = [(label.strip(), value.strip()) for label, _, value in (text.partition(" = ") for text in group)]
        parts = d.fields(pairs, hand=d.r.chance(0.12))
        return [(f"{label} {value}", part) for (label, value), part in zip(pairs, parts, strict=True)]
    if sort == "chart":
        return [_chart(d, text) for text in group]
    if sort == "row":
        header, *rows = ([cell.strip() for cell in text.split("|")] for text in group)
        if rows:
            parts = d.table(header, rows, numbers=d.r.randint(0, min(2, len(header) - 1)))
            return [(" ".join(row), part) for row, part in zip(rows, parts, strict=True)] + [(" ".join(header), part) for part in parts]
    return [(text, d.paragraph(text)) for text in group]


def _chart(d: Document, text: str) -> tuple[str, Part]:
    form, unit, labels, values = chart_of(text)
    r, values = d.r, [int(value) if value == int(value) else value for value in values]
    shown = f" {unit}" if unit and len(unit) < 4 and r.chance(0.6) else ""
    printed = [f"{value}{shown}" for value in values] if form == "pie" or r.chance(0.65) else None
    ticks = None
    if form != "pie" and (printed is None or r.chance(0.5)):
        grid = next((g for g in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000) if max(values) / g <= 8), 10**6)
        ticks = [(i * grid, str(i * grid)) for i in range(int(-(-max(values) // grid)) + 1)]
    if unit and not (shown and printed):  # else nothing would say what is measured
        d.line(f"({unit})", small=True)
    texts = [[str(value) for value in values]]
    part = d.chart(form, labels, values, printed=printed, ticks=ticks, value_texts=texts, unit=unit, shade=r.pick((255, 190, 150, 110)))
    return " ".join([*labels, *(printed or [value for _, value in ticks or ()])]), part


def _rough(d: Document) -> bool:
    """Whether a chart shows its values by their heights only, too rough to compute with."""
    return any(block.kind == "chart" and not block.options["printed"] for block in blocks_of(d))


def ask(d: Document, question: Question, texts: list[tuple[str, Part]]) -> None:
    """Adds a question, resting on the parts that hold its answer, or on all where the answer is derived from them."""
    if question.answer is None:
        d.absent(*question.wordings)
        return
    if question.derived:
        if not (_rough(d) and any(c.isdigit() for c in question.answer)):
            d.ask(question.wordings, question.answer, [part for _, part in texts])
        return
    whole = re.compile(rf"(?<!\w)(?<!\d[.,:]){re.escape(question.answer)}(?!\w)(?![.,:]\d)")
    parts = [part for text, part in texts if whole.search(text)]
    if _rough(d) and question.answer in _unprinted(d):  # a value that its chart does not print, so wherever it stands
        return
    parts = parts or [part for text, part in texts if question.answer in text][:1]
    if parts:
        d.ask(question.wordings, question.answer, parts)


def _unprinted(d: Document) -> set[str]:
    charts = (block for block in blocks_of(d) if block.kind == "chart" and not block.options["printed"])
    return {str(value) for block in charts for value in block.options["values"]}


def foreign_question(r: Rng, questions: list[Question], page: str) -> tuple[str, ...] | None:
    """A question about something else, in all its wordings, or None.

    No word of four letters or more of any wording begins as one of the page does, and one of its words at least names a
    thing that not every document has, as senders, dates and sums are.
    """
    seen = stems(page)
    for question in r.sample(questions, len(questions)):
        ways = [stems(way) - PLAIN for way in question.wordings]
        if not any(own & seen for own in ways) and min(len(own - ROLES) for own in ways) > 0 and len(set().union(*ways)) > 1:
            return question.wordings
    return None
