"""A document without some of its sentences or values, whose questions it then leaves open.

The same question about the same document is answered where a sentence or value stands and refused where it is missing,
so neither the answer nor the refusal can be known by heart: only what the page says decides. Fields and cells of tables
may stay with nothing in them, as forms and lists have them.
"""

from __future__ import annotations

import re

from training.office.passages import Question, flat, flattened
from training.office.stems import PLAIN, stems
from training.pages.values import MONTHS, WEEKDAYS, Rng

Line = tuple[str, str]
# A full stop, a space and a capital: abbreviations of one to three letters end no sentence.
_ENDS = re.compile(r"(?<=[^\W\d_]{4}[.!?])\s+(?=[A-Z\u00c0-\u00de\u201c\"])")
_NAMING = re.compile(r"[^\W_][\w'-]*")
_CALENDAR = frozenset((*MONTHS, *WEEKDAYS, *(name[:3] for name in (*MONTHS, *WEEKDAYS))))
_FUNCTION_WORDS = frozenset("a an the who when on in at how by for from to of is are was did does do has if it".split())
# what such words ask for may be another thing once a rival is gone
_COMPARED = re.compile(
    r"\b(most|least|more|less|fewer|only|first|last|second|third|next|before|after|top|total|\w+imum|\w+est)\b",
    re.I,
)
_TOTAL = re.compile(r"\s*(sub|grand )?(total|sum)", re.I)
LINES = frozenset(("line", "item", "field"))  # lines that are left out as a whole
EMPTIED = 0.6  # of fields: the label stays
# what stands where nothing was entered; in some documents a dash means none, or the same again
EMPTY = (
    "________", "________", "..........", "...", "not given", "none given", "to be announced", "to be confirmed", "tbc",
    "tba", "not yet known", "will follow", "not decided yet", "?",
)  # fmt: skip
DASHES = ("-", "-", "\u2013")
_DASHED = re.compile(r"(^|[|=])\s*(-+|\u2013|/|\?|n/a)\s*($|\|)", re.I)


def pieces(lines: list[Line]) -> list[tuple[int, str]]:
    """What may be left out, each piece with the number of its line: sentences, short lines, items, fields, cells.

    Not the first cell of a row, which names it, nor a number that the others of its row or a total may give.
    """
    found = []
    for number, (sort, text) in enumerate(lines):
        if sort == "text":
            found += [(number, sentence) for sentence in _ENDS.split(text)]
        elif sort in LINES:
            found.append((number, text))
        elif sort == "row" and number > (table := table_of(lines, number))[0]:  # the first one is the header
            cells = _cells(text)
            summed = any(_TOTAL.match(lines[n][1]) for n in table) or sum(map(_counts, cells[1:])) > 2
            found += [(number, cell) for cell in cells[1:] if cell and not (summed and _counts(cell))]
    return found


def table_of(lines: list[Line], number: int) -> range:
    """The numbers of the rows of the table that a row belongs to."""
    first = last = number
    while first and lines[first - 1][0] == "row":
        first -= 1
    while last + 1 < len(lines) and lines[last + 1][0] == "row":
        last += 1
    return range(first, last + 1)


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("|")]


def _counts(cell: str) -> bool:
    return any(c.isdigit() for c in cell)


def states(text: str, answer: str) -> bool:
    """Whether ``text`` holds the answer as words of their own, the last one with an ending or without: "Mondays"."""
    return answer in text and re.search(rf"(?<!\w){re.escape(answer)}(?!\d)", text) is not None


def without(r: Rng, lines: list[Line], number: int, missing: str) -> list[Line]:
    """The lines without a piece of one of them; an emptied field keeps its label, an emptied cell its row."""
    sort, text = lines[number]
    empty = (*EMPTY, *(() if any(_DASHED.search(line) for _, line in lines) else DASHES))
    if sort == "row":
        cells = _cells(text)
        cells[len(cells) - 1 - cells[::-1].index(missing)] = r.pick(empty)
        rest = " | ".join(cells)
    elif sort == "field" and r.chance(EMPTIED):
        rest = f"{_label(text)} = {r.pick(empty)}"
    else:
        rest = flat(text.replace(missing, "", 1)) if sort == "text" else ""
    return [*lines[:number], *([(sort, rest)] if rest else []), *lines[number + 1 :]]


def hide(
    r: Rng, title: str, lines: list[Line], questions: list[Question], count: int = 1
) -> tuple[list[Line], list[Question]] | None:
    """Leaves out what answers some of the questions.

    Questions whose answer stood there alone have none any more; they replace the document's own unanswerable ones, for
    they are harder. Whatever may rest on what is missing in another way is not asked: what is derived from the whole
    document, compares, is stated elsewhere or in part, names what is gone, or is told by a label beside it.

    Args:
        r: draws the pieces. title, lines, questions: a filled passage, as `Passage.fill` returns it.
        count: how many pieces at most.

    Returns:
        The lines that are left and the questions that hold for them, or None where no piece can be missed.
    """
    stated = (Question(_plain(q.wordings), q.answer) for q in questions if q.answer is not None and not q.derived)
    kept, opened = [q for q in stated if q.wordings], []
    for _ in range(count):
        before, parts = flattened(title, lines), pieces(lines)
        found = [
            (number, text)
            for number, text in parts
            if any(_says(lines[number][0], text, q.answer) and before.count(q.answer) == 1 for q in kept)
        ]
        if len(parts) < 3 or not found:
            break
        number, missing = r.pick(found)
        labels = _labels(lines, number, missing)
        lines = without(r, lines, number, missing)
        after = flattened(title, lines)
        opened += [Question(q.wordings, None) for q in kept if _gone(q.answer, missing, after)]
        lost = _telling(missing) - _telling(after)
        still = ((tuple(way for way in q.wordings if not lost & _telling(way)), q.answer) for q in kept)
        kept = [
            Question(ways, answer)
            for ways, answer in still
            if ways and before.count(answer) == after.count(answer) and not any(answer in label for label in labels)
        ]
    return (lines, [*kept, *opened]) if opened else None


def _label(field: str) -> str:
    return field.partition(" = ")[0]


def _labels(lines: list[Line], number: int, missing: str) -> list[str]:
    """Texts beside a piece that are told by it: "Who has the key?" is answered by the label of a field."""
    sort, text = lines[number]
    if sort == "field":
        return [_label(text)]
    if sort != "row":
        return []
    names = [_cells(lines[n][1])[0] for n in table_of(lines, number)]
    return [*names, *_cells(lines[table_of(lines, number)[0]][1]), *(c for c in _cells(text) if c != missing)]


def _says(sort: str, text: str, answer: str) -> bool:
    """Whether a piece says the answer: a field by its value, a cell by nothing else."""
    return text == answer if sort == "row" else states(text.partition(" = ")[2] if sort == "field" else text, answer)


def _gone(answer: str, missing: str, after: str) -> bool:
    """Whether what is missing told the answer, and nothing else does, not even by a first name."""
    return answer in flat(missing) and answer not in after and not (_names(answer) - _CALENDAR) & _names(after)


def _plain(wordings: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(way for way in wordings if not _COMPARED.search(way))


def _names(text: str) -> set[str]:
    """Words that begin with a capital, but for those that begin sentences."""
    return {word for word in _NAMING.findall(text) if word[0].isupper() and word.lower() not in _FUNCTION_WORDS}


def _telling(text: str) -> set[str]:
    """What a text is about: stems, names and numbers."""
    numbers = {word for word in _NAMING.findall(text) if _counts(word)}
    return (stems(text) - PLAIN) | {name.lower() for name in _names(text)} | numbers
