"""Documents written out in text files, with blanks for whatever varies, and their questions.

    python -m training.office.passages FILE...        # what is wrong with it, how much is in it, samples with --show 2

A file of ``texts/`` holds many documents; those of ``texts/held/`` are kept out of training, so that answers about them
show what a model makes of documents that it has not met. One begins with ``## kind | title`` and goes on line by line:

=================== ==============================================================
``text``            a paragraph
``> text``          a short line of its own: a name, an address, a place and date
``# text``          the heading of a section
``- text``          an item of a list
``label = value``   a labelled value; ``=`` with a space on both sides
``| a | b | c``     a row of a table, the header first
``% form u | a = 3`` a chart (bar, column, line, pie), its unit, all its labels with values
``Q: a | b | c``    a question in several wordings
``A: text``         its answer, which stands in the document letter for letter
``D: text``         its answer where the document does not say it in these words: a count, a sum, "Yes"
``N: a | b``        questions, or wordings of one, that the document does not answer
``S: text``         what the document is about, in a sentence that holds whatever fills the blanks
=================== ==============================================================

Blanks stand in braces everywhere: ``{p}`` a person, ``{town}``, ``{date}`` and so on (:data:`BLANKS`). Digits behind a
name tell several apart (``{p1}``, ``{p2}``), ``{p1.first}`` and ``{p1.last}`` are parts of a name, and
``{pet:cat/dog/a parrot from {town}}`` is a choice that ``{pet}`` repeats.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from training.office.document import KIND_ASKED, SUMMARISE
from training.office.values import Dates, Money, person, town
from training.pages import values as v
from training.pages.canvas import classes_of
from training.pages.values import Rng

WRITTEN = "passage"  # the kind of pages that set a document of these files
FORMS = ("bar", "column", "line", "pie")
FOLDER = Path(__file__).with_name("texts")
SPREAD = 0.8  # power of a subject's number of passages: below 1, passages of large subjects are drawn less often
LONG = 800  # mean characters of a subject that is drawn twice as often as one of short passages
WORDS = "two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty fifty".split()
LONGEST, LONGEST_SUMMARY = 24, 40  # words of an answer
TINY = "two three four five six seven eight nine".split()
_CHOICE = re.compile(r"\{(\w+):((?:[^{}]|\{[^{}]*\})*)\}")
_BLANK = re.compile(r"\{(\w+?)(\d*)(?:\.(first|last))?\}")


class Name(str):
    """A person's name with its parts."""

    @property
    def first(self) -> str:
        return self.partition(" ")[0]

    @property
    def last(self) -> str:
        return self.partition(" ")[2]


def _pick(options: Sequence[str]) -> Callable[[Rng, Dates, Money], str]:
    return lambda r, dates, money: r.pick(options)


def _number(low: int, high: int) -> Callable[[Rng, Dates, Money], str]:
    return lambda r, dates, money: str(r.randint(low, high))


def _amount(low: int, high: int) -> Callable[[Rng, Dates, Money], str]:
    return lambda r, dates, money: money(money.round(r, low, high))


BLANKS: dict[str, Callable[[Rng, Dates, Money], str]] = {
    "p": lambda r, dates, money: Name(person(r)),
    "name": lambda r, dates, money: v.name_word(r),
    "town": lambda r, dates, money: town(r),
    "country": lambda r, dates, money: v.country(r),
    "street": lambda r, dates, money: v.street(r),
    "postcode": lambda r, dates, money: v.postcode(r),
    "firm": lambda r, dates, money: v.company(r).rstrip("."),
    "date": lambda r, dates, money: dates.date(),
    "time": lambda r, dates, money: dates.time(),
    "year": _number(1780, 2031),
    "weekday": _pick(v.WEEKDAYS),
    "month": _pick(v.MONTHS),
    "colour": _pick(v.COLOURS),
    "language": _pick(v.LANGUAGES),
    "money": _amount(60, 900),
    "small": _amount(1, 30),
    "large": _amount(2000, 900000),
    "k": _number(2, 9),
    "m": _number(11, 39),
    "n": _number(41, 980),
    "thousands": lambda r, dates, money: f"{r.randint(1, 89)},{r.randint(100, 999)}",
    "word": _pick(TINY),
    "words": _pick(WORDS),
    "percent": lambda r, dates, money: f"{r.randint(3, 97)}{r.pick((' %', '%', '%', ' percent'))}",
    "code": lambda r, dates, money: v.code(r),
    "digits": lambda r, dates, money: v.digits(r, r.randint(4, 8)),
    "phone": lambda r, dates, money: v.phone(r),
    "email": lambda r, dates, money: v.email(r),
    "website": lambda r, dates, money: v.website(r),
}  # fmt: skip


