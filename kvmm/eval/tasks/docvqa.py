"""DocVQA: questions about scanned pages, scored by ANLS (Mathew et al. 2021); and its version over several pages."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from kvmm.eval.metrics import anls, exact_match
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task, mean, mean_by
from kvmm.eval.tasks.collect import collect
from kvmm.eval.tasks.rows import Row, media_key
from kvmm.eval.tasks.sources import open_rows

SUFFIX = "\nAnswer the question using a single word or phrase."  # lmms-eval's


def row_id(row: Row, *names: str) -> str:
    """The item's own id as text, or its position where the format has none."""
    value = row.get(*names)
    return str(value).strip() or str(row.number) if isinstance(value, (str, int)) else str(row.number)


class DocVQA(Task):
    """The official JSON with its folder of images, hub parquet (``lmms-lab/DocVQA:DocVQA``), or the same as an id."""

    name = "docvqa"
    metric: ClassVar[str] = "anls"
    max_new_tokens: ClassVar[int] = 32
    mini: ClassVar[str | None] = "docvqa"

    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """See :meth:`Task.load`. Without a split, validation is taken: the test split has no answers."""
        name, rows = open_rows(source, mini=self.mini, split=split, required=self._columns())
        return collect(self.name, name, rows, lambda row: row_id(row, "questionId", "question_id"), self._sample, limit)

    def _columns(self) -> tuple[tuple[str, ...], ...]:
        return ("question",), ("answers", "answer"), ("image",)

    def _sample(self, row: Row, doc_id: str) -> Sample:
        question, answers = row.text("question"), row.answers("answers", "answer")
        image = row.image("image")
        return Sample(
            doc_id=doc_id,
            question=question + SUFFIX,
            answers=answers,
            images=(image,),
            group=media_key(image),
            metadata={
                "question": question,
                "question_types": row.texts("question_types"),
                "page": row.get("ucsf_document_page_no"),
                "document": row.get("ucsf_document_id", "docId"),
            },
        )

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """``anls`` as lmms-eval and VLMEvalKit compute it, and ``exact_match`` of the normalised texts."""
        return {
            "anls": anls(prediction, sample.answers),
            "exact_match": float(exact_match(prediction, sample.answers)),
        }

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Means, and of ANLS also by the type of the question; a question of two types counts in both."""
        result = {metric: mean(s.scores[metric] for s in scored) for metric in ("anls", "exact_match")}
        types = sorted({t for s in scored for t in s.sample.metadata.get("question_types", ())})
        for kind in types:
            part = [s for s in scored if kind in s.sample.metadata["question_types"]]
            result |= mean_by(part, "anls", lambda _, kind=kind: kind)
        return result


class MultiPageDocVQA(DocVQA):
    """MP-DocVQA (Tito et al. 2023): the pages of ``page_ids`` as images ``images/{page_id}.jpg``, one question.

    A list of paths in ``images`` is read as well, and so is hub parquet with ``image_1`` .. ``image_20``.
    """

    name = "mp-docvqa"
    mini: ClassVar[str | None] = "multipage"

    def _columns(self) -> tuple[tuple[str, ...], ...]:
        return ("question",), ("answers", "answer"), ("images", "image_1", "page_ids")

    def _sample(self, row: Row, doc_id: str) -> Sample:
        question, answers = row.text("question"), self._answers(row)
        images = row.images("images", "page_ids", ending=".jpg")
        page = row.get("answer_page_idx")
        return Sample(
            doc_id=doc_id,
            question=question + SUFFIX,
            answers=answers,
            images=images,
            group=media_key(*images),
            metadata={
                "question": question,
                "pages": len(images),
                "answer_page": int(page) + 1 if str(page).isdigit() else None,
                "document": row.get("doc_id"),
            },
        )

    def _answers(self, row: Row) -> tuple[str, ...]:
        """The hub's parquet holds the list of answers as its Python text."""
        value = row.get("answers")
        if isinstance(value, str) and value.startswith("["):
            with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                row = replace(row, fields={**row.fields, "answers": ast.literal_eval(value)})
        return row.answers("answers", "answer")

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Means, and ANLS by how many pages there are."""
        result = {metric: mean(s.scores[metric] for s in scored) for metric in ("anls", "exact_match")}
        return result | mean_by(scored, "anls", lambda sample: f"pages={sample.metadata['pages']:02d}")


__all__ = ["SUFFIX", "DocVQA", "MultiPageDocVQA", "row_id"]
