"""MMBench-Video: free answers about long videos, rated 0 to 3 by a judge (Fang et al. 2024, arXiv 2406.14515)."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from typing import Any, ClassVar

from kvmm.errors import KVMMError
from kvmm.eval.metrics.judge import Judge, read_rating
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task, mean
from kvmm.eval.tasks.collect import collect
from kvmm.eval.tasks.docvqa import row_id
from kvmm.eval.tasks.options import function
from kvmm.eval.tasks.rows import Row, media_key
from kvmm.eval.tasks.sources import open_rows
from kvmm.media import FPS, MAX_FRAMES

MOST = 3  # points of one answer
PERCEPTION: dict[str, tuple[str, ...]] = {
    "CP": ("Video Topic", "Video Emotion", "Video Scene", "Video Style"),
    "FP-S": ("OCR", "Object Recognition", "Attribute Recognition", "Event Recognition", "Human Motion", "Counting"),
    "FP-C": ("Spatial Relationship", "Human-object Interaction", "Human Interaction"),
    "HL": ("Hallucination",),
}
REASONING: dict[str, tuple[str, ...]] = {
    "LR": ("Structuralized Image-Text Understanding", "Mathematical Calculation"),
    "AR": ("Physical Property", "Function Reasoning", "Identity Reasoning"),
    "RR": ("Natural Relation", "Physical Relation", "Social Relation"),
    "CSR": ("Common Sense Reasoning",),
    "TR": ("Counterfactual Reasoning", "Causal Reasoning", "Future Prediction"),
}
GROUPS = {
    **PERCEPTION,
    **REASONING,
    "Perception": sum(PERCEPTION.values(), ()),
    "Reasoning": sum(REASONING.values(), ()),
}


class MMBenchVideo(Task):
    """The official ``MMBench-Video.tsv`` with its videos in ``video/``.

    Args:
        judge: see :mod:`kvmm.eval.metrics.judge`; a function ``judge(question, reference, prediction)`` that returns a
            rating of 0 to 3, or text that is one. Without it questions are answered but not scored.
        frames, fps: as :class:`~kvmm.eval.tasks.worldsense.WorldSense` has them.
    """

    name = "mmbench-video"
    metric: ClassVar[str] = "rating_share"
    max_new_tokens: ClassVar[int] = 256
    options: ClassVar[Any] = {"judge": function, "frames": int, "fps": float}
    recorded: ClassVar[tuple[str, ...]] = ("rating_share", "rejected")

    def __init__(self, judge: Judge | None = None, frames: int = MAX_FRAMES, fps: float = FPS):
        if judge is not None and not callable(judge):
            raise KVMMError("The judge is a function of question, reference and prediction that returns 0, 1, 2 or 3.")
        self.judge, self.frames, self.fps = judge, frames, fps

    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """See :meth:`Task.load`."""
        required = (("question",), ("answer",), ("video_path", "video"))
        name, rows = open_rows(source, mini=self.mini, split=split, required=required)
        return collect(self.name, name, rows, lambda row: row_id(row, "index", "id"), self._sample, limit)

    def _sample(self, row: Row, doc_id: str) -> Sample:
        video = row.video("video_path", "video", ending=".mp4")
        return Sample(
            doc_id=doc_id,
            question=row.text("question"),  # the benchmark asks video models with the question alone
            answers=row.answers("answer"),
            video=video,
            sampling={"fps": self.fps, "max_frames": self.frames},
            group=media_key(video),
            metadata={"dimensions": _dimensions(row.get("dimensions", default=[])), "type": row.get("video_type")},
        )

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """``rating_share``: the rating over 3, and ``rejected``, 1 where the judge gave none; {} without a judge."""
        if self.judge is None:
            return {}
        rating = read_rating(self.judge(sample.question, sample.answers[0], prediction))
        return {"rating_share": (rating or 0) / MOST, "rejected": float(rating is None)}

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Means as the benchmark's "all" (what the judge did not rate is 0), with the benchmark's scale as ``rating``.

        ``rating_valid`` leaves out what was not rated. A question of several dimensions counts once in each of them and
        once in each group that has one of them.
        """
        rated = [one for one in scored if "rating_share" in one.scores]
        if scored and not rated:  # an answer that nobody judged is not wrong
            return {"not_scored": float(len(scored))}
        result = {
            "rating_share": mean(scores["rating_share"] for _, scores, _ in rated),
            "rating": MOST * mean(scores["rating_share"] for _, scores, _ in rated),
            "rating_valid": MOST * mean(s["rating_share"] for _, s, _ in rated if not s.get("rejected")),
            "not_scored": float(len(scored) - len(rated)),
        }
        known = {name: (name,) for part in GROUPS.values() for name in part}
        for group, names in {**GROUPS, **known}.items():
            part = [one for one in rated if set(names) & set(one.sample.metadata["dimensions"])]
            if part:
                result[f"rating_share/{group}"] = mean(scores["rating_share"] for _, scores, _ in part)
        return result


def _dimensions(value: Any) -> list[str]:
    """A list, or the Python text of one, as the table holds it."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            value = [value]
    return [str(part) for part in value] if isinstance(value, (list, tuple)) else []


__all__ = ["GROUPS", "MMBenchVideo"]
