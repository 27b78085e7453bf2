"""Evaluation: benchmarks under several cache policies. This package exports the metrics of text.

``kvmm.eval.tasks`` reads the benchmarks, ``kvmm.eval.metrics`` scores answers, ``kvmm.eval.run`` asks a model, and
``kvmm.eval.report`` compares the policies; ``kvmm eval`` and ``kvmm report`` are their commands.
"""

from kvmm.eval.metrics import anls, cer, exact_match, normalise, ocrbench_hit

__all__ = ["anls", "cer", "exact_match", "normalise", "ocrbench_hit"]