class Filler(dict):
    """Values of blanks, drawn when first used; no value stands for two blanks of one document."""

    def __init__(self, r: Rng, choices: dict[str, list[str]]) -> None:
        super().__init__()
        self.r, self.choices, self.dates, self.money = r, choices, Dates(r), Money(r)
        self.first_day = datetime.date(r.randint(2015, 2030), r.randint(1, 12), r.randint(1, 28))
        self.days = r.randint(3, 45)  # from a date to the next

    def __missing__(self, key: str) -> str:
        known = [str(value) for value in self.values()]
        for _ in range(40):
            kind = key.rstrip("0123456789")
            if key in self.choices:
                value = self.r.pick(self.choices[key]).format_map(self)
            elif kind == "date":
                value = self.date(int(key[4:] or 1))
            else:
                value = BLANKS[kind](self.r, self.dates, self.money)
            parts = value.split() if isinstance(value, Name) else [value]
            if not any(part == other or part in other.split() for part in parts for other in known):
                break
        self[key] = value
        return value

    def date(self, number: int) -> str:
        """The date of a blank: those of one document follow one another in the order of their digits."""
        day = self.first_day + datetime.timedelta(days=self.days * (number - 1) + self.r.randint(0, 2))
        return self.dates.date(day.year, day.month, day.day)


@dataclass(frozen=True)
class Question:
    """A question in several wordings; ``answer`` is None where the document does not say."""

    wordings: tuple[str, ...]
    answer: str | None
    derived: bool = False

    @property
    def summarises(self) -> bool:
        """Whether it asks what the document is about."""
        return self.wordings == SUMMARISE


@dataclass(frozen=True)
class Passage:
    """A document: lines of (sort, text), sort being text, line, head, item, field, row or chart."""

    kind: str
    title: str
    lines: tuple[tuple[str, str], ...]
    questions: tuple[Question, ...]
    choices: dict[str, list[str]] = field(default_factory=dict, hash=False, compare=False)
    where: str = ""

    @cached_property
    def length(self) -> int:
        """Characters of the text, blanks as they are written."""
        return len(self.title) + sum(len(text) + 12 for _, text in self.lines)

    def fill(self, r: Rng) -> tuple[str, list[tuple[str, str]], list[Question]]:
        """Title, lines and questions with their blanks filled."""
        filler = Filler(r, self.choices)
        put = lambda text: text.format_map(filler)  # noqa: E731
        title, lines = put(self.title), [(sort, put(text)) for sort, text in self.lines]
        asks = [
            Question(tuple(map(put, q.wordings)), None if q.answer is None else put(q.answer), q.derived)
            for q in self.questions
        ]
        return title, lines, asks


_SORTS = (("> ", "line"), ("# ", "head"), ("- ", "item"), ("| ", "row"), ("% ", "chart"))


def _line(text: str) -> tuple[str, str]:
    for mark, sort in _SORTS:
        if text.startswith(mark):
            return sort, text[len(mark) :].strip()
    return ("field", text) if " = " in text and len(text.partition(" = ")[0]) <= 40 else ("text", text)


