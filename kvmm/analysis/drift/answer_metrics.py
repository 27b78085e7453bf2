"""Metrics of answers under a policy against the answers in full precision.

Logit drift says how far a policy moves the next-token distributions; these metrics say what a reader notices. Each
function takes the answers of a policy and those of full precision to the same prompts, in the same order, and returns
plain figures. They are what the Spherical KV paper calls witness tests: length drift, early stop, seed sensitivity,
refusal flips, tier-flip rate and retrieval raggedness.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from kvmm.errors import KVMMError
from kvmm.eval.metrics import is_refusal, levenshtein, normalise


@dataclass(frozen=True)
class GeneratedAnswer:
    """One generated answer.

    Attributes:
        tokens: its token ids, the end token left out.
        text: the decoded answer.
        ended: whether an end token came before the length limit.
    """

    tokens: tuple[int, ...]
    text: str
    ended: bool


@dataclass(frozen=True)
class LengthDrift:
    """Lengths in tokens: means of both, and of the signed and absolute differences (policy minus full precision)."""

    answers: int
    mean_tokens: float
    mean_tokens_full: float
    mean_difference: float
    mean_absolute_difference: float
    max_absolute_difference: int
    same_length: float


@dataclass(frozen=True)
class EarlyStop:
    """Shares of the answers.

    ``earlier`` ended by themselves in fewer tokens than full precision took; ``truncated`` of those are a beginning of
    the full-precision answer, cut off; ``runs_on`` reached the length limit where full precision ended.
    """

    answers: int
    earlier: float
    truncated: float
    runs_on: float


@dataclass(frozen=True)
class AnswerAgreement:
    """``identical``: share of answers with the same text; ``similarity``: mean of ``1 - edit distance / length``."""

    answers: int
    identical: float
    similarity: float


@dataclass(frozen=True)
class SeedSensitivity:
    """Sampled answers over seeds.

    Similarities are means over prompts and pairs of different seeds, so that chance plays the same part in all of
    them: ``policy_full`` between a policy's answer and a full-precision one, ``full_full`` between two of full
    precision, ``policy_policy`` between two of the policy. ``gap = full_full - policy_full`` is what the policy adds to
    the spread that sampling has anyway. ``same_seed`` compares the answers that drew the same random numbers.
    """

    prompts: int
    seeds: int
    temperature: float
    policy_full: float
    full_full: float
    policy_policy: float
    gap: float
    same_seed: float


@dataclass(frozen=True)
class RefusalFlips:
    """Counts of refusals, and the share of prompts (``rate``) whose answer went from one to the other."""

    answers: int
    refused: int
    refused_full: int
    to_refusal: int
    from_refusal: int
    rate: float


@dataclass(frozen=True)
class PageAccuracy:
    """Questions answered by page ``page`` (from 1) of ``pages``: their count, and the shares of right answers."""

    page: int
    pages: int
    questions: int
    accuracy: float
    accuracy_full: float


@dataclass(frozen=True)
class RetrievalRaggedness:
    """Accuracy by the place of the page that holds the answer; ``spread`` is the largest minus the smallest."""

    questions: int
    by_page: tuple[PageAccuracy, ...]
    spread: float
    spread_full: float


@dataclass(frozen=True)
class TierFlips:
    """Decisions of a retention controller about pages of heads; ``rate`` is the share that changed a page's tier."""

    decisions: int
    flips: int
    rate: float


def _paired(full: Sequence[Any], other: Sequence[Any]) -> list[tuple[Any, Any]]:
    if not full or len(full) != len(other):
        raise KVMMError(f"There are {len(full)} answers in full precision and {len(other)} to compare; pass pairs.")
    return list(zip(full, other, strict=True))


def length_drift(full: Sequence[GeneratedAnswer], policy: Sequence[GeneratedAnswer]) -> LengthDrift:
    """How much longer or shorter the answers became. Raises :class:`KVMMError` without pairs, like all of these."""
    pairs = [(len(f.tokens), len(p.tokens)) for f, p in _paired(full, policy)]
    differences = [p - f for f, p in pairs]
    return LengthDrift(
        answers=len(pairs),
        mean_tokens=fmean(p for _, p in pairs),
        mean_tokens_full=fmean(f for f, _ in pairs),
        mean_difference=fmean(differences),
        mean_absolute_difference=fmean(map(abs, differences)),
        max_absolute_difference=max(map(abs, differences)),
        same_length=fmean(d == 0 for d in differences),
    )


def early_stop(full: Sequence[GeneratedAnswer], policy: Sequence[GeneratedAnswer]) -> EarlyStop:
    """Answers that end too soon, or no longer end; see :class:`EarlyStop`."""
    pairs = _paired(full, policy)
    earlier = [p.ended and len(p.tokens) < len(f.tokens) for f, p in pairs]
    cut = [e and f.tokens[: len(p.tokens)] == p.tokens for e, (f, p) in zip(earlier, pairs, strict=True)]
    runs_on = fmean(f.ended and not p.ended for f, p in pairs)
    return EarlyStop(len(pairs), earlier=fmean(earlier), truncated=fmean(cut), runs_on=runs_on)


def similarity(a: str, b: str) -> float:
    """``1 - edit distance / length of the longer``, of texts in lower case with white space collapsed; in [0, 1]."""
    a, b = normalise(a), normalise(b)
    longest = max(len(a), len(b))
    return 1 - levenshtein(a, b) / longest if longest else 1.0


