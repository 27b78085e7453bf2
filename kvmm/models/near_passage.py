"""The passage of a PDF's text that an answer misses by a few characters: what the model may have misread.

The distance is Levenshtein's, divided by the length of the longer text (Levenshtein, Soviet Physics Doklady 10, 1966).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice

from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

MAX_DISTANCE = 0.25  # of the longer text; one character of four
MIN_ANSWER = 4  # characters; of fewer, one that differs makes another word
MAX_ANSWER = 100  # characters; a longer answer is a sentence or a transcription
MAX_SPANS = 200_000  # that are compared, in half a second; ten times as many as dense pages have
_DIGITS = re.compile(r"\d+")
_EDGES = ".,;:!?()[]{}<>\"'“”‘’«»"


def near_passage(answer: str, pages: Sequence[str], accepts: Callable[[str], bool] = lambda _: True) -> str | None:
    """The one passage of whole words nearest to an answer, as the text has it but for white space.

    It is at most :data:`MAX_DISTANCE` away and not the same; runs of digits in both are equally long one by one. Case
    and punctuation at the ends do not count.

    Args:
        answer: what was said.
        pages: texts that a passage is looked for in; it does not go on on the next page.
        accepts: whether a passage may be proposed.

    Returns:
        None where no passage is near, two different ones are equally near, the answer has fewer characters than
        :data:`MIN_ANSWER` or more than :data:`MAX_ANSWER`, or the text has more than :data:`MAX_SPANS` passages of its
        length.
    """
    wanted = _comparable(answer)
    if not MIN_ANSWER <= len(wanted) <= MAX_ANSWER:
        return None
    spans: dict[str, str] = {}
    left = MAX_SPANS
    for page in pages:
        for compared, shown in islice(_Page(page).spans(wanted), left + 1):
            spans.setdefault(compared, shown)
            left -= 1
        if left < 0:
            return None
    options = {"scorer": Levenshtein.normalized_distance, "processor": None, "score_cutoff": MAX_DISTANCE}
    found = [(score, text) for text, score, _ in process.extract(wanted, list(spans), limit=None, **options)]
    found = [(score, text) for score, text in found if accepts(spans[text])]
    if not found or min(found)[0] == 0:
        return None
    nearest = [text for score, text in found if score == min(found)[0]]
    return spans[nearest[0]] if len(nearest) == 1 else None


class _Page:
    """A page's words, joined as they are and as they are compared, with the digits before each."""

    def __init__(self, page: str) -> None:
        words = unicodedata.normalize("NFKC", page).split()
        words = [word for word in words if word.strip(_EDGES)]
        self._shown, self._compared = _Joined(words), _Joined([word.casefold() for word in words])
        runs = [_digit_runs(word) for word in words]
        self._runs = [run for each in runs for run in each]
        self._runs_before = list(accumulate(map(len, runs), initial=0))

    def spans(self, wanted: str) -> Iterator[tuple[str, str]]:
        """Runs of whole words that may be near ``wanted`` by their length and their digits: compared, and shown."""
        shortest, longest = len(wanted) * (1 - MAX_DISTANCE), len(wanted) / (1 - MAX_DISTANCE)
        begins, ends, pattern, first = self._compared.begins, self._compared.ends, _digit_runs(wanted), 0
        for i, begin in enumerate(begins):
            first = max(first, i)
            while first < len(ends) and ends[first] - begin < shortest:
                first += 1
            for last in range(first, len(ends)):
                if ends[last] - begin > longest:
                    break
                if self._runs[self._runs_before[i] : self._runs_before[last + 1]] == pattern:
                    yield self._compared.between(i, last), self._shown.between(i, last)


class _Joined:
    """Words with single spaces between them, and where each begins and ends without punctuation at its ends."""

    def __init__(self, words: Sequence[str]) -> None:
        starts = list(accumulate((len(word) + 1 for word in words), initial=0))
        self.text = " ".join(words)
        self.begins = [start + len(word) - len(word.lstrip(_EDGES)) for start, word in zip(starts, words, strict=False)]
        self.ends = [start + len(word.rstrip(_EDGES)) for start, word in zip(starts, words, strict=False)]

    def between(self, first: int, last: int) -> str:
        """From one word to another, both included."""
        return self.text[self.begins[first] : self.ends[last]]


def _comparable(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_EDGES + " ")


def _digit_runs(text: str) -> list[int]:
    return [len(run) for run in _DIGITS.findall(text)]


__all__ = ["MAX_ANSWER", "MAX_DISTANCE", "MAX_SPANS", "near_passage"]
