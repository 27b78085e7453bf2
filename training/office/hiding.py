"""A document without some of its sentences or values, whose questions it then leaves open.

The same question about the same document is answered where the sentence stands and refused where it is missing, so
neither the answer nor the refusal can be known by heart: only what the page says decides. Fields and cells of tables
may stay, with nothing in them, as forms and lists have them.
"""

from __future__ import annotations

import re

from training.office.passages import Question
from training.pages.values import Rng

Line = tuple[str, str]
# A full stop, a space and a capital: abbreviations of one to three letters end no sentence.
_ENDS = re.compile(r"(?<=[^\W\d_]{4}[.!?])\s+(?=[A-Z\u00c0-\u00de\u201c\"])")
_NAMING = re.compile(r"[^\W_][\w'-]*")
WHOLE = frozenset(("line", "item", "field"))  # lines that are left out whole
EMPTIED = 0.6  # of fields: the label stays
# what stands where nothing was entered
EMPTY = (
    "-", "-", "--", "\u2013", "/", "________", "________", "..........", "n/a", "N/A", "not given", "none given",
    "to be announced", "to be confirmed", "tbc", "tba", "open", "not yet known", "will follow", "not decided yet", "?",
)  # fmt: skip


def pieces(lines: list[Line]) -> list[tuple[int, str]]:
    """What may be left out: sentences of paragraphs that have several, short lines, items, fields and cells of tables
    that say something, each with the number of its line.
    """
    found = []
    for number, (sort, text) in enumerate(lines):
        if sort == "text":
            found += [(number, sentence) for sentence in _ENDS.split(text)]
        elif sort in WHOLE:
            found.append((number, text))
        elif sort == "row" and number and lines[number - 1][0] == "row":  # the first one is the header
            found += [(number, cell) for cell in _cells(text)[1:] if cell]
    return found


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("|")]


def flat(text: str) -> str:
    """The text in one line of single spaces."""
    return re.sub(r"\s+", " ", text).strip()


def whole(title: str, lines: list[Line]) -> str:
    """What stands on the page, cells and values behind those before them."""
    return flat(" ".join([title, *(text.replace(" | ", " ") if sort == "row" else text for sort, text in lines)]))


def states(text: str, answer: str) -> bool:
    """Whether ``text`` holds the answer as words of their own, the last one with an ending or without: "Mondays"."""
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\d)", text) is not None


def without(r: Rng, lines: list[Line], number: int, missing: str) -> list[Line]:
    """The lines without a piece of one of them; an emptied field keeps its label, an emptied cell its row."""
    sort, text = lines[number]
    if sort == "row":
        cells = _cells(text)
        cells[len(cells) - 1 - cells[::-1].index(missing)] = r.pick(EMPTY)
        rest = " | ".join(cells)
    elif sort == "field" and r.chance(EMPTIED):
        rest = f"{text.partition(' = ')[0]} = {r.pick(EMPTY)}"
    else:
        rest = flat(text.replace(missing, "", 1)) if sort == "text" else ""
    return [*lines[:number], *([(sort, rest)] if rest else []), *lines[number + 1 :]]


def hide(
    r: Rng, title: str, lines: list[Line], questions: list[Question], count: int = 1
) -> tuple[list[Line], list[Question]] | None:
    """Leaves out what answers some of the questions.

    Questions whose answer stood there alone have none any more; they replace the document's own unanswerable ones, for
    they are harder. What is derived from the whole document, or stated both there and elsewhere, or in part there, is
    not asked: it might rest on what is missing. Nor are wordings that name somebody or something that is gone.

    Args:
        r: draws the pieces. title, lines, questions: a filled passage, as `Passage.fill` returns it.
        count: how many pieces at most.

    Returns:
        The lines that are left and the questions that hold for them, or None where no piece can be missed.
    """
    kept, opened = [q for q in questions if q.answer is not None and not q.derived], []
    for _ in range(count):
        before, parts = whole(title, lines), pieces(lines)
        found = [
            (number, text)
            for number, text in parts
            if any(_alone(lines[number][0], text, q.answer) and before.count(q.answer) == 1 for q in kept)
        ]
        if len(parts) < 3 or not found:
            break
        number, missing = r.pick(found)
        lines = without(r, lines, number, missing)
        after = whole(title, lines)
        opened += [Question(q.wordings, None) for q in kept if q.answer in flat(missing) and q.answer not in after]
        gone = _names(missing) - _names(after)
        still = [(q, tuple(way for way in q.wordings if not gone & _names(way))) for q in kept]
        kept = [
            Question(ways, q.answer) for q, ways in still if ways and before.count(q.answer) == after.count(q.answer)
        ]
    return (lines, [*kept, *opened]) if opened else None


def _alone(sort: str, text: str, answer: str) -> bool:
    """Whether a piece says the answer: a cell is nothing else."""
    return text == answer if sort == "row" else states(text, answer)


def _names(text: str) -> set[str]:
    """Words that begin with a capital or have a digit."""
    return {word for word in _NAMING.findall(text) if word[0].isupper() or any(c.isdigit() for c in word)}
