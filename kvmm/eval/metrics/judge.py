"""What a language model is asked as a judge, and how its judgement is read.

A *judge* is a function ``judge(question, reference, prediction)`` that returns the text which a language model of yours
wrote about one of these prompts, or a number. Scales, criteria and the reading of the text are those of the benchmarks'
scripts. The words of the prompts are kvmm's: scores compare within kvmm, and only nearly beyond.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from kvmm.errors import KVMMError

Judge = Callable[[str, str, str], "str | float"]

CRITERIA = ("correctness", "relevance", "completeness", "clarity")
NEUTRAL, BEST = 3.0, 5.0
GOOD, POOR = 4.0, 2.0  # overall scores from and up to which an answer counts as good and poor

_ASKED = {
    "correctness": "does it agree with the reference in its facts?",
    "relevance": "does it answer the question that was asked?",
    "completeness": "does it have everything of importance in the reference?",
    "clarity": "is it easy to understand?",
}


def criteria_prompt(question: str, reference: str, prediction: str) -> str:
    """MMAU-Pro's four criteria, 1 to 5 each, as a prompt for a judge."""
    asked = "\n".join(f"- {name}: {text}" for name, text in _ASKED.items())
    lines = "\n".join(f"{name.upper()}: [1-5] - [one sentence]" for name in CRITERIA)
    return (
        "You grade the answer to a question about a recording. Give 1 to 5 points, 5 being best, for each of:\n"
        f"{asked}\n\nQuestion: {question}\n\nReference: {reference}\n\nAnswer to grade: {prediction}\n\n"
        f"Reply in exactly this form:\n{lines}\nOVERALL: [mean] - [one sentence]"
    )


def read_criteria(judgement: str) -> dict[str, float]:
    """The points of each criterion and ``overall``, in 1 to 5, from a judge's text.

    As MMAU-Pro's script reads it (``extract_scores_from_evaluation``): a criterion without a number is neutral, 3; so
    is a missing ``OVERALL``, and an overall of 3 is replaced by the mean of the four.
    """
    scores = {}
    for name in (*CRITERIA, "overall"):
        number = r"(\d+(?:\.\d+)?)" if name == "overall" else r"(\d+)"
        found = re.search(rf"{name}:\s*{number}", judgement, re.IGNORECASE)
        scores[name] = float(found[1]) if found else NEUTRAL
    if scores["overall"] == NEUTRAL:
        scores["overall"] = sum(scores[name] for name in CRITERIA) / len(CRITERIA)
    if any(not 0 <= value <= BEST for value in scores.values()):
        raise KVMMError("The judge gave more than 5 points: it must keep to the scale of 1 to 5.")
    return scores


def rating_prompt(question: str, reference: str, prediction: str) -> str:
    """MMBench-Video's rating of 0 to 3 as a prompt for a judge."""
    return (
        "Compare an answer with the correct one by what they mean, not by their grammar. Reply with a single digit: "
        "0 if the answer is entirely wrong, 1 if mostly wrong, 2 if mostly right, 3 if entirely right.\n\n"
        f"Question: {question}\nCorrect answer: {reference}\nAnswer to rate: {prediction}\nRating: "
    )


def read_rating(judgement: str | float) -> int | None:
    """A rating of 0 to 3; None for anything else, which the benchmark counts as 0 in "all" and not in "valid"."""
    try:
        rating = int(judgement)
        if isinstance(judgement, float) and rating != judgement:
            return None
    except (TypeError, ValueError, OverflowError):
        return None
    return rating if 0 <= rating <= 3 else None


__all__ = [
    "BEST",
    "CRITERIA",
    "GOOD",
    "POOR",
    "Judge",
    "criteria_prompt",
    "rating_prompt",
    "read_criteria",
    "read_rating",
]
