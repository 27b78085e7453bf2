"""A document without one of its sentences, whose questions it then leaves open.

The same question about the same document is answered where the sentence stands and refused where it is missing, so
neither the answer nor the refusal can be known by heart: only what the page says decides.
"""

from __future__ import annotations

import re

from training.office.passages import Question
from training.pages.values import Rng

Line = tuple[str, str]
# A full stop, a space and a capital: abbreviations of one to three letters end no sentence.
_ENDS = re.compile(r"(?<=[^\W\d_]{4}[.!?])\s+(?=[A-Z\u00c0-\u00de\u201c\"])")
WHOLE = frozenset(("line", "item", "field"))  # lines that are left out whole


def pieces(lines: list[Line]) -> list[tuple[int, str]]:
    """What may be left out: sentences of paragraphs that have several, short lines, items and fields, each with the
    number of its line.
    """
    found = []
    for number, (sort, text) in enumerate(lines):
        if sort == "text":
            found += [(number, sentence) for sentence in _ENDS.split(text)]
        elif sort in WHOLE:
            found.append((number, text))
    return found


def flat(text: str) -> str:
    """The text in one line of single spaces."""
    return re.sub(r"\s+", " ", text).strip()


def states(text: str, answer: str) -> bool:
    """Whether ``text`` holds the answer as words of their own, the last one with an ending or without: "Mondays"."""
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\d)", text) is not None


def hide(r: Rng, title: str, lines: list[Line], questions: list[Question]) -> tuple[list[Line], list[Question]] | None:
    """Leaves out what answers one of the questions.

    Questions whose answer stood there alone have none any more; they replace the document's own unanswerable ones, for
    they are harder. What is derived from the whole document, or stated both there and elsewhere, or in part there, is
    not asked: it might rest on what is missing.

    Args:
        r: draws the sentence. title, lines, questions: a filled passage, as `Passage.fill` returns it.

    Returns:
        The lines that are left and the questions that hold for them, or None where no sentence can be missed.
    """
    stated = [q for q in questions if q.answer is not None and not q.derived]
    parts = pieces(lines)
    others = [title, *(text for sort, text in lines if sort != "text" and sort not in WHOLE)]
    whole = flat(" ".join([*others, *(text for _, text in parts)]))
    if len(parts) < 3:
        return None
    found = [
        part
        for part in parts
        if any(states(part[1], q.answer) and len(re.findall(re.escape(q.answer), whole)) == 1 for q in stated)
    ]
    if not found:
        return None
    number, missing = r.pick(found)
    sort, text = lines[number]
    rest = flat(text.replace(missing, "", 1)) if sort == "text" else ""
    left = [*lines[:number], *([(sort, rest)] if rest else []), *lines[number + 1 :]]
    missing = flat(missing)
    remaining = whole.replace(missing, "", 1)
    kept = []
    for q in stated:
        if q.answer in missing and q.answer not in remaining:
            kept.append(Question(q.wordings, None))
        # what stands in cells side by side is not in `whole`
        elif not states(missing, q.answer) and (q.answer in remaining or q.answer not in whole):
            kept.append(q)
    return left, kept
