"""Sentences read aloud: the assets' prose, and lists of words, to be written down word for word.

Only text is taken that is written as it is said: words of letters, hyphens and apostrophes, no figures, brackets,
abbreviations or names of programs. One sentence of :data:`HELD_EVERY` is kept for evaluation.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache

from training.office.passages import passages
from training.office.prose import paragraphs
from training.pages.values import FIRST_NAMES, MONTHS, WEEKDAYS, Rng, words
from training.utterances import QA, Utterance, question_for
from training.wordings import NOT_STATED

CHARACTERS_A_SECOND = 14.0  # of speech at a quick but usual rate
HELD_EVERY = 25
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
            kept = zlib.crc32(sentence.encode()) % HELD_EVERY == 0
            if kept == held and sayable(sentence):
                run.append(sentence)
            elif run:
                found.append(tuple(run))
                run = []
        if run:
            found.append(tuple(run))
    return tuple(found)


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


def _list(r: Rng, longest: int) -> str:
    text = r.pick(words())
    while r.chance(0.9):
        more = f"{text}{r.pick((' ', ' ', ', ', ', ', ' and ', ' or the ', ' of '))}{r.pick(words())}"
        if len(more) > longest:
            break
        text = more
    return text


def read_aloud(r: Rng, held: bool = False, seconds: float = 20.0) -> Utterance:
    """Prose, or now and then a list of words, that takes up to ``seconds`` to read.

    Args:
        held: sentences and wordings that training never shows.
    """
    longest = max(int(CHARACTERS_A_SECOND * seconds * r.uniform(0.5, 1.0)), 12)
    text = _list(r, longest) if not runs(held) or r.chance(0.2) else _prose(r, longest, held)
    transcript = plain(text)
    missing: tuple[QA, ...] = ()
    if not _NUMBERS.search(transcript) and r.chance(0.3):
        key = r.pick(_OPEN)
        missing = (QA(key, question_for(r, key, held), NOT_STATED),)
    return Utterance(
        text, transcript, (QA("transcript", question_for(r, "transcript", held), transcript),), missing, "aloud"
    )
