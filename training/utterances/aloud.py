"""Sentences read aloud: prose, short sentences of everyday words, and lists of words, to be written down word for word.

Only text is taken that is written as it is said: words of letters, hyphens and apostrophes, no figures, brackets,
abbreviations or names of programs. One sentence of :data:`HELD_EVERY` is kept for evaluation. The prose and the examples
are assets; ``talk.txt``, a sentence a line, has the words of ordinary talk that they lack (``coverage.py`` names them).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from training.office.passages import passages
from training.office.prose import paragraphs
from training.pages.values import FIRST_NAMES, MONTHS, WEEKDAYS, Rng, assets_dir, words
from training.utterances import QA, Utterance, question_for
from training.wordings import NOT_STATED

CHARACTERS_A_SECOND = 14.0  # of speech at a quick but usual rate
HELD_EVERY = 25
TALK = Path(__file__).with_name("talk.txt")
LISTS, EXAMPLES, TALKS = 0.15, 0.4, 0.2  # of texts; the others are prose
_SENTENCE = re.compile(r"[A-Z][A-Za-z',; -]*[a-z][.!?]")
_ODD = re.compile(r"[A-Z]{2}|[a-z][A-Z]|(?<![\w'])(?:[b-hj-z]|[B-HJ-Z])(?!\w)|''|' | '|^'|(?<!\w)-|-(?!\w)")
_SMALL = (
    "the and for you she was are a i am an as at be by do go he hi if in is it me my no of oh on or so to up us we class pass english debian linux unix "
    "don't doesn't didn't isn't aren't wasn't weren't can't couldn't won't wouldn't shouldn't haven't hasn't hadn't it's that's "
    "there's here's what's who's let's i'm you're we're they're i'll you'll we'll they'll he'll she'll i've you've we've they've "
    "i'd you'd we'd they'd he's she's o'clock mrs mr"
)
# what is asked about a sentence that surely does not say it
_OPEN = ("code", "phone", "platform", "degrees", "amount")
_ENDINGS = (
    ("'s", ""),
    ("s", ""),
    ("es", ""),
    ("ed", ""),
    ("ed", "e"),
    ("ing", ""),
    ("ing", "e"),
    ("ly", ""),
    ("er", ""),
)
_NUMBERS = re.compile(
    r"\b(?:codes?|numbers?|costs?|price|prices|free|degrees?|platforms?|phones?|call|pay|paid|euros?|pounds?|dollars?|cents?|pence|"
    r"zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty|hundreds?|thousands?|millions?|dozens?|half|quarter)\b"
)


def plain(text: str) -> str:
    """``text`` as transcripts have it: lower case, words of letters and apostrophes, single spaces."""
    return " ".join(re.sub(r"[^a-z0-9' ]", " ", text.lower().replace("’", "'")).split())


@lru_cache(None)
def _known() -> frozenset[str]:
    names = (w.lower() for w in (*FIRST_NAMES, *MONTHS, *WEEKDAYS))
    return frozenset((*words(), *_SMALL.split(), *names))


def sayable(sentence: str) -> bool:
    """Whether a sentence is written as it is said."""
    if not _SENTENCE.fullmatch(sentence) or _ODD.search(sentence):
        return False
    return all(map(_is_word, plain(sentence).split()))


def _is_word(word: str) -> bool:
    known = _known()
    if word in known or len(word) > 11:  # the list has words of up to 11 letters
        return True
    return any(word.endswith(end) and word[: -len(end)] + instead in known for end, instead in _ENDINGS)


def _texts() -> list[str]:
    """Paragraphs of the assets and of the written documents, those with their choices made, without quotation marks."""
    r, texts = Rng(0), list(paragraphs())
    for p in passages():
        choices = {f"{{{name}}}": r.pick(options) for name, options in p.choices.items()}
        for sort, text in p.lines:
            if sort == "text":
                texts.append(re.sub(r"\{\w+\}", lambda m, choices=choices: choices.get(m[0], m[0]), text))
    texts = [re.sub(r"(?<=\w)[’](?=\w)|(?<=s)[’](?= [a-z])", "'", text) for text in texts]
    return [re.sub(r" ?— ?", ", ", re.sub(r"[“”\"‘’]", "", text)) for text in texts]


@lru_cache(None)
def runs(held: bool = False) -> tuple[tuple[str, ...], ...]:
    """Sentences that follow one another in the prose and can be read aloud; ``held`` for those kept for evaluation."""
    found: list[tuple[str, ...]] = []
    for text in _texts():
        run: list[str] = []
        for sentence in re.split(r"(?<=[.!?])\s+", text):
            if _kept(sentence, held) and sayable(sentence):
                run.append(sentence)
            elif run:
                found.append(tuple(run))
                run = []
        if run:
            found.append(tuple(run))
    return tuple(found)


def _kept(sentence: str, held: bool) -> bool:
    return (zlib.crc32(sentence.encode()) % HELD_EVERY == 0) == held


@lru_cache(None)
def examples(held: bool = False) -> tuple[str, ...]:
    """Short sentences and phrases of the assets, around a word each; empty where they have none."""
    path = assets_dir() / "examples.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else ()
    return tuple(line for line in lines if not _ODD.search(line) and _kept(line, held))


@lru_cache(None)
def talk(held: bool = False) -> tuple[str, ...]:
    """Sentences of ordinary talk."""
    return tuple(line for line in TALK.read_text(encoding="utf-8").splitlines() if line and _kept(line, held))


@lru_cache(None)
def _around(held: bool) -> tuple[tuple[str, ...], ...]:
    """For every common word the examples that hold it; empty where the assets lack one of the two."""
    path = assets_dir() / "common.txt"
    common = dict.fromkeys(path.read_text(encoding="ascii").split()) if path.is_file() else ()
    holding: dict[str, list[str]] = {word: [] for word in common}
    for example in examples(held):
        for word in set(plain(example).split()) & holding.keys():
            holding[word].append(example)
    return tuple(tuple(found) for found in holding.values() if found)


def _example(r: Rng, held: bool) -> str:
    """Most of them around a common word, so that rare ones are heard too; talk in place of assets that are missing."""
    around = _around(held) if r.chance(0.7) else ()
    return r.pick(r.pick(around) if around else examples(held) or talk(held))


@lru_cache(None)
def _common() -> list[str]:
    path = assets_dir() / "common.txt"
    return [w for w in path.read_text(encoding="ascii").split() if len(w) > 2] if path.is_file() else words()


def _piece(r: Rng, sentence: str, longest: int) -> str:
    """Some words of a sentence that is too long, from its beginning or from behind a comma."""
    starts = [0, *(m.end() for m in re.finditer(r"[,;] ", sentence))]
    rest = sentence[r.pick(starts) :]
    return rest if len(rest) <= longest else rest[: longest + 1].rpartition(" ")[0].rstrip(",;") or rest.split()[0]


def _prose(r: Rng, longest: int, held: bool) -> str:
    text = ""
    while r.chance(0.9):
        run = r.pick(runs(held))
        for sentence in run[r.randint(0, len(run) - 1) :]:
            if len(text) + len(sentence) >= longest:
                return text or _piece(r, sentence, longest)
            text = f"{text} {sentence}".strip()
    return text or _prose(r, longest, held)


def _short(r: Rng, draw: Callable[[], str], longest: int) -> str:
    """Short sentences one after another."""
    text = ""
    while r.chance(0.9) or not text:
        sentence = draw()
        for _ in range(8):  # a sentence that is too long would lose the word it was drawn for
            if text or len(sentence) < longest:
                break
            sentence = draw()
        sentence = f"{sentence[0].upper()}{sentence[1:]}{'' if sentence[-1] in '.!?' else '.'}"
        if len(text) + len(sentence) >= longest:
            return text or _piece(r, sentence, longest)
        text = f"{text} {sentence}".strip()
    return text


def _word(r: Rng) -> str:
    return r.pick(words() if r.chance(0.4) else _common())


def _list(r: Rng, longest: int) -> str:
    text = _word(r)
    while r.chance(0.9):
        more = f"{text}{r.pick((' ', ' ', ', ', ', ', ' and ', ' or the ', ' of '))}{_word(r)}"
        if len(more) > longest:
            break
        text = more
    return text


def _text(r: Rng, longest: int, held: bool) -> str:
    """A list, talk, examples or prose, by their shares."""
    kind = r.random()
    if kind < LISTS:
        return _list(r, longest)
    if kind < LISTS + EXAMPLES:
        return _short(r, lambda: _example(r, held), longest)
    if kind < LISTS + EXAMPLES + TALKS or not runs(held):
        return _short(r, lambda: r.pick(talk(held)), longest)
    return _prose(r, longest, held)


def read_aloud(r: Rng, held: bool = False, seconds: float = 20.0) -> Utterance:
    """Prose, short sentences, or now and then a list of words, that take up to ``seconds`` to read.

    Args:
        held: sentences and wordings that training never shows.
    """
    longest = max(int(CHARACTERS_A_SECOND * seconds * r.uniform(0.5, 1.0)), 12)
    text = _text(r, longest, held)
    transcript = plain(text)
    missing: tuple[QA, ...] = ()
    if not _NUMBERS.search(transcript) and r.chance(0.3):
        key = r.pick(_OPEN)
        missing = (QA(key, question_for(r, key, held), NOT_STATED),)
    return Utterance(
        text, transcript, (QA("transcript", question_for(r, "transcript", held), transcript),), missing, "aloud"
    )
