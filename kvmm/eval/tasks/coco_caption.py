"""COCO captions: one sentence about a photograph, scored by CIDEr, BLEU and ROUGE-L (Chen et al. 2015)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from kvmm.eval.metrics.caption import bleu, cider, rouge_l, tokenize_caption
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task, mean
from kvmm.eval.tasks.collect import collect
from kvmm.eval.tasks.docvqa import row_id
from kvmm.eval.tasks.rows import Row
from kvmm.eval.tasks.sources import open_rows

PROMPT = "Provide a one-sentence caption for the provided image."  # lmms-eval's


def captions_by_image(content: Any) -> Any:
    """Items of one image each from COCO's ``images`` and ``annotations``; anything else is returned as it is."""
    if not isinstance(content, dict) or not {"images", "annotations"} <= content.keys():
        return content
    if not all(isinstance(content[part], list) for part in ("images", "annotations")):
        return None
    captions: dict[str, list[Any]] = {}
    for annotation in content["annotations"]:
        if isinstance(annotation, dict):
            captions.setdefault(str(annotation.get("image_id")), []).append(annotation.get("caption"))
    return [
        {"id": image.get("id"), "image": image.get("file_name"), "answer": captions.get(str(image.get("id")), [])}
        if isinstance(image, dict)
        else image
        for image in content["images"]
    ]


class COCOCaption(Task):
    """The official ``captions_val2014.json`` with its photographs, or hub parquet (``lmms-lab/COCO-Caption``)."""

    name = "coco-caption"
    metric: ClassVar[str] = "CIDEr"
    max_new_tokens: ClassVar[int] = 64

    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """See :meth:`Task.load`. A folder may hold the captions in ``annotations/``, as COCO's archives unpack."""
        path = Path(os.fspath(source)).expanduser()
        if path.is_dir() and not any(path.glob("*.json*")) and any((path / "annotations").glob("captions_*.json")):
            annotation_files = sorted((path / "annotations").glob(f"captions_*{split or 'val'}*.json"))
            source = annotation_files[0] if len(annotation_files) == 1 else path / "annotations"
        required = (("answer", "captions"), ("image",))
        name, rows = open_rows(source, mini=self.mini, split=split, required=required, arrange=captions_by_image)
        return collect(self.name, name, rows, lambda row: row_id(row, "question_id", "id"), self._sample, limit)

    def _sample(self, row: Row, doc_id: str) -> Sample:
        return Sample(
            doc_id=doc_id,
            question=PROMPT,
            answers=row.answers("answer", "captions"),
            images=(row.image("image"),),
        )

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """ROUGE-L of the caption; the other metrics depend on all captions."""
        return {"ROUGE_L": rouge_l(tokenize_caption(prediction), [tokenize_caption(text) for text in sample.answers])}

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """CIDEr in [0, 10], BLEU-1 to BLEU-4 and ROUGE-L in [0, 1]."""
        predictions = [tokenize_caption(prediction) for _, _, prediction in scored]
        references = [[tokenize_caption(text) for text in sample.answers] for sample, _, _ in scored]
        return {
            "CIDEr": mean(cider(predictions, references)),
            **{f"BLEU_{n}": score for n, score in enumerate(bleu(predictions, references), 1)},
            "ROUGE_L": mean(scores["ROUGE_L"] for _, scores, _ in scored),
        }


__all__ = ["PROMPT", "COCOCaption", "captions_by_image"]