def answer_agreement(full: Sequence[GeneratedAnswer], policy: Sequence[GeneratedAnswer]) -> AnswerAgreement:
    """How alike the answers are as texts."""
    pairs = _paired(full, policy)
    return AnswerAgreement(
        answers=len(pairs),
        identical=fmean(f.text == p.text for f, p in pairs),
        similarity=fmean(similarity(f.text, p.text) for f, p in pairs),
    )


def seed_sensitivity(
    full: Sequence[Sequence[GeneratedAnswer]], policy: Sequence[Sequence[GeneratedAnswer]], temperature: float
) -> SeedSensitivity:
    """Sampled answers, ``[prompt][seed]``, the same seeds in the same order on both sides; 2 or more.

    Raises:
        KVMMError: if a prompt has fewer than two seeds, or not the same number on both sides.
    """
    counts = {len(answers) for row in _paired(full, policy) for answers in row}
    if len(counts) != 1 or min(counts) < 2:
        raise KVMMError("Seed sensitivity compares two or more seeds a prompt, the same number everywhere.")
    (seeds,) = counts
    scores: dict[str, list[float]] = defaultdict(list)
    for f, p in zip(full, policy, strict=True):
        for i in range(seeds):
            scores["same"].append(similarity(f[i].text, p[i].text))
            for j in range(seeds):
                if i != j:
                    scores["policy_full"].append(similarity(p[i].text, f[j].text))
                if i < j:
                    scores["full_full"].append(similarity(f[i].text, f[j].text))
                    scores["policy_policy"].append(similarity(p[i].text, p[j].text))
    mean = {name: fmean(values) for name, values in scores.items()}
    return SeedSensitivity(
        prompts=len(full),
        seeds=seeds,
        temperature=temperature,
        policy_full=mean["policy_full"],
        full_full=mean["full_full"],
        policy_policy=mean["policy_policy"],
        gap=mean["full_full"] - mean["policy_full"],
        same_seed=mean["same"],
    )


def refusal_flips(
    full: Sequence[GeneratedAnswer], policy: Sequence[GeneratedAnswer], refusals: Sequence[str] = ()
) -> RefusalFlips:
    """Questions that one side answers and the other refuses; ``refusals`` as :func:`kvmm.eval.metrics.is_refusal`."""
    pairs = [(is_refusal(f.text, refusals), is_refusal(p.text, refusals)) for f, p in _paired(full, policy)]
    to_refusal = sum(p and not f for f, p in pairs)
    from_refusal = sum(f and not p for f, p in pairs)
    return RefusalFlips(
        answers=len(pairs),
        refused=sum(p for _, p in pairs),
        refused_full=sum(f for f, _ in pairs),
        to_refusal=to_refusal,
        from_refusal=from_refusal,
        rate=(to_refusal + from_refusal) / len(pairs),
    )


def retrieval_raggedness(
    places: Sequence[tuple[int, int]], full: Sequence[bool], policy: Sequence[bool]
) -> RetrievalRaggedness:
    """Accuracy over the place of the page that holds the answer.

    Args:
        places: ``(page, pages)`` of every question, pages from 1.
        full, policy: whether the question was answered rightly.
    """
    pairs = _paired(full, policy)
    groups: dict[tuple[int, int], list[tuple[bool, bool]]] = defaultdict(list)
    for (page, pages), pair in zip(places, pairs, strict=True):
        groups[pages, page].append(pair)
    rows = tuple(
        PageAccuracy(page, pages, len(of_place), fmean(p for _, p in of_place), fmean(f for f, _ in of_place))
        for (pages, page), of_place in sorted(groups.items())
    )

    def spread(values: Sequence[float]) -> float:
        return max(values) - min(values)

    return RetrievalRaggedness(
        questions=len(pairs),
        by_page=rows,
        spread=spread([row.accuracy for row in rows]),
        spread_full=spread([row.accuracy_full for row in rows]),
    )


def tier_flips(report: Mapping[str, Any]) -> TierFlips | None:
    """How restless a retention controller is, from :meth:`kvmm.KVMMCache.retention_report`.

    Every run of the controller decides about every entry (a page of a head). The first change of an entry is what the
    budget asks for; those after it count. None if the controller has not run or had no pages.
    """
    decisions, flips = report["num_entries"] * report["runs"], report["repeated_flips"]
    return TierFlips(decisions, flips, flips / decisions) if decisions else None


def pooled_flips(parts: Sequence[TierFlips]) -> TierFlips | None:
    """The flips of several caches together; None without any."""
    decisions, flips = sum(part.decisions for part in parts), sum(part.flips for part in parts)
    return TierFlips(decisions, flips, flips / decisions) if decisions else None


__all__ = [
    "AnswerAgreement",
    "EarlyStop",
    "GeneratedAnswer",
    "LengthDrift",
    "PageAccuracy",
    "RefusalFlips",
    "RetrievalRaggedness",
    "SeedSensitivity",
    "TierFlips",
    "answer_agreement",
    "early_stop",
    "length_drift",
    "pooled_flips",
    "refusal_flips",
    "retrieval_raggedness",
    "seed_sensitivity",
    "similarity",
    "tier_flips",
]
