"""Evaluation files: records and results of runs that reports read, and benchmarks' data files."""

from __future__ import annotations

from pathlib import Path

_MINI = Path(__file__).parents[2] / "assets" / "mini"
_TASKS = {"docvqa": ("docvqa", "val_v1.0_withQT.json"), "ocrbench": ("ocrbench", "OCRBench.json")}