def chart_of(text: str) -> tuple[str, str, list[str], list[float]]:
    """Form, unit, labels and values of a chart's line.

    Raises:
        ValueError: another form, fewer than three values, or a value that is no number.
    """
    head, *entries = (part.strip() for part in text.split("|"))
    form, _, unit = head.partition(" ")
    pairs = [entry.rpartition("=") for entry in entries]
    if form not in FORMS or len(pairs) < 3:
        raise ValueError(f"no chart of three values or more in one of the forms {', '.join(FORMS)}: {text}")
    try:
        return form, unit.strip(), [label.strip() for label, _, _ in pairs], [float(value) for _, _, value in pairs]
    except ValueError:
        raise ValueError(f"a value of the chart is no number: {text}") from None


def parse(source: str, where: str = "") -> list[Passage]:
    """Passages of one file's text.

    Raises:
        ValueError: an answer without a question, a question without an answer, or braces that do not match.
    """
    passages = []
    for number, chunk in enumerate(re.split(r"^## ", source, flags=re.M)[1:], 1):
        choices: dict[str, list[str]] = {}

        def choose(match: re.Match, choices: dict[str, list[str]] = choices) -> str:
            choices.setdefault(match[1], [option.strip() for option in match[2].split("/")])
            return "{" + match[1] + "}"

        head, *rest = [line.strip() for line in _CHOICE.sub(choose, chunk).splitlines() if line.strip()]
        kind, _, title = (part.strip() for part in head.partition("|"))
        lines, questions, open_question = [], [], None
        place = f"{where}: passage {number}, {title!r}"
        for text in rest:
            mark, body = text[:2], text[2:].strip()
            if mark in ("A:", "D:"):
                if open_question is None:
                    raise ValueError(f"{place}: an answer without a question: {body}")
                questions.append(Question(open_question, body, mark == "D:"))
                open_question = None
                continue
            if open_question is not None:
                raise ValueError(f"{place}: no answer to {open_question[0]}")
            ways = tuple(way.strip() for way in body.split("|") if way.strip())
            if mark == "Q:":
                open_question = ways
            elif mark == "N:":
                questions.append(Question(ways, None))
            elif mark == "S:":
                questions.append(Question(SUMMARISE, body, derived=True))
            else:
                lines.append(_line(text))
        if open_question is not None:
            raise ValueError(f"{place}: no answer to {open_question[0]}")
        passages.append(Passage(kind, title, tuple(lines), tuple(questions), choices, place))
    return passages


@lru_cache(None)
def passages(held: bool = False) -> tuple[Passage, ...]:
    """All passages of the folder, or those kept out of training."""
    files = sorted((FOLDER / "held" if held else FOLDER).glob("*.txt"))
    return tuple(p for file in files for p in parse(file.read_text(encoding="utf-8"), file.name))


@lru_cache(None)
def subjects(held: bool = False) -> dict[str, tuple[Passage, ...]]:
    """Passages by subject, which is a file's name without its number."""
    found: dict[str, list[Passage]] = {}
    for passage in passages(held):
        found.setdefault(passage.where.partition(".")[0].rstrip("0123456789"), []).append(passage)
    return {name: tuple(group) for name, group in found.items()}


@lru_cache(None)
def weights(held: bool = False) -> dict[str, float]:
    """How often a subject is drawn: a little less than by what it has, so that many documents of one sort do not drown
    the others, and more often if its passages are long, which few are.
    """
    groups = subjects(held)
    length = {name: sum(passage.length for passage in group) / len(group) for name, group in groups.items()}
    return {name: len(group) ** SPREAD * (1 + length[name] / LONG) for name, group in groups.items()}


def draw(r: Rng, held: bool = False) -> Passage:
    """A passage, of a subject drawn by :func:`weights`; one kept out of training if ``held``."""
    return r.pick(subjects(held)[r.choices(list(weights(held)), list(weights(held).values()))[0]])


def flat(text: str) -> str:
    """The text in one line of single spaces."""
    return re.sub(r"\s+", " ", text).strip()


