"""Ordinary documents and voice memos, in DocVQA's JSON with ``kind``: how a model fares with what people have.

Each kind of question has its score: ANLS of questions about pages, exact matches of questions about memos, character
and word errors of transcripts, and how well the model tells when a page does not say. The bundled set
(``tests/blind``) is never trained on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from statistics import median
from typing import ClassVar

from kvmm.eval.metrics import anls, cer, exact_match, is_refusal, refusal_scores, wer
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task, mean, mean_by
from kvmm.eval.tasks.collect import collect
from kvmm.eval.tasks.docvqa import row_id
from kvmm.eval.tasks.rows import Row, media_key
from kvmm.eval.tasks.sources import open_rows

TRANSCRIPTION, TRANSCRIPT = "transcription", "memo transcript"
MEMO, UNANSWERABLE = "memo", "unanswerable"


class Blind(Task):
    """Questions as people type them, without an instruction on how to answer.

    A row has ``question``, ``answers``, ``kind``, and ``files`` (images, or one PDF) or ``audio``. The kinds
    "transcription", "memo" and "memo transcript" are scored in their own way, those that begin with "unanswerable" want
    a refusal, and all others are free names. ``document`` (what sort of document) and ``condition`` (how it was taken)
    make rows of their own.
    """

    name = "blind"
    metric: ClassVar[str] = "anls"
    max_new_tokens: ClassVar[int] = 768  # a full page of prose, word for word

    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """See :meth:`Task.load`."""
        required = (("question",), ("answers", "answer"), ("kind",))
        name, rows = open_rows(source, mini=self.mini, split=split, required=required)
        return collect(self.name, name, rows, lambda row: row_id(row, "questionId", "question_id"), self._sample, limit)

    def _sample(self, row: Row, doc_id: str) -> Sample:
        audio = row.audio("audio") if row.get("audio") else None
        images = row.documents("files") if audio is None else ()
        return Sample(
            doc_id=doc_id,
            question=row.text("question"),
            answers=row.answers("answers", "answer"),
            images=images,
            audio=audio,
            group=media_key(*images, *([] if audio is None else [audio])),
            metadata={
                "kind": row.text("kind"),
                "document": row.get("document", default="document"),
                "condition": row.texts("condition"),
            },
        )

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """``cer`` or ``wer`` of a transcript; else ``refused``, and ANLS and exact match, of memos as ``memo_...``.

        An unanswerable question is answered right by a refusal in any words.
        """
        kind = sample.metadata["kind"]
        if kind == TRANSCRIPTION:
            return {"cer": min(cer(prediction, answer) for answer in sample.answers)}
        if kind == TRANSCRIPT:
            return {"wer": wer(prediction, sample.answers)}
        refused = is_refusal(prediction)
        similarity, match = anls(prediction, sample.answers), float(exact_match(prediction, sample.answers))
        if _is_unanswerable(sample):
            similarity = match = float(refused)
        prefix = "memo_" if sample.audio is not None else ""
        return {f"{prefix}anls": similarity, f"{prefix}exact_match": match, "refused": float(refused)}

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Means of each metric, ANLS by kind, document and condition, and the refusals.

        ``anls`` is over all questions about pages but transcriptions, unanswerable ones among them; ``answerable_anls``
        leaves these out.
        """
        means = ("anls", "exact_match", "memo_anls", "memo_exact_match", "cer", "wer")
        values = {metric: _values(scored, metric) for metric in means}
        values["answerable_anls"] = _values([s for s in scored if not _is_unanswerable(s.sample)], "anls")
        # what no answer has is not 0: without a transcription there is no error rate
        result = {metric: mean(found) for metric, found in values.items() if found or not scored}
        if values["cer"] or not scored:
            result["cer_median"] = median(values["cer"] or [0.0])
        asked = [s for s in scored if "refused" in s.scores]
        result |= refusal_scores((_is_unanswerable(s.sample), s.scores["refused"] > 0) for s in asked)
        result |= mean_by(scored, "anls", lambda sample: sample.metadata["kind"])
        result |= mean_by(scored, "memo_exact_match", lambda sample: sample.metadata["kind"])
        result |= _renamed(mean_by(scored, "anls", lambda sample: sample.metadata["document"]), "document_anls")
        for condition in sorted({name for s in scored for name in s.sample.metadata["condition"]}):
            part = mean_by(scored, "anls", _where(condition))
            result |= _renamed(part, "condition_anls")
        return result


def _is_unanswerable(sample: Sample) -> bool:
    return str(sample.metadata["kind"]).startswith(UNANSWERABLE)


def _values(scored: Sequence[Scored], metric: str) -> list[float]:
    return [s.scores[metric] for s in scored if metric in s.scores]


def _where(condition: str) -> Callable[[Sample], str | None]:
    return lambda sample: condition if condition in sample.metadata["condition"] else None


def _renamed(part: dict[str, float], metric: str) -> dict[str, float]:
    return {f"{metric}/{key.split('/', 1)[1]}": value for key, value in part.items()}


__all__ = ["MEMO", "TRANSCRIPT", "TRANSCRIPTION", "UNANSWERABLE", "Blind"]
