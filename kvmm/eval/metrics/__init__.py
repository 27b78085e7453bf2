"""Scores of answers, as the public harnesses compute them. All functions are pure and take text."""

from kvmm.eval.metrics.text import (
    ANLS_THRESHOLD,
    anls,
    cer,
    exact_match,
    levenshtein,
    normalise,
    ocrbench_hit,
)

__all__ = ["ANLS_THRESHOLD", "anls", "cer", "exact_match", "levenshtein", "normalise", "ocrbench_hit"]
