"""MMAU-Pro: questions about speech, sounds and music (Kumar et al. 2025); and MMAU, its predecessor.

Three kinds of items. *Closed* ones have choices. *Instruction following* is checked by rules. *Open-ended* ones need a
judge (:mod:`kvmm.eval.metrics.judge`): it returns an LLM's text about four criteria of 1 to 5 points, whose overall
score over 5 is the answer's, or a number in [0, 1]. Without one they are answered but not scored, and ``not_scored``
says how many they are.

The benchmark's own script matches closed answers to choices by the similarity of embeddings of a 7B model; here the
letter that lmms-eval's prompt asks for decides, and where there is none MMAU's rule of words.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, ClassVar

from kvmm.errors import KVMMError
from kvmm.eval.metrics.choice import LETTERS, choice_correct
from kvmm.eval.metrics.instructions import RULES, follows_instruction
from kvmm.eval.metrics.judge import BEST, CRITERIA, GOOD, POOR, Judge, read_criteria
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task, mean, mean_by
from kvmm.eval.tasks.collect import collect
from kvmm.eval.tasks.docvqa import row_id
from kvmm.eval.tasks.options import function
from kvmm.eval.tasks.rows import BadItem, Row, find_file
from kvmm.eval.tasks.sources import open_rows

CHOICE_SUFFIX = "\nAnswer with the option's letter from the given choices directly."  # lmms-eval's for MMAU
CLOSED, OPEN, INSTRUCTION = "closed", "open", "instruction following"


class MMAUPro(Task):
    """``test.parquet`` with its ``data/`` folder of recordings, JSON with the same fields, or an id.

    Args:
        judge: scores an open-ended answer, see above; must be a module's function where samples are spread over
            processes.
    """

    name = "mmau-pro"
    metric: ClassVar[str] = "accuracy"
    max_new_tokens: ClassVar[int] = 128
    part_of: ClassVar[tuple[str, ...]] = ("category", "task")
    options: ClassVar[Any] = {"judge": function}
    recorded: ClassVar[tuple[str, ...]] = ("accuracy", *CRITERIA, "overall")

    def __init__(self, judge: Judge | None = None):
        if judge is not None and not callable(judge):
            raise KVMMError(
                "The judge is a function of question, reference and prediction that returns a text or a number."
            )
        self.judge = judge

    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """See :meth:`Task.load`. Items of several recordings are left out: a prompt holds one."""
        required = (("question",), ("audio_path", "audio", "audio_id"))
        name, rows = open_rows(source, mini=self.mini, split=split, required=required)
        return collect(self.name, name, rows, lambda row: row_id(row, "id", "question_id"), self._sample, limit)

    def _sample(self, row: Row, doc_id: str) -> Sample:
        category = str(row.get(*self.part_of, default="")).lower()
        choices = _choices(row.get("choices"))
        kind = category if category in (OPEN, INSTRUCTION) else CLOSED
        question = row.get("question", default="")
        if not isinstance(question, str):
            raise BadItem("question is not a text")
        metadata: dict[str, Any] = {"kind": kind, "category": category or None, "length": row.get("length_type")}
        answers: tuple[str, ...] = ()
        if kind == INSTRUCTION:
            rule = row.text("task_identifier")
            if rule not in RULES:
                raise BadItem(f"unknown instruction: {rule}")
            values = {name: value for name, value in dict(row.get("kwargs", default={})).items() if value is not None}
            metadata |= {
                "rule": rule,
                "kwargs": values,
                "transcription": row.get("prompt_transcription", "transcription", "question"),
            }
        else:
            answers = row.answers("answer")
            if not question.strip():
                raise BadItem("empty question")
        if kind == CLOSED:
            if not 2 <= len(choices) <= len(LETTERS):
                raise BadItem(f"wrong choices: {len(choices)}")
            if answers[0].strip().lower() not in [choice.strip().lower() for choice in choices]:
                raise BadItem("wrong choices: the answer is not among them")
            listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
            question = f"{question}\n{listed}{CHOICE_SUFFIX}"
            metadata["choices"] = choices
        return Sample(doc_id, question, answers, audio=_recording(row), metadata=metadata)

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """``accuracy`` in [0, 1], and the judge's points where it gave them; {} for an open item without a judge."""
        kind = sample.metadata["kind"]
        if kind == CLOSED:
            right = choice_correct(prediction, sample.answers[0], sample.metadata["choices"])
        elif kind == INSTRUCTION:
            meta = sample.metadata
            right = follows_instruction(prediction, meta["rule"], meta["kwargs"], meta["transcription"] or "")
        elif self.judge is not None:
            judged = self.judge(sample.question, sample.answers[0], prediction)
            if isinstance(judged, str):
                points = read_criteria(judged)
                return {"accuracy": points["overall"] / BEST, **points}
            value = float(judged)
            if not 0 <= value <= 1:
                raise KVMMError(f"The judge returned {value}: it must return a number from 0 to 1.")
            return {"accuracy": value}
        else:
            return {}
        return {"accuracy": float(right)}

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """The mean over all scored items, by kind and by category, and how many are not scored.

        Of the items with a judge's points also the mean of each criterion (1 to 5), ``good_rate``, the share with an
        overall score of 4 or more, and ``poor_rate``, of 2 or less, as in the benchmark's script. ``accuracy`` is then
        its weighted performance.
        """
        judged = [scores for _, scores, _ in scored if "overall" in scores]
        points: dict[str, float] = {}
        if judged:
            points = {f"points/{name}": mean(scores[name] for scores in judged) for name in (*CRITERIA, "overall")}
            points["good_rate"] = mean(float(scores["overall"] >= GOOD) for scores in judged)
            points["poor_rate"] = mean(float(scores["overall"] <= POOR) for scores in judged)
        right = [scores["accuracy"] for _, scores, _ in scored if "accuracy" in scores]
        return {
            **({"accuracy": mean(right)} if right or not scored else {}),
            "not_scored": float(len(scored) - len(right)),
            **mean_by(scored, "accuracy", lambda sample: sample.metadata["kind"]),
            **mean_by(scored, "accuracy", lambda sample: sample.metadata["category"]),
            **points,
        }


def _choices(value: Any) -> list[str]:
    """A list, or the JSON text of one, as in ``lmms-lab/mmau``."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadItem("wrong choices: not a list") from error
    return [str(choice) for choice in value] if isinstance(value, (list, tuple)) else []


def _recording(row: Row) -> Any:
    paths = row.get("audio_path")
    if isinstance(paths, (list, tuple)):
        if len(paths) > 1:
            raise BadItem(f"several recordings: {len(paths)}")
        if not paths or not isinstance(paths[0], str):
            raise BadItem("missing audio")
        return find_file(row.folder, paths[0], "audio")
    return row.audio("audio", "audio_path", "audio_id")


class MMAU(MMAUPro):
    """MMAU (Sakshi et al. 2024): choices only; the JSON of its test-mini with recordings, or ``lmms-lab/mmau``."""

    name = "mmau"
    part_of: ClassVar[tuple[str, ...]] = ("task", "category")


__all__ = ["CHOICE_SUFFIX", "MMAU", "Judge", "MMAUPro"]
