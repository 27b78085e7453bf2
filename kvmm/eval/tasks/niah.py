"""A needle in a haystack: one sentence hidden in a long text, or on one page of a long document.

Sentence, depth and text follow from the options and the seed alone, so that two runs ask the same questions.
"""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar

from PIL import Image, ImageDraw, ImageFont

from kvmm.errors import KVMMError
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task, mean, mean_by
from kvmm.eval.tasks.haystack import made_sentences, read_sentences, repeated
from kvmm.eval.tasks.options import numbers, whole_numbers

GENERATED = "generated"
CHARACTERS_A_TOKEN = 4  # English prose in the vocabularies of the supported models
THINGS = (
    "red locker", "north gate", "green suitcase", "archive room", "garden shed", "blue bicycle", "old piano",
    "boat house", "wine cellar", "silver box", "rear entrance", "music room",
)  # fmt: skip
SUFFIX = "\nAnswer with the number only."
_NUMBER = re.compile(r"\d{1,3}(?:[ ,]\d{3})+(?!\d)|\d(?:[ -]\d)+(?!\d)|\d+")


def about_tokens(text: str) -> float:
    """An estimate of how many tokens a text has."""
    return len(text) / CHARACTERS_A_TOKEN


def evenly_spread(count: int) -> tuple[float, ...]:
    """So many depths from 0 to 1. Raises ``KVMMError`` for fewer than 2 or more than 101."""
    if not 2 <= count <= 101:
        raise KVMMError(f"A needle can stand at 2 to 101 depths, not {count}.")
    return tuple(round(place / (count - 1), 4) for place in range(count))


def numbers_named(text: str, digits: int) -> set[str]:
    """The numbers of so many digits in a text.

    They stand in one piece, with a comma or space before each three digits, or digit by digit. Only where there is none
    are all spaces left out ("1234 5"): elsewhere they end a number ("12345 5 digits").
    """
    found = {re.sub(r"\D", "", number) for number in _NUMBER.findall(text)}
    found = {number for number in found if len(number) == digits}
    if not found:
        found = {number for number in re.findall(r"\d+", re.sub("[, ]", "", text)) if len(number) == digits}
    return found


def depths_of(text: str) -> tuple[float, ...]:
    """ "0+0.5" -> (0.0, 0.5); a whole number above 1 is how many there are."""
    return evenly_spread(int(text)) if text.isdecimal() and int(text) > 1 else numbers(text)


