"""Paired tests: whether the difference of a policy to full precision exceeds the sampling error of the questions.

Questions about one document are not independent, because they share the difficulty of the page. Differences are
therefore resampled by document (cluster bootstrap), which widens the intervals where it matters.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

RESAMPLES = 10_000
MIN_CLUSTERS = 5  # resampling fewer documents gives intervals that are far too narrow, of one document none at all
_BLOCK = 4_000_000  # counts held at a time while resampling


@dataclass(frozen=True)
class Difference:
    """A mean paired difference (policy minus reference) with its confidence interval.

    ``clusters`` is how many documents were resampled; ``samples`` how many questions they hold.
    """

    mean: float
    low: float
    high: float
    samples: int
    clusters: int
    confidence: float = 0.95

    @property
    def interval(self) -> tuple[float, float] | None:
        """``low`` and ``high``, or None where there are fewer than :data:`MIN_CLUSTERS` documents to tell."""
        return (self.low, self.high) if self.clusters >= MIN_CLUSTERS else None

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.interval is not None and (self.low > 0 or self.high < 0)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class McNemar:
    """Agreement of two systems on the same questions, in counts, and the exact p-value of their disagreement.

    ``lost``: only the reference is right; ``gained``: only the policy is.
    """

    both: int
    lost: int
    gained: int
    neither: int
    p_value: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def paired_bootstrap(
    values: Sequence[float],
    reference: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    *,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
    seed: int = 0,
) -> Difference:
    """The mean of ``values - reference`` with a percentile bootstrap interval (Efron and Tibshirani 1993, chapter 13).

    Whole groups are drawn with replacement (Field and Welsh 2007, section 2.1: the cluster bootstrap), and the mean is
    over all questions drawn, so that large documents weigh as in the data. The same arguments give the same interval.

    Args:
        values, reference: scores of the same questions in the same order, ``[n]``.
        groups: the document of each question, ``[n]``; without, every question is its own.
        resamples: how often the documents are drawn.
        confidence: of the two-sided interval, below 1.
        seed: of numpy's PCG64.

    Raises:
        ValueError: there is no question, or the lengths differ.
    """
    a, b = np.asarray(values, np.float64), np.asarray(reference, np.float64)
    if a.shape != b.shape or a.ndim != 1 or not len(a) or (groups is not None and len(groups) != len(a)):
        raise ValueError(
            "paired_bootstrap needs the scores of both, and the groups if any, of the same 1 or more questions"
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}: it lies between 0 and 1")
    numbers = np.arange(len(a)) if groups is None else _numbered(groups)
    sums = np.bincount(numbers, a - b)
    sizes = np.bincount(numbers)
    clusters = len(sums)
    rng = np.random.default_rng(seed)
    means = []
    step = max(1, _BLOCK // clusters)
    for start in range(0, resamples, step):
        # how often each cluster is drawn, [step, clusters]
        drawn = rng.multinomial(clusters, np.full(clusters, 1 / clusters), min(step, resamples - start))
        means.append(drawn @ sums / (drawn @ sizes))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Difference(float((a - b).mean()), float(low), float(high), len(a), clusters, confidence)


def _numbered(groups: Sequence[Hashable]) -> np.ndarray:
    """Groups as 0, 1, 2 ... in the order in which they come."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(group, len(seen)) for group in groups])


def mcnemar(right: Sequence[bool], reference: Sequence[bool]) -> McNemar:
    """McNemar's test in its exact, two-sided form (McNemar 1947; the sign test of Dietterich 1998, section 3.1, exact).

    Under the null hypothesis each question on which the two disagree is lost or gained with probability 1/2, so the
    p-value is twice the smaller tail of a binomial, at most 1. Questions are taken as independent, which makes it too
    small where many belong to one document: read it beside the interval of :func:`paired_bootstrap`.

    Args:
        right, reference: whether the policy and the reference answered each question, in the same order.

    Raises:
        ValueError: the lengths differ.
    """
    pairs = list(zip(right, reference, strict=True))
    both = sum(bool(a and b) for a, b in pairs)
    lost = sum(bool(b and not a) for a, b in pairs)
    gained = sum(bool(a and not b) for a, b in pairs)
    return McNemar(both, lost, gained, len(pairs) - both - lost - gained, binomial_two_sided(lost, gained))


def binomial_two_sided(lost: int, gained: int) -> float:
    """``min(1, 2 P[X <= min(lost, gained)])`` of X ~ Binomial(lost + gained, 1/2), exact; 1.0 without any."""
    n, term, tail = lost + gained, 1, 0
    for k in range(min(lost, gained) + 1):
        tail += term  # n over k
        term = term * (n - k) // (k + 1)
    return min(1.0, 2 * tail / 2**n)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several comparisons, adjusted so that one false alarm among all stays as rare as for one (Holm 1979).

    The smallest is multiplied by their number, the next by one less, and so on; none is smaller than one before it.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, highest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - place)))
        adjusted[index] = highest
    return adjusted


__all__ = [
    "MIN_CLUSTERS",
    "RESAMPLES",
    "Difference",
    "McNemar",
    "binomial_two_sided",
    "holm",
    "mcnemar",
    "paired_bootstrap",
]
