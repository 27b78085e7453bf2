"""PG-19: the perplexity of books from Project Gutenberg (Rae et al. 2019, arXiv 1911.05507), or of any other text.

Nothing is answered. The first tokens of each text are read exactly and packed; those that follow are read over the
packed cache, and their likelihood is the score. ``inverse_perplexity`` is the mean probability of a token (geometric),
so that higher is better and a text counts between 0 and 1.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from kvmm.errors import KVMMError
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task
from kvmm.eval.tasks.collect import collect
from kvmm.eval.tasks.docvqa import row_id
from kvmm.eval.tasks.rows import BadItem, Row
from kvmm.eval.tasks.sources import open_rows, read_text

CHARACTERS_A_TOKEN = 8  # more than any vocabulary needs for prose: the model's tokenizer cuts the text to its length


class PG19(Task):
    """A .txt file, a folder of them (the official ``test/``), or rows with ``text`` (``deepmind/pg19``).

    Args:
        context: tokens that are read exactly and packed.
        tokens: tokens after them whose likelihood is measured.
        stride: tokens that are read at once and see each other exactly; the last one is a step of decoding, which packs
            what is full. 1 is decoding throughout, and slow.
        windows: pieces of a text, one after another from its beginning, each with a context of its own.
    """

    name = "pg19"
    metric: ClassVar[str] = "inverse_perplexity"
    max_new_tokens = 1
    options: ClassVar[Any] = {"context": int, "tokens": int, "stride": int, "windows": int}
    recorded: ClassVar[tuple[str, ...]] = ("inverse_perplexity", "log_likelihood", "tokens", "words")
    reads_on: ClassVar[bool] = True

    def __init__(self, context: int = 1024, tokens: int = 512, stride: int = 128, windows: int = 1):
        if min(context, tokens) < 2 or min(stride, windows) < 1:
            raise KVMMError("A text needs a context and tokens of 2 or more, a stride and windows of 1 or more.")
        self.context, self.tokens, self.stride, self.windows = context, tokens, stride, windows
        self.max_new_tokens = tokens

    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """See :meth:`Task.load`."""
        path = Path(os.fspath(source)).expanduser()
        files = [path] if path.suffix == ".txt" else sorted(path.glob("*.txt")) if path.is_dir() else []
        if files:
            name, rows = os.fspath(source), _texts(files)
        else:
            name, rows = open_rows(source, mini=self.mini, split=split, required=(("text",),), many=True)
        pieces = (piece for row in rows for piece in self._pieces(row))
        return collect(self.name, name, pieces, lambda row: row_id(row, "piece"), self._sample, limit)

    def _pieces(self, row: Row | tuple[str, str]) -> Iterator[Row | tuple[str, str]]:
        if isinstance(row, tuple):
            yield row
            return
        book = row_id(row, "short_book_title", "id", "name")
        length = CHARACTERS_A_TOKEN * (self.context + self.tokens)
        for window in range(self.windows):
            yield Row({**row.fields, "piece": f"{book}-{window}", "start": window * length}, row.number, {})

    def _sample(self, row: Row, doc_id: str) -> Sample:
        start = row.fields["start"]
        text = row.text("text")[start : start + CHARACTERS_A_TOKEN * (self.context + self.tokens)]
        if len(text) < self.context + self.tokens:
            raise BadItem(f"short text: {len(text)} characters")
        return Sample(doc_id, text, (), metadata={"start": start})

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """Nothing: the likelihood comes from the model, with the row."""
        return {}

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Over all tokens of all texts: ``inverse_perplexity``, ``perplexity`` per token, and ``word_perplexity``, per
        word, which does not depend on the vocabulary and is what the data set's paper reports.
        """
        parts = [scores for _, scores, _ in scored if scores.get("tokens")]
        tokens, words = (sum(scores[name] for scores in parts) for name in ("tokens", "words"))
        total = sum(scores["log_likelihood"] * scores["tokens"] for scores in parts)
        if not tokens:
            return {"inverse_perplexity": 0.0}
        return {
            "inverse_perplexity": math.exp(total / tokens),
            "perplexity": math.exp(-total / tokens),
            "word_perplexity": math.exp(min(-total / max(words, 1), 700)),
        }


def _texts(files: Sequence[Path]) -> Iterator[Row | tuple[str, str]]:
    for number, file in enumerate(files):
        try:
            yield Row({"name": file.stem, "text": read_text(file)}, number, {})
        except KVMMError as error:
            yield file.stem, f"unreadable: {error}"


__all__ = ["PG19"]