def flattened(title: str, lines: Sequence[tuple[str, str]]) -> str:
    """All texts of a document in one line, the cells of a row side by side, empty ones left out."""
    texts = (re.sub(r"\s*\|[\s|]*", " ", text) if sort in ("row", "chart") else text for sort, text in lines)
    return flat(" ".join([title, *texts]))


def faults(passage: Passage, seeds: Sequence[int] = range(6)) -> list[str]:
    """What is wrong with a passage, found by filling it a few times."""
    found = []
    every = [passage.title, *(text for _, text in passage.lines)]
    every += [option for options in passage.choices.values() for option in options]
    every += [text for q in passage.questions for text in (*q.wordings, q.answer or "")]
    for match in (m for text in every for m in _BLANK.finditer(text)):
        if match[1] + match[2] not in passage.choices and match[1] not in BLANKS:
            found.append(f"unknown blank {match[0]}")
    if not passage.lines or not passage.questions:
        found.append("no text or no question")
    for sort, rows in groupby(passage.lines, key=itemgetter(0)):
        if sort == "row" and len({text.count("|") for _, text in rows}) > 1:
            found.append("rows of a table with more cells than others")
    for text in every:
        try:
            classes_of(text)
        except ValueError as error:
            found.append(str(error))
    for seed in () if found else seeds:
        try:
            title, lines, asks = passage.fill(Rng(seed))
        except (AttributeError, IndexError, KeyError, ValueError) as error:
            return [f"{passage.where}: {error!r}"]
        try:
            charts = [chart_of(text) for sort, text in lines if sort == "chart"]
        except ValueError as error:
            return [f"{passage.where}: {error}"]
        shown = [
            f"{label} {value:g}" for _, _, labels, values in charts for label, value in zip(labels, values, strict=True)
        ]
        whole = flattened(title, [*lines, *(("chart", text) for text in shown)])
        for q in asks:
            if q.answer is not None and not q.derived and q.answer not in whole:
                found.append(f"not in the text: {q.answer!r} ({q.wordings[0]})")
            longest = LONGEST_SUMMARY if q.summarises else LONGEST
            if q.answer is not None and len(q.answer.split()) > longest:
                found.append(f"a long answer: {q.answer!r}")
            if not q.summarises and (any_page := {*KIND_ASKED, *SUMMARISE}.intersection(q.wordings)):
                found.append(f"a wording that any page is asked: {any_page}")
            if len(q.wordings) < 2:
                found.append(f"only one wording: {q.wordings}")
            if len(set(q.wordings)) < len(q.wordings):
                found.append(f"a wording twice: {q.wordings}")
    return [f"{passage.where}: {text}" for text in dict.fromkeys(found)]


def show(passage: Passage, seed: int) -> str:
    """A passage with its blanks filled, and its questions."""
    title, lines, asks = passage.fill(Rng(seed))
    questions = (f"   {' | '.join(q.wordings)} -> {q.answer}" for q in asks)
    return "\n".join([f"== {passage.kind}: {title}", *(text for _, text in lines), *questions])


def check_files(
    module: str, about: str, faults: Callable[[Passage], list[str]], show: Callable[[Passage, int], str]
) -> None:
    """The command line of ``module``: says what is wrong with files and how much is in them, and shows samples."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about.split("\n\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--show", type=int, default=0, help="so many entries of each file, filled")
    args, bad = parser.parse_args(), 0
    for file in args.files:
        try:
            known = parse(file.read_text(encoding="utf-8"), file.name)
        except ValueError as error:
            sys.exit(str(error))
        wrong = [text for passage in known for text in faults(passage)]
        bad += len(wrong)
        asks = [q for passage in known for q in passage.questions]
        print("\n".join(wrong) or f"{file.name}: nothing wrong")
        print(
            f"{file.name}: {len(known)} entries, {sum(q.answer is not None for q in asks)} questions with "
            f"{sum(len(q.wordings) for q in asks)} wordings, {sum(q.answer is None for q in asks)} unanswerable"
        )
        for seed, passage in enumerate(known[: args.show]):
            print(f"\n{show(passage, seed)}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    check_files("training.office.passages", __doc__, faults, show)
