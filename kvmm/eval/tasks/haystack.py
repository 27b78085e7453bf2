"""Text to hide a needle in: a given one cut into sentences, or sentences made from a seed."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvmm.errors import KVMMError
from kvmm.eval.tasks.sources import read_text

MAX_WORDS = 60  # longer sentences are cut, so that a needle can stand inside them

_PEOPLE = (
    "the baker", "an old sailor", "the gardener", "two teachers", "the librarian", "a young pilot", "the postman",
    "a retired judge", "the carpenter", "my neighbour", "the conductor", "a travelling painter", "the innkeeper",
    "three students", "the clockmaker", "a quiet farmer",
)  # fmt: skip
_DEEDS = (
    "walked along the river", "mended a wooden fence", "read the morning paper", "carried bread to the market",
    "counted the boats in the harbour", "talked about the weather", "planted a row of apple trees",
    "waited for the evening train", "copied an old map", "painted the door green", "looked for a lost umbrella",
    "listened to the church bells", "wrote a long letter", "sorted seeds into small boxes",
    "cooked soup for the guests", "fed the pigeons in the square",
)  # fmt: skip
_TIMES = (
    "on a cold morning", "after the first frost", "before the shops opened", "late in the autumn", "on market day",
    "when the rain had stopped", "during the long holiday", "in the second week of May", "while the fog was lifting",
    "shortly before sunset", "on the day of the fair", "as soon as the road was dry",
)  # fmt: skip
_REMARKS = (
    "and nobody thought it strange", "and then went home", "as people there had always done", "without any hurry",
    "although the wind was strong", "and told the story for years", "until the lamps were lit", "and was glad of it",
    "with great care", "and said nothing more about it",
)  # fmt: skip


def made_sentences(seed: int) -> Iterator[str]:
    """Sentences without end, the same for the same seed. They hold no digits."""
    r = random.Random(seed)
    while True:
        time, who, deed = r.choice(_TIMES), r.choice(_PEOPLE), r.choice(_DEEDS)
        sentence = f"{time}, {who} {deed}" if r.random() < 0.5 else f"{who} {deed} {time}"
        if r.random() < 0.6:
            sentence += f" {r.choice(_REMARKS)}"
        yield f"{sentence[0].upper()}{sentence[1:]}."


def read_sentences(source: str | os.PathLike[str]) -> list[str]:
    """The sentences of a text file, or of all .txt files of a folder in order of their names.

    Raises:
        KVMMError: there is no such text, or it is not UTF-8, or it is empty.
    """
    path = Path(source).expanduser()
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise KVMMError(f"{source} is no text to hide a needle in: give a .txt file, a folder of them, or generated.")
    text = " ".join(" ".join(read_text(file).split()) for file in files)
    words = [part.split() for part in re.split(r"(?<=[.!?])\s+", text) if part]
    sentences = [" ".join(part[at : at + MAX_WORDS]) for part in words for at in range(0, len(part), MAX_WORDS)]
    if not sentences:
        raise KVMMError(f"{source} is empty: give a text to hide a needle in.")
    return sentences


def repeated(sentences: Sequence[str], start: int) -> Iterator[str]:
    """The sentences from ``start`` on, without end."""
    while True:
        yield sentences[start % len(sentences)]
        start += 1


__all__ = ["made_sentences", "read_sentences", "repeated"]
