"""Questions about recordings, and spoken questions about pages, in DocVQA's JSON: scored by ANLS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kvmm.eval.tasks.base import Sample, Scored, mean_by
from kvmm.eval.tasks.docvqa import SUFFIX, DocVQA
from kvmm.eval.tasks.rows import Row, media_key


class AudioQA(DocVQA):
    """DocVQA's JSON with ``audio``, a recording, and optionally ``images``.

    An empty ``question`` means that the recording asks it: then the prompt holds no text at all.
    """

    name = "audio-qa"
    max_new_tokens: ClassVar[int] = 64  # what a recording says, word for word
    mini: ClassVar[str | None] = "audio"

    def _columns(self) -> tuple[tuple[str, ...], ...]:
        return ("question",), ("answers", "answer"), ("audio",)

    def _sample(self, row: Row, doc_id: str) -> Sample:
        question = str(row.get("question", default="")).strip()
        answers = row.answers("answers", "answer")
        has_images = bool(row.get("images") or row.media.get("images"))
        images = row.images("images") if has_images else ()
        audio = row.audio("audio")
        return Sample(
            doc_id=doc_id,
            question=question + SUFFIX if question else "",
            answers=answers,
            images=images,
            audio=audio,
            group=media_key(*images, audio),
            metadata={"question": question, "question_types": row.texts("question_types"), "spoken": row.get("spoken")},
        )

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Means, and ANLS of questions by type and of spoken and written ones."""
        how = mean_by(scored, "anls", lambda sample: "written question" if sample.question else "spoken question")
        return super().aggregate(scored) | how


__all__ = ["AudioQA"]
