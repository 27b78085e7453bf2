"""Whether probabilities mean what they say: calibration error, reliability table, and how well they rank answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

BINS = 15


def reliability_table(
    probabilities: Sequence[float], right: Sequence[bool], bins: int = BINS
) -> list[dict[str, float]]:
    """Bins of equal mass, from the least sure to the surest.

    Args:
        probabilities: one per answer.
        right: whether each answer was right.
        bins: at most so many; sizes differ by one at most. Answers of equal probability may fall into neighbours.

    Returns:
        per bin ``n``, the mean ``probability`` and the share ``right``.

    Raises:
        ValueError: there are no answers, or not as many outcomes.
    """
    chances, outcomes = np.asarray(probabilities, dtype=float), np.asarray(right, dtype=float)
    if not len(chances) or chances.shape != outcomes.shape:
        raise ValueError("a probability and an outcome are needed for every answer, and an answer")
    order = np.argsort(chances, kind="stable")
    parts = np.array_split(order, min(bins, len(order)))
    return [
        {"n": len(part), "probability": float(chances[part].mean()), "right": float(outcomes[part].mean())}
        for part in parts
    ]


def expected_calibration_error(probabilities: Sequence[float], right: Sequence[bool], bins: int = BINS) -> float:
    """The mean distance of probability and share of right answers over bins of equal mass (Naeini et al. 2015).

    Raises:
        ValueError: as :func:`reliability_table`.
    """
    table = reliability_table(probabilities, right, bins)
    return sum(row["n"] * abs(row["probability"] - row["right"]) for row in table) / len(right)


def auroc(scores: Sequence[float], right: Sequence[bool]) -> float | None:
    """The chance that a right answer has a higher score than a wrong one, ties counted half.

    None where all answers are right, or all wrong.
    """
    values, outcomes = np.asarray(scores, dtype=float), np.asarray(right, dtype=bool)
    hits, misses = np.sort(values[outcomes]), values[~outcomes]
    if not len(hits) or not len(misses):
        return None
    below, above = np.searchsorted(hits, misses, "left"), np.searchsorted(hits, misses, "right")
    wins = (len(hits) - above) + (above - below) / 2
    return float(wins.mean() / len(hits))


def calibration_figures(probabilities: Sequence[float], right: Sequence[bool], unsure_below: float) -> dict[str, Any]:
    """Whether probabilities hold, and what a mark below a threshold says; all rounded to four places.

    Args:
        probabilities, right: as of :func:`reliability_table`.
        unsure_below: answers of a smaller probability are marked.

    Returns:
        ``n``, the share ``right``, the mean ``probability``, ``ece``, ``auroc``, ``n`` and share right of answers that
        are marked (``unsure``) and not (``sure``), None of none, and the ``table``.
    """
    chances, outcomes = np.asarray(probabilities, dtype=float), np.asarray(right, dtype=bool)
    table, ranked, marked = reliability_table(chances, outcomes), auroc(chances, outcomes), chances < unsure_below
    return {
        **part_figures(outcomes),
        "probability": round(float(chances.mean()), 4),
        "ece": round(expected_calibration_error(chances, outcomes), 4),
        "auroc": None if ranked is None else round(ranked, 4),
        "unsure": part_figures(outcomes[marked]),
        "sure": part_figures(outcomes[~marked]),
        "table": [{name: round(value, 4) for name, value in row.items()} for row in table],
    }


def part_figures(right: Sequence[bool]) -> dict[str, Any]:
    """``n``, and the share ``right``, None of none."""
    return {"n": len(right), "right": round(float(np.mean(right)), 4) if len(right) else None}


__all__ = ["BINS", "auroc", "calibration_figures", "expected_calibration_error", "part_figures", "reliability_table"]
