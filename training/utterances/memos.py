"""Whole voice memos written out in text files, with blanks for whatever varies, and questions about them.

    python -m training.utterances.memos FILE...        # what is wrong with it, how much is in it, samples with --show 2

The files of ``texts/`` have the format of :mod:`training.office.passages`: ``## kind | subject`` and lines of speech, then
``Q:`` a question in several wordings, ``A:`` its answer, words of the memo, ``D:`` an answer in other words, ``N:`` a
question that the memo does not answer. Blanks of :data:`BLANKS` have a spoken form, which the recording and the transcript
have, and a written one for questions and answers; ``{pet:cat/dog}`` is a choice that ``{pet}`` repeats. The last of four
or more wordings of a question is kept for evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from training.manners import typed, typed_held
from training.office.passages import Name, Passage, check_files, parse
from training.pages.values import CITIES, COLOURS, FIRST_NAMES, LAST_NAMES, MONTHS, STREETS, WEEKDAYS, Rng
from training.utterances import QA, Utterance, question_for
from training.utterances.aloud import plain
from training.utterances.free import ABOUT, wording
from training.utterances.numbers import say_code, say_number
from training.utterances.slots import ORDINALS, SLOTS, Spoken
from training.wordings import NOT_STATED

FOLDER = Path(__file__).with_name("texts")
UNITS = ("dollars", "dollars", "euros", "pounds")
BEGINNINGS = (
    "um",
    "uh",
    "okay",
    "so",
    "right",
    "well",
    "okay so",
    "uh, so",
    "um, yeah",
    "yeah",
    "alright",
    "let me see",
)
HESITATIONS = (
    "um",
    "uh",
    "er",
    "so",
    "well",
    "you know",
    "I mean",
    "okay",
    "let me think",
    "what was it",
    "yeah",
    "right",
)
_PAGES = re.compile(r"\b(?:page|document|picture|image|file|read|see|written|look\w*|here)\b", re.I)
_BLANK = re.compile(r"\{(\w+?)(\d*)(?:\.(first|last))?\}")


def _same(value: str) -> Spoken:
    return Spoken(value, value)


def _from(options: Sequence[str]) -> Callable[[Rng, str], Spoken]:
    return lambda r, unit: _same(r.pick(options))


def _number(low: int, high: int, step: int = 1) -> Callable[[Rng, str], Spoken]:
    def draw(r: Rng, unit: str) -> Spoken:
        n = r.randint(low, high) * step
        return Spoken(say_number(n), str(n))

    return draw


def _amount(*ranges: tuple[int, int, int]) -> Callable[[Rng, str], Spoken]:
    def draw(r: Rng, unit: str) -> Spoken:
        low, high, step = r.pick(ranges)
        n = r.randint(low, high) * step
        return Spoken(f"{say_number(n)} {unit}", f"{n} {unit}")

    return draw


def _year(r: Rng, unit: str) -> Spoken:
    n = r.randint(1950, 1999)
    return Spoken(f"nineteen {say_number(n - 1900)}", str(n))


def _date(r: Rng, unit: str) -> Spoken:
    n, month = r.randint(1, 28), r.pick(MONTHS)
    ordinal = ORDINALS[n - 1].replace("-", " ")
    return Spoken(r.pick((f"the {ordinal} of {month}", f"{month} {ordinal}", f"{month} the {ordinal}")), f"{month} {n}")


def _code(r: Rng, unit: str) -> Spoken:
    code = "".join(r.pick("ABCDEFGHJKLMNPRSTUVWXYZ") for _ in range(r.randint(0, 2)))
    code += "".join(str(r.randint(0, 9)) for _ in range(r.randint(3, 5)))
    return Spoken(say_code(code), code)


BLANKS: dict[str, Callable[[Rng, str], Spoken]] = {
    "p": lambda r, unit: _same(f"{r.pick(FIRST_NAMES)} {r.pick(LAST_NAMES)}"),
    "name": _from(FIRST_NAMES),
    "last": _from(LAST_NAMES),
    "town": _from(CITIES),
    "street": lambda r, unit: _same(f"{r.pick(STREETS)} {r.pick(('Street', 'Road', 'Lane', 'Avenue', 'Square'))}"),
    "day": _from(WEEKDAYS),
    "date": _date,
    "month": _from(MONTHS),
    "year": _year,
    "time": lambda r, unit: SLOTS["time"](r),
    "colour": _from(COLOURS),
    "tiny": _amount((2, 15, 1)),
    "amount": _amount((16, 99, 1), (2, 20, 10), (11, 90, 10), (100, 990, 1)),
    "large": _amount((10, 95, 100), (2, 60, 1000)),
    "k": _number(2, 9),
    "n": _number(10, 40),
    "m": _number(41, 99),
    "h": _number(2, 19, 50),
    "phone": lambda r, unit: SLOTS["phone"](r),
    "code": _code,
    "nth": _from(ORDINALS[1:9]),
}


class _Filler(dict):
    """Values of blanks, drawn when first used; no value stands for two blanks of one memo."""

    def __init__(self, r: Rng, choices: dict[str, list[str]]) -> None:
        super().__init__()
        self.r, self.choices, self.unit = r, choices, r.pick(UNITS)

    def __missing__(self, key: str) -> Spoken:
        taken = {word for value in self.values() for word in (value.answer, *value.answer.split())}
        for _ in range(40):
            if key in self.choices:
                option = self.r.pick(self.choices[key])
                value = Spoken(*(option.format_map(_Form(self, form)) for form in Spoken._fields))
            else:
                value = BLANKS[key.rstrip("0123456789")](self.r, self.unit)
            if value.answer not in taken and not (key[0] == "p" and set(value.answer.split()) & taken):
                break
        self[key] = value
        return value


class _Form(dict):
    """One form of a filler's values, ``spoken`` or ``answer``."""

    def __init__(self, filler: _Filler, form: str) -> None:
        super().__init__()
        self.filler, self.form = filler, form

    def __missing__(self, key: str) -> Name:
        return Name(getattr(self.filler[key], self.form))


