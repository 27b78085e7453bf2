"""What the recordings say and what can be asked about them.

An utterance is one sentence pattern, or a memo of up to four, with slots ("{who}", "{time}", "{amount}") that are filled
at random. Every filled slot is a fact with a spoken form ("half past nine") and an answer ("9:30"). Questions come from
``questions.QUESTIONS``: wordings of training and wordings held out, which use the same words in other ways.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from training.pages.values import Rng
from training.utterances.patterns import MEMOS, SHORT
from training.utterances.questions import QUESTIONS
from training.utterances.slots import SLOTS
from training.utterances.words import ADJECTIVES, NOUNS, PLACES, SAYINGS, VERBS
from training.wordings import NOT_STATED

FIRST_WORDS = "first words"  # key of what is said before anything is asked about a recording


class QA(NamedTuple):
    """A question about a recording. ``key`` is one of ``QUESTIONS``, or ``FIRST_WORDS``."""

    key: str
    question: str
    answer: str


@dataclass(frozen=True)
class Utterance:
    """What to speak, and what can be asked.

    Attributes:
        text: for the synthesiser, with commas and full stops for pauses.
        transcript: the same words, lower case, without punctuation.
        qa: questions the recording answers, one of them for the transcript.
        unanswerable: questions it does not answer; their answer is ``NOT_STATED``.
        kind: which family of patterns it is from.
    """

    text: str
    transcript: str
    qa: tuple[QA, ...]
    unanswerable: tuple[QA, ...]
    kind: str


def question_for(rng: Rng, key: str, held: bool = False) -> str:
    """A wording for ``key``; ``held`` uses only those training never shows."""
    return rng.pick(QUESTIONS[key].held if held else QUESTIONS[key].train)


def _fill(rng: Rng, pattern: str, facts: dict[str, str]) -> str:
    def replace(match: re.Match) -> str:
        value = SLOTS[match.group(1)](rng)
        facts[match.group(1)] = value.answer
        return value.spoken

    return re.sub(r"\{(\w+)\}", replace, pattern)


def _keys(pattern: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", pattern))


def _groups(keys: set[str] | dict[str, str]) -> set[str]:
    return {QUESTIONS[key].group for key in keys}


def _memo(rng: Rng, facts: dict[str, str]) -> str:
    """One to four sentences whose facts no question can confuse."""
    openings, following = MEMOS[rng.pick(tuple(MEMOS))]
    sentences = [_fill(rng, rng.pick(openings), facts)]
    for _ in range(rng.pick((0, 1, 1, 2, 2, 3))):
        options = [p for p in following if not _groups(_keys(p)) & _groups(facts)]
        if options:
            sentences.append(_fill(rng, rng.pick(options), facts))
    return ". ".join(sentences)


def _sentence(rng: Rng) -> str:
    """Words without facts, for transcription."""
    if rng.chance(0.25):
        return rng.pick(SAYINGS)
    first, second = f"{rng.pick(ADJECTIVES)} {rng.pick(NOUNS)}", rng.pick(NOUNS)
    second = f"{rng.pick(ADJECTIVES)} {second}" if rng.chance(0.4) else second
    style = rng.randint(0, 3)
    if style == 0:
        return f"the {first} {rng.pick(VERBS)} the {second}"
    if style == 1:
        return f"the {first} is {rng.pick(PLACES)} the {second}"
    if style == 2:
        return f"the {first} {rng.pick(VERBS)} the {second} {rng.pick(PLACES)} the {rng.pick(NOUNS)}"
    return " ".join(rng.pick(NOUNS) for _ in range(rng.randint(1, 4)))


KINDS = (
    ("memo", 34),
    ("number", 15),
    ("command", 13),
    ("sentence", 13),
    ("name", 8),
    ("alarm", 6),
    ("timer", 5),
    ("code", 4),
    ("colour", 2),
)


def utter(rng: Rng, held: bool = False, kind: str | None = None) -> Utterance:
    """A random utterance with its questions.

    Args:
        held: ask with the wordings that training never shows.
        kind: one of ``KINDS``; drawn by their weights when left out.
    """
    kind = kind or rng.choices([name for name, _ in KINDS], [weight for _, weight in KINDS])[0]
    facts: dict[str, str] = {}
    if kind == "memo":
        text = _memo(rng, facts)
    elif kind == "sentence":
        text = _sentence(rng)
    else:
        text = _fill(rng, rng.pick(SHORT[kind]), facts)
    text = re.sub(r"\ba (?=[aeio])", "an ", text)
    transcript = re.sub(r"[.,]", "", text)
    if "number" in facts and rng.chance(0.25):
        facts["digit_count"] = str(len(facts["number"]))
    moment = [facts[key] for key in ("day", "time", "alarm", "departure") if key in facts]
    if moment and "weather" not in facts and rng.chance(0.6):
        facts["when"] = ", ".join(moment)
    facts["transcript"] = transcript
    qa = [QA(key, question_for(rng, key, held), answer) for key, answer in facts.items()]
    absent = _absent(kind, facts)
    missing = [QA(key, question_for(rng, key, held), NOT_STATED) for key in rng.sample(absent, min(2, len(absent)))]
    return Utterance(text, transcript, tuple(qa), tuple(missing), kind)


def _absent(kind: str, facts: dict[str, str]) -> list[str]:
    """Kinds of fact the utterance surely does not give; what is open to debate is left out."""
    present = _groups(facts) | {"count"} if "number" in facts else _groups(facts)
    if kind == "sentence":
        certain = {"amount", "code", "platform", "degrees", "duration"}
        return [key for key, question in QUESTIONS.items() if question.group in certain]
    if present & {"number", "code"}:
        present |= {"number", "code", "count"}
    if present & {"day", "time"} or kind == "timer":
        present |= {"when"}
    if kind in ("alarm", "timer"):
        present |= {"day", "time", "duration", "event"}
    if kind in ("name", "command") or (kind == "memo" and "event" not in facts):
        present |= {"event", "thing"}
    absent = [key for key, question in QUESTIONS.items() if question.group not in present and key != "digit_count"]
    counted = present & {"count", "amount", "platform", "duration", "degrees", "time", "day"}
    return [key for key in absent if key != "number"] if counted else absent
