"""Scores of short answers, as the public harnesses compute them: ANLS, exact match, OCRBench, error rates.

All functions are pure and take strings. ``answers`` is one reference or several; the best one counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

try:
    from rapidfuzz.distance.Levenshtein import distance as levenshtein
except ImportError:  # training machines lack it; same numbers, slower

    def levenshtein(a: Sequence[str], b: Sequence[str]) -> int:
        """Insertions, deletions and substitutions (of characters or of words) that turn ``a`` into ``b``."""
        row = list(range(len(b) + 1))
        for i, left in enumerate(a, 1):
            diagonal, row[0] = row[0], i
            for j, right in enumerate(b, 1):
                diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
        return row[-1]


ANLS_THRESHOLD = 0.5


def _as_list(answers: str | Sequence[str]) -> Sequence[str]:
    return [answers] if isinstance(answers, str) else answers


def normalise(text: str) -> str:
    """Lower case, white space collapsed: what ANLS and exact match compare."""
    return " ".join(text.strip().lower().split())


def anls(prediction: str, answers: str | Sequence[str]) -> float:
    """Average normalised Levenshtein similarity of one prediction (Biten et al. 2019, eq. 1; lmms-eval's variant).

    The distance is between the normalised strings, its divisor the longer of the **raw** ones; similarities below 0.5
    count as 0, 0.5 itself stays.

    Returns:
        A score in [0, 1]; the mean over questions is the benchmark's figure.

    Raises:
        ValueError: there is no reference answer.
    """
    references = _as_list(answers)
    if not references:
        raise ValueError("anls needs at least one reference answer")
    prediction_text = normalise(prediction)
    distances = []
    for reference in references:
        longest = max(len(reference.upper()), len(prediction.upper()))
        distances.append(levenshtein(normalise(reference), prediction_text) / longest if longest else 0.0)
    score = 1 - min(distances)
    return score if score >= ANLS_THRESHOLD else 0.0


def exact_match(prediction: str, answers: str | Sequence[str]) -> bool:
    """Whether the normalised prediction equals a normalised reference; a final full stop does not count."""
    text = normalise(prediction).rstrip(".")
    return any(text == normalise(reference).rstrip(".") for reference in _as_list(answers))


def ocrbench_hit(prediction: str, answers: str | Sequence[str], dataset: str = "") -> bool:
    """OCRBench's rule (Liu et al. 2023): a reference occurs in the prediction.

    Both are lower-cased, stripped, newlines made spaces. For ``dataset`` "HME100k" (handwritten formulas) case stays
    and all spaces go. lmms-eval since 0.7 also makes full-width ASCII half-width; the benchmark and VLMEvalKit do not,
    and neither does this.
    """

    def prepare(text: str) -> str:
        if dataset == "HME100k":
            return text.strip().replace("\n", " ").replace(" ", "")
        return text.lower().strip().replace("\n", " ")

    return any(prepare(reference) in prepare(prediction) for reference in _as_list(answers))


def cer(prediction: str, reference: str) -> float:
    """Character error rate: edit distance over the reference's length, white space collapsed, case kept.

    May exceed 1 for a long prediction. Without a reference it is 0 for an empty prediction, else 1.
    """
    prediction, reference = " ".join(prediction.split()), " ".join(reference.split())
    if not reference:
        return float(bool(prediction))
    return levenshtein(prediction, reference) / len(reference)


def spoken_words(text: str) -> list[str]:
    """The words of a transcript: lower case, without punctuation; figures and currency signs stay."""
    return re.findall(r"[\w£$€¥%]+(?:['.,:][\w]+)*", text.lower().replace("’", "'"))


def wer(prediction: str, references: str | Sequence[str]) -> float:
    """Word error rate: the edit distance of words over the reference's number of words, the best reference counting.

    Case and punctuation do not count. May exceed 1 for a long prediction.

    Raises:
        ValueError: there is no reference, or one without a word.
    """
    words = spoken_words(prediction)
    spoken = [spoken_words(reference) for reference in _as_list(references)]
    if not spoken or not all(spoken):
        raise ValueError("wer needs at least one reference, and words in each")
    return min(levenshtein(words, reference) / len(reference) for reference in spoken)