def _article(text: str) -> str:
    return re.sub(r"\b([Aa]) (?=[aeio](?!ne\b|nce\b)|u[^nst]|un[^i]|eight)", r"\1n ", text)


def _hesitate(r: Rng, sentences: list[str]) -> str:
    """Sentences joined, with the fillers and repeated words of free speech."""
    out = []
    for i, sentence in enumerate(sentences):
        first = sentence.split()[0]
        if i and r.chance(0.1):
            sentence = f"{r.pick(HESITATIONS).capitalize()}, {sentence}"
        elif first.isalpha() and len(first) < 5 and r.chance(0.05):
            sentence = f"{first}, {sentence}"
        out.append(sentence)
    return " ".join(out)


def _asked(r: Rng, question: str, held: bool) -> str:
    """``question`` as somebody might type it, in a manner that suits a recording."""
    shown = (typed_held if held else typed)(r, question)
    return shown if len(_PAGES.findall(shown)) == len(_PAGES.findall(question)) else question


def _holds(text: str, part: str) -> bool:
    return f" {plain(part)} " in f" {plain(text)} "


@lru_cache(None)
def memos() -> tuple[Passage, ...]:
    """All memos of the folder."""
    return tuple(m for file in sorted(FOLDER.glob("*.txt")) for m in parse(file.read_text(encoding="utf-8"), file.name))


def _sentences(memo: Passage) -> list[str]:
    return re.split(r"(?<=[.!?]) ", " ".join(text for _, text in memo.lines))


@lru_cache(None)
def _lengths() -> tuple[tuple[int, ...], ...]:
    """Words up to the end of each sentence of each memo, blanks counted as two."""
    counts = []
    for memo in memos():
        sizes = [len(s.split()) + s.count("{") for s in _sentences(memo)]
        counts.append(tuple(sum(sizes[: i + 1]) for i in range(len(sizes))))
    return tuple(counts)