class NeedleInText(Task):
    """A needle at given depths of texts of given lengths.

    It takes a model that reads text: tiny-omni was trained on pages and recordings only and finds no needle
    here, under any policy. ``niah-pages`` asks it the same of pages.

    Args:
        lengths: of the texts, in tokens as ``count_tokens`` measures them.
        depths: where the needle stands, 0 is the beginning and 1 the end; or how many depths, evenly spread, as in
            ``niah@depths=15``, the number of the OScaR paper's heatmaps.
        repeats: needles for each length and depth.
        seed: decides texts and needles.
        count_tokens: tokens of a text; default four characters a token. The records of a run hold the exact number.
    """

    name = "niah"
    metric: ClassVar[str] = "accuracy"
    max_new_tokens: ClassVar[int] = 16
    default_source: ClassVar[str | None] = GENERATED
    unit: ClassVar[str] = "tokens"
    options: ClassVar[Any] = {"lengths": whole_numbers, "depths": depths_of, "repeats": int, "seed": int}

    def __init__(
        self,
        lengths: Sequence[int] = (1000, 2000, 4000),
        depths: Sequence[float] | int = (0.0, 0.25, 0.5, 0.75, 1.0),
        repeats: int = 2,
        seed: int = 0,
        count_tokens: Callable[[str], float] = about_tokens,
    ):
        depths = evenly_spread(depths) if isinstance(depths, int) else depths
        if not lengths or min(lengths) < 1 or not depths or min(depths) < 0 or max(depths) > 1 or repeats < 1:
            raise KVMMError("A needle needs lengths and repeats of 1 or more, and depths from 0 to 1.")
        self.lengths, self.depths, self.repeats, self.seed = tuple(lengths), tuple(depths), repeats, seed
        self.count_tokens = count_tokens

    def load(
        self, source: str | os.PathLike[str] = GENERATED, *, split: str | None = None, limit: int | None = None
    ) -> SampleSet:
        """The grid of lengths and depths, one repeat after the other.

        ``source`` is a .txt file, a folder of them, or "generated"; a short text is repeated. There are no splits.
        """
        if limit is not None and limit < 1:
            raise KVMMError(f"The limit is {limit}: ask for at least 1 sample.")
        name = os.fspath(source)
        given = None if name in (GENERATED, "mini") else tuple(read_sentences(source))
        cells = (
            self._sample(repeat, length, depth, given)
            for repeat in range(self.repeats)
            for length in self.lengths
            for depth in self.depths
        )
        return SampleSet(self.name, name, tuple(islice(cells, limit)))

    def _sample(self, repeat: int, length: int, depth: float, given: tuple[str, ...] | None) -> Sample:
        key = f"{length}-{depth:.2f}-{repeat}"
        r = random.Random(f"{type(self).name}-{self.seed}-{key}")
        thing, answer = r.choice(THINGS), str(r.randint(10_000, 99_999))
        start = r.randrange(2**31)
        sentences = made_sentences(start) if given is None else repeated(given, start)
        needle = f"The code of the {thing} is {answer}."
        question = f"What is the code of the {thing}?{SUFFIX}"
        prompt, pages, extra = self._hide(sentences, needle, question, length, depth)
        metadata = {"length": length, "depth": depth, "needle": needle, "unit": self.unit, **extra}
        return Sample(key, prompt, (answer,), images=pages, metadata=metadata)

    def _hide(
        self, sentences: Iterator[str], needle: str, question: str, length: int, depth: float
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The prompt's text, its pages, and more metadata."""
        left = length - self.count_tokens(f"{needle}\n\n{question}")
        parts: list[str] = []
        for sentence in sentences:
            left -= self.count_tokens(sentence + " ")
            if left < 0 and parts:
                break
            parts.append(sentence)
        parts.insert(round(depth * len(parts)), needle)
        return f"{' '.join(parts)}\n\n{question}", (), {}

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """1 when the prediction names the needle's number and no other one of as many digits."""
        answer = sample.answers[0]
        return {"accuracy": float(numbers_named(prediction, len(answer)) == {answer})}

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """The share found: of all, by length, by depth, and of each cell of length and depth."""

        def length(sample: Sample) -> str:
            return f"{self.unit}={sample.metadata['length']}"

        def depth(sample: Sample) -> str:
            return f"depth={sample.metadata['depth']:.2f}"

        return {
            "accuracy": mean(scores["accuracy"] for _, scores, _ in scored),
            **mean_by(scored, "accuracy", length),
            **mean_by(scored, "accuracy", depth),
            **mean_by(scored, "accuracy", lambda sample: f"{length(sample)},{depth(sample)}"),
        }


@dataclass(frozen=True)
class RenderedPage:
    """A page of text that is drawn when it is called; black on white, in Pillow's own font."""

    text: str
    number: int
    width: int = 560
    height: int = 784
    font_size: int = 18

    def __call__(self) -> Image.Image:
        page = Image.new("RGB", (self.width, self.height), "white")
        draw, font = ImageDraw.Draw(page), _font(self.font_size)
        margin, step = self.width // 16, round(self.font_size * 1.45)
        for index, line in enumerate(wrapped(self.text, self.width - 2 * margin, self.font_size)):
            draw.text((margin, margin + index * step), line, fill="black", font=font)
        draw.text((self.width // 2, self.height - margin), str(self.number), fill="black", font=font, anchor="ms")
        return page

    @property
    def lines(self) -> int:
        """How many lines fit above the page's number."""
        margin, step = self.width // 16, round(self.font_size * 1.45)
        return (self.height - 3 * margin) // step


@lru_cache(maxsize=8)
def _font(size: int) -> Any:
    return ImageFont.load_default(size)


@lru_cache(maxsize=100_000)
def _width(word: str, font_size: int) -> float:
    return _font(font_size).getlength(word)


def wrapped(text: str, width: int, font_size: int) -> list[str]:
    """Lines of whole words that are at most ``width`` pixels wide."""
    lines: list[str] = []
    room = 0.0
    for word in text.split():
        need = _width(f" {word}", font_size)
        if lines and need <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
            room = float(width)
        room -= need
    return lines


class NeedleInPages(NeedleInText):
    """The same over pages: ``lengths`` are numbers of pages, the depth says on which page and where the needle is."""

    name = "niah-pages"
    unit: ClassVar[str] = "pages"

    def __init__(
        self,
        lengths: Sequence[int] = (1, 2, 4, 8),
        depths: Sequence[float] | int = (0.0, 0.25, 0.5, 0.75, 1.0),
        repeats: int = 2,
        seed: int = 0,
    ):
        super().__init__(lengths, depths, repeats, seed)

    def _hide(
        self, sentences: Iterator[str], needle: str, question: str, length: int, depth: float
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        page = min(math.floor(depth * length), length - 1)
        place = depth * length - page
        texts = [self._page_text(sentences, needle if index == page else "", place) for index in range(length)]
        pages = tuple(RenderedPage(text, index + 1) for index, text in enumerate(texts))
        return question, pages, {"page": page + 1}

    def _page_text(self, sentences: Iterator[str], needle: str, place: float) -> str:
        """As many sentences as surely fit on a page, with the needle after the share ``place`` of them."""
        blank = RenderedPage("", 1)
        width = blank.width - 2 * (blank.width // 16)
        room = (blank.lines - 1) * width - _width(f" {needle}", blank.font_size)
        parts: list[str] = []
        for sentence in sentences:
            # A line ends early by less than its first word that did not fit: 8 % is more than prose ever needs.
            room -= 1.08 * sum(_width(f" {word}", blank.font_size) for word in sentence.split())
            if room < 0:
                break
            parts.append(sentence)
        if needle:
            parts.insert(round(place * len(parts)), needle)
        return " ".join(parts)


__all__ = ["GENERATED", "NeedleInPages", "NeedleInText", "RenderedPage", "about_tokens", "wrapped"]
