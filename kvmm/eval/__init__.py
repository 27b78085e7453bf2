"""Evaluation: metrics of the field's benchmarks."""

from kvmm.eval.metrics import anls, cer, exact_match, normalise, ocrbench_hit

__all__ = ["anls", "cer", "exact_match", "normalise", "ocrbench_hit"]