def memo_of(r: Rng, memo: Passage, held: bool = False, words: float = 1000.0) -> Utterance:
    """``memo`` filled: its first sentences of about that many words, and the questions that they answer."""
    filler = _Filler(r, memo.choices)
    spoken, written = _Form(filler, "spoken"), _Form(filler, "answer")
    sentences = [_article(s.format_map(spoken)) for s in _sentences(memo)]
    while len(sentences) > 1 and sum(len(s.split()) for s in sentences) > words:
        sentences.pop()
    said = " ".join(sentences)
    text = _hesitate(r, sentences)
    if r.chance(0.25):
        text = f"{r.pick(BEGINNINGS).capitalize()}, {text}"
    whole = len(sentences) == len(_sentences(memo))
    qa, missing = [], []
    for q in memo.questions:
        ask = _asked(r, _article(wording(r, list(q.wordings), held).format_map(written)), held)
        if q.answer is None:
            missing.append(QA("absent", ask, NOT_STATED))
        elif whole or (not q.derived and _holds(said, _article(q.answer.format_map(spoken)))):
            qa.append(QA(memo.kind, ask, _article(q.answer.format_map(written))))
    r.shuffle(missing)
    if whole and r.chance(0.2):
        qa.append(QA("topic", wording(r, ABOUT, held), memo.title.format_map(written)))
    transcript = plain(text)
    qa.append(QA("transcript", question_for(r, "transcript", held), transcript))
    return Utterance(text, transcript, tuple(qa), tuple(missing), f"memo_{memo.kind}")


def written_memo(r: Rng, held: bool = False, seconds: float = 20.0) -> Utterance:
    """A memo of ``texts/`` that can be said within ``seconds``, the end left out where it is too long.

    Args:
        held: ask with the wordings that training never shows, where there are such.
    """
    words = r.uniform(2.1, 2.7) * seconds
    for _ in range(200):
        at = r.randint(0, len(memos()) - 1)
        whole = _lengths()[at][-1]
        if whole < 0.6 * words and r.chance(0.6):
            continue  # long recordings have long memos, mostly
        # at least half of a memo, so that little is asked about openings only
        if any(0.5 * whole <= n <= words for n in _lengths()[at]):
            return memo_of(r, memos()[at], held, words)
    return memo_of(r, r.pick(memos()), held, words)


def faults(memo: Passage, seeds: Sequence[int] = range(6)) -> list[str]:
    """What is wrong with a memo, found by filling it a few times."""
    found = []
    every = [memo.title, *(text for _, text in memo.lines)]
    every += [option for options in memo.choices.values() for option in options]
    every += [text for q in memo.questions for text in (*q.wordings, q.answer or "")]
    for match in (m for text in every for m in _BLANK.finditer(text)):
        if match[1] + match[2] not in memo.choices and match[1] not in BLANKS:
            found.append(f"unknown blank {match[0]}")
    if {sort for sort, _ in memo.lines} != {"text"} or not any(q.answer is None for q in memo.questions):
        found.append("a memo has lines of speech, questions and one that it does not answer")
    for q in memo.questions:
        if not 2 <= len(q.wordings) == len(set(q.wordings)):
            found.append(f"too few wordings or one twice: {q.wordings}")
    for seed in () if found else seeds:
        r, filler = Rng(seed), _Filler(Rng(seed), memo.choices)
        spoken, written = _Form(filler, "spoken"), _Form(filler, "answer")
        said = _article(" ".join(_sentences(memo)).format_map(spoken))
        if re.search(r"[0-9(){}\[\]/:;*&%$€£]|[A-Z]{2}", said):
            found.append(f"not written as it is said: {said}")
        if not 15 <= len(said.split()) <= 90:
            found.append(f"{len(said.split())} words")
        for q in memo.questions:
            for ways in q.wordings:
                ways.format_map(written)
            if q.answer is not None and not q.derived and not _holds(said, _article(q.answer.format_map(spoken))):
                found.append(f"not in the memo: {q.answer!r} ({q.wordings[0]})")
            if q.answer is not None and len(q.answer.split()) > 12:
                found.append(f"a long answer: {q.answer!r}")
        memo_of(r, memo)
    return [f"{memo.where}: {text}" for text in dict.fromkeys(found)]


def show(memo: Passage, seed: int) -> str:
    """A memo as it is spoken and written, and its questions."""
    filled = memo_of(Rng(seed), memo)
    questions = (f"   {qa.question} -> {qa.answer}" for qa in (*filled.qa, *filled.unanswerable))
    return "\n".join([f"== {memo.kind}: {filled.text}", f"   {filled.transcript}", *questions])


if __name__ == "__main__":
    check_files("training.utterances.memos", __doc__, faults, show)
