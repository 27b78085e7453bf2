"""Scores of answers, as the public harnesses compute them. All functions are pure and take text."""

from kvmm.eval.metrics.refusal import is_refusal, refusal_scores
from kvmm.eval.metrics.text import (
    ANLS_THRESHOLD,
    anls,
    cer,
    exact_match,
    levenshtein,
    normalise,
    ocrbench_hit,
    wer,
)

__all__ = [
    "ANLS_THRESHOLD",
    "anls",
    "cer",
    "exact_match",
    "is_refusal",
    "levenshtein",
    "normalise",
    "ocrbench_hit",
    "refusal_scores",
    "wer",
]
