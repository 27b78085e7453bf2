"""OCRBench: reading text in ten kinds of pictures, scored by containment (Liu et al. 2023)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

from kvmm.eval.metrics import ocrbench_hit
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task, mean, mean_by
from kvmm.eval.tasks.collect import collect
from kvmm.eval.tasks.docvqa import row_id
from kvmm.eval.tasks.rows import BadItem, Row, media_key
from kvmm.eval.tasks.sources import open_rows

# type: (group, points in the whole benchmark)
TYPES = {
    "Regular Text Recognition": ("Text Recognition", 50),
    "Irregular Text Recognition": ("Text Recognition", 50),
    "Artistic Text Recognition": ("Text Recognition", 50),
    "Handwriting Recognition": ("Text Recognition", 50),
    "Digit String Recognition": ("Text Recognition", 50),
    "Non-Semantic Text Recognition": ("Text Recognition", 50),
    "Scene Text-centric VQA": ("Scene Text-centric VQA", 200),
    "Doc-oriented VQA": ("Doc-oriented VQA", 200),
    "Key Information Extraction": ("Key Information Extraction", 200),
    "Handwritten Mathematical Expression Recognition": ("Handwritten Mathematical Expression Recognition", 100),
}


class OCRBench(Task):
    """The official JSON with its images, hub parquet (``echo840/OCRBench``), or the same as an id."""

    name = "ocrbench"
    metric: ClassVar[str] = "ocrbench_accuracy"
    max_new_tokens: ClassVar[int] = 128
    mini: ClassVar[str | None] = "ocrbench"

    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """See :meth:`Task.load`. The prompt is the question alone, as in lmms-eval."""
        required = (("question",), ("answer", "answers"), ("question_type", "type"), ("image", "image_path"))
        name, rows = open_rows(source, mini=self.mini, split=split, required=required)
        return collect(self.name, name, rows, lambda row: row_id(row, "id"), self._sample, limit)

    def _sample(self, row: Row, doc_id: str) -> Sample:
        kind = row.text("type", "question_type")
        if kind not in TYPES:
            raise BadItem(f"unknown type: {kind}")
        image = row.image("image_path", "image")
        return Sample(
            doc_id=doc_id,
            question=row.text("question").strip(),
            answers=row.answers("answers", "answer"),
            images=(image,),
            group=media_key(image),
            metadata={"type": kind, "group": TYPES[kind][0], "dataset": row.get("dataset_name", "dataset", default="")},
        )

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """1 when an answer occurs in the prediction, else 0."""
        hit = ocrbench_hit(prediction, sample.answers, str(sample.metadata["dataset"]))
        return {"ocrbench_accuracy": float(hit)}

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """The share of hits; the same by group and by type; and ``ocrbench_score`` of 1000 points.

        Of the whole benchmark the points are the number of hits. Of a part, each type counts with its points in the
        whole, scaled so that all hits are 1000.
        """
        accuracy = "ocrbench_accuracy"
        by_type = mean_by(scored, accuracy, lambda sample: sample.metadata["type"])
        points = {kind: TYPES[kind][1] for kind in TYPES if f"{accuracy}/{kind}" in by_type}
        won = sum(by_type[f"{accuracy}/{kind}"] * most for kind, most in points.items())
        return {
            accuracy: mean(scores[accuracy] for _, scores, _ in scored),
            "ocrbench_score": 1000 * won / sum(points.values()) if points else 0.0,
            **mean_by(scored, accuracy, lambda sample: sample.metadata["group"]),
            **by_type,
        }


__all__ = ["TYPES", "OCRBench"]
