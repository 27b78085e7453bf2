"""GSM8K: word problems of grade school, whose worked answers end in a number (Cobbe et al. 2021, arXiv 2110.14168)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

from kvmm.eval.metrics.reasoning import last_number, same_number, strict_number
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task, mean
from kvmm.eval.tasks.collect import collect
from kvmm.eval.tasks.docvqa import row_id
from kvmm.eval.tasks.rows import BadItem, Row
from kvmm.eval.tasks.sources import open_rows

SUFFIX = "\nThink step by step. End with the final number alone after ####, as in: #### 42"


class GSM8K(Task):
    """The official ``test.jsonl``, or ``openai/gsm8k:main``. Models are asked in a chat, without examples."""

    name = "gsm8k"
    metric: ClassVar[str] = "exact_match"
    max_new_tokens: ClassVar[int] = 1024

    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """See :meth:`Task.load`."""
        required = (("question",), ("answer",))
        name, rows = open_rows(source, mini=self.mini, split=split, required=required)
        return collect(self.name, name, rows, lambda row: row_id(row, "id"), self._sample, limit)

    def _sample(self, row: Row, doc_id: str) -> Sample:
        question, solution = row.text("question"), row.text("answer")
        if (answer := strict_number(solution)) is None:
            raise BadItem('no answers: no number after "#### "')
        return Sample(doc_id, question + SUFFIX, (answer,), metadata={"question": question, "solution": solution})

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """``exact_match`` of the last number (lm-evaluation-harness' flexible-extract) and ``strict_match`` of the one
        after "#### ".
        """
        answer = sample.answers[0]
        return {
            "exact_match": float(same_number(last_number(prediction), answer)),
            "strict_match": float(same_number(strict_number(prediction), answer)),
        }

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """The share of right answers by both rules."""
        return {name: mean(one.scores[name] for one in scored) for name in ("exact_match", "strict_match")}


__all__ = ["GSM8K"]
