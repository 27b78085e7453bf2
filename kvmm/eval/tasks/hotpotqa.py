"""HotpotQA and 2WikiMultihopQA: questions over several paragraphs, among them distractors.

HotpotQA (Yang et al. 2018, arXiv 1809.09600) gives ten paragraphs of which two are needed; 2WikiMultihopQA (Ho et al.
2020, arXiv 2011.01060) the same in the same format. More distractors, from other questions of the same file, make the
text longer, and the needed paragraphs stand where the seed puts them.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from kvmm.errors import KVMMError
from kvmm.eval.metrics.hotpot import hotpot_exact_match, hotpot_f1
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task, mean, mean_by
from kvmm.eval.tasks.collect import collect
from kvmm.eval.tasks.docvqa import row_id
from kvmm.eval.tasks.rows import BadItem, Row
from kvmm.eval.tasks.sources import open_rows

ASK = (
    "Answer the question from these paragraphs, in a few words or with yes or no.\n\n{text}\n\n"
    "Question: {question}\nAnswer:"
)
MAX_PARAGRAPHS = 1000  # of one item

Paragraph = tuple[str, str]


class HotpotQA(Task):
    """``hotpot_dev_distractor_v1.json``, or ``hotpotqa/hotpot_qa:distractor``.

    Args:
        distractors: paragraphs of other questions to mix in, beside the item's own.
        seed: decides which, and the order of all.
    """

    name = "hotpotqa"
    metric: ClassVar[str] = "f1"
    max_new_tokens: ClassVar[int] = 32
    options: ClassVar[Any] = {"distractors": int, "seed": int}

    def __init__(self, distractors: int = 0, seed: int = 0):
        if not 0 <= distractors <= MAX_PARAGRAPHS:
            raise KVMMError(f"There can be 0 to {MAX_PARAGRAPHS} distractors, not {distractors}.")
        self.distractors, self.seed = distractors, seed

    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """See :meth:`Task.load`. With distractors all items are read, whatever the limit: they are the source."""
        required = (("question",), ("answer",), ("context",))
        name, rows = open_rows(source, mini=self.mini, split=split, required=required)
        some = None if self.distractors else limit
        found = collect(self.name, name, rows, lambda row: row_id(row, "_id", "id"), self._sample, some)
        if limit is not None and limit < 1:
            raise KVMMError(f"The limit is {limit}: ask for at least 1 sample.")
        samples = [self._asked(sample, found.samples) for sample in found.samples[:limit]]
        return SampleSet(found.name, found.source, tuple(samples), found.skipped)

    def _sample(self, row: Row, doc_id: str) -> Sample:
        question, answer = row.text("question"), row.text("answer")
        paragraphs = _paragraphs(row.get("context"))
        aliases = [str(one) for one in row.texts("answer_aliases", "aliases") if str(one).strip()]
        metadata = {"paragraphs": paragraphs, "type": row.get("type"), "level": row.get("level")}
        return Sample(doc_id, question, (answer, *aliases), metadata={"question": question, **metadata})

    def _asked(self, sample: Sample, others: Sequence[Sample]) -> Sample:
        r = random.Random(f"{self.seed}-{sample.doc_id}")
        paragraphs: dict[str, str] = dict(sample.metadata["paragraphs"])
        own, answer = len(paragraphs), _any_of(sample.answers)
        for _ in range(20 * self.distractors):  # titles that are there already do not count
            if len(paragraphs) >= own + self.distractors:
                break
            title, text = r.choice(r.choice(others).metadata["paragraphs"])
            if answer.search(f"{title}\n{text}".lower()) is None:
                paragraphs.setdefault(title, text)
        shown = list(paragraphs.items())
        if self.distractors:
            r.shuffle(shown)
        text = "\n\n".join(f"{title}\n{words}" for title, words in shown)
        metadata = {name: value for name, value in sample.metadata.items() if name != "paragraphs"}
        question = ASK.format(text=text, question=sample.question)
        return replace(sample, question=question, metadata={**metadata, "paragraphs": len(shown)})

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """``f1`` and ``exact_match`` of the first line, of the best reference."""
        line = (prediction.strip().splitlines() or [""])[0]
        return {
            "f1": max(hotpot_f1(line, answer) for answer in sample.answers),
            "exact_match": float(any(hotpot_exact_match(line, answer) for answer in sample.answers)),
        }

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Means, and F1 by the type of the question and its level."""
        return {
            **{name: mean(one.scores[name] for one in scored) for name in ("f1", "exact_match")},
            **mean_by(scored, "f1", lambda sample: sample.metadata["type"]),
            **mean_by(scored, "f1", lambda sample: sample.metadata["level"]),
        }


class TwoWikiMultihopQA(HotpotQA):
    """``dev.json`` of 2WikiMultihopQA, or its parquet, where the context is the JSON text of the list."""

    name = "2wikimultihopqa"


def _any_of(answers: Iterable[str]) -> re.Pattern[str]:
    """Finds an answer as whole words in lower case; "yes" and "no", which stand in any text, are not looked for."""
    words = [re.escape(answer.lower()) for answer in answers if answer.lower() not in ("yes", "no")]
    return re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)" if words else r"(?!)")


def _paragraphs(value: Any) -> list[Paragraph]:
    """``[[title, [sentence, ...]], ...]``, its JSON text, or ``{"title": [...], "sentences": [[...], ...]}``."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadItem("wrong context: not JSON") from error
    if isinstance(value, dict):
        titles, texts = value.get("title"), value.get("sentences", value.get("content"))
        if not isinstance(titles, Iterable) or not isinstance(texts, Iterable) or isinstance(titles, str):
            raise BadItem("wrong context: no titles")
        value = list(zip(titles, texts, strict=False))
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_PARAGRAPHS:
        raise BadItem("wrong context: not a list of paragraphs")
    found = []
    for one in value:
        if not isinstance(one, (list, tuple)) or len(one) != 2 or not isinstance(one[1], (list, tuple, str)):
            raise BadItem("wrong context: a paragraph is not a title and its sentences")
        text = one[1] if isinstance(one[1], str) else " ".join(str(part).strip() for part in one[1])
        found.append((str(one[0]), text))
    return found


__all__ = ["HotpotQA", "TwoWikiMultihopQA"]
