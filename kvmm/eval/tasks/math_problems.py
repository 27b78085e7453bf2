"""MATH: competition problems with answers in LaTeX (Hendrycks et al. 2021, arXiv 2103.03874); and AIME's integers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

from kvmm.eval.metrics.reasoning import boxed, last_integer, same_expression, whole_number
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task, mean, mean_by
from kvmm.eval.tasks.collect import collect
from kvmm.eval.tasks.docvqa import row_id
from kvmm.eval.tasks.rows import BadItem, Row
from kvmm.eval.tasks.sources import open_rows

SUFFIX = "\nReason step by step, and put the final answer in \\boxed{}."


class MATH(Task):
    """JSON lines or parquet with the official fields, or ``HuggingFaceH4/MATH-500``, ``EleutherAI/hendrycks_math``.

    The reference is ``answer``, or what the solution has in its last box.
    """

    name = "math"
    metric: ClassVar[str] = "accuracy"
    max_new_tokens = 2048

    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """See :meth:`Task.load`."""
        required = (("problem", "question", "Problem"), ("answer", "solution", "Answer"))
        name, rows = open_rows(source, mini=self.mini, split=split, required=required)
        return collect(self.name, name, rows, lambda row: row_id(row, "unique_id", "id", "ID"), self._sample, limit)

    def _sample(self, row: Row, doc_id: str) -> Sample:
        problem = row.text("problem", "question", "Problem")
        metadata = {"question": problem, "subject": row.get("subject", "type"), "level": _level(row)}
        return Sample(doc_id, problem + SUFFIX, (self._answer(row),), metadata=metadata)

    def _answer(self, row: Row) -> str:
        answer = row.get("answer", "Answer")
        answer = boxed(row.text("solution")) if answer is None else str(answer)
        if answer is None or not answer.strip():
            raise BadItem("no answers: the solution has no box")
        return answer

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """``accuracy``: 1 when the last box holds the same expression. ``boxed``: whether there is a box at all."""
        answer = boxed(prediction)
        return {
            "accuracy": float(same_expression(answer, sample.answers[0])),
            "boxed": float(answer is not None),
        }

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Means, and accuracy by subject and by level."""
        return {
            **{name: mean(one.scores[name] for one in scored) for name in ("accuracy", "boxed")},
            **mean_by(scored, "accuracy", lambda sample: sample.metadata["subject"]),
            **mean_by(scored, "accuracy", lambda sample: sample.metadata["level"]),
        }


class AIME(MATH):
    """A year of the American Invitational Mathematics Examination: answers are whole numbers from 0 to 999.

    JSON lines or parquet with ``problem`` and ``answer``, or ``HuggingFaceH4/aime_2024``, ``opencompass/AIME2025:...``.
    """

    name = "aime"
    max_new_tokens = 8192

    def _answer(self, row: Row) -> str:
        number = last_integer(str(row.get("answer", "Answer", default="")))
        if number is None or not 0 <= number <= 999:
            raise BadItem("wrong answer: not a whole number from 0 to 999")
        return str(number)

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """``accuracy``: 1 when the last box holds the number, or without one the text ends in it."""
        answer = boxed(prediction)
        number = last_integer(prediction) if answer is None else whole_number(answer)
        return {"accuracy": float(str(number) == sample.answers[0]), "boxed": float(answer is not None)}


def _level(row: Row) -> str | None:
    level = row.get("level")
    return None if level is None else f"level {str(level).removeprefix('Level ')}"


__all__ = ["AIME", "MATH"]
