"""LongBench-E: long English texts, thirteen tasks, scores by length (Bai et al. 2024)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from kvmm.errors import KVMMError
from kvmm.eval.metrics.longbench import longbench_score
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task, mean
from kvmm.eval.tasks.collect import collect
from kvmm.eval.tasks.docvqa import row_id
from kvmm.eval.tasks.rows import BadItem, Row
from kvmm.eval.tasks.sources import open_rows

# The benchmark's own prompts and lengths of answers; other words give other scores.
_PASSAGES = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
    "The following are given passages.\n{context}\n\n"
    "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
    "Question: {input}\nAnswer:"
)
_ARTICLE = (
    "as concisely as you can, using a single phrase or sentence if possible. If the question cannot be answered based "
    'on the information in the article, write "unanswerable". If the question is a yes/no question, answer "yes", '
    '"no", or "unanswerable". Do not provide any explanation.\n\n'
)
PROMPTS: dict[str, tuple[str, int]] = {
    "qasper": (
        f"You are given a scientific article and a question. Answer the question {_ARTICLE}Article: {{context}}\n\n "
        f"Answer the question based on the above article {_ARTICLE}Question: {{input}}\n\nAnswer:",
        128,
    ),
    "multifieldqa_en": (
        "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following question based on the "
        "above text, only give me the answer and do not output any other words.\n\nQuestion: {input}\nAnswer:",
        64,
    ),
    "hotpotqa": (_PASSAGES, 32),
    "2wikimqa": (_PASSAGES, 32),
    "gov_report": (
        "You are given a report by a government agency. Write a one-page summary of the report.\n\n"
        "Report:\n{context}\n\nNow, write a one-page summary of the report.\n\nSummary:",
        512,
    ),
    "multi_news": (
        "You are given several news passages. Write a one-page summary of all news. \n\n"
        "News:\n{context}\n\nNow, write a one-page summary of all the news.\n\nSummary:",
        512,
    ),
    "trec": (
        "Please determine the type of the question below. Here are some examples of questions.\n\n{context}\n{input}",
        64,
    ),
    "triviaqa": (
        "Answer the question based on the given passage. Only give me the answer and do not output any other words. "
        "The following are some examples.\n\n{context}\n\n{input}",
        32,
    ),
    "samsum": (
        "Summarize the dialogue into a few short sentences. The following are some examples.\n\n{context}\n\n{input}",
        128,
    ),
    "passage_count": (
        "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please carefully read "
        "these paragraphs and determine how many unique paragraphs there are after removing duplicates. In other "
        "words, how many non-repeating paragraphs are there in total?\n\n{context}\n\nPlease enter the final count of "
        "unique paragraphs after removing duplicates. The output format should only contain the number, such as 1, 2, "
        "3, and so on.\n\nThe final answer is: ",
        32,
    ),
    "passage_retrieval_en": (
        "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the abstract "
        "is from.\n\n{context}\n\nThe following is an abstract.\n\n{input}\n\nPlease enter the number of the paragraph "
        'that the abstract is from. The answer format must be like "Paragraph 1", "Paragraph 2", etc.\n\n'
        "The answer is: ",
        32,
    ),
    "lcc": ("Please complete the code given below. \n{context}Next line of code:\n", 64),
    "repobench-p": ("Please complete the code given below. \n{context}{input}Next line of code:\n", 64),
}
BUCKETS = ("0-4k", "4-8k", "8k+")


def bucket(length: int) -> str:
    """The benchmark's bucket of a text of ``length`` words."""
    return BUCKETS[(length >= 4000) + (length >= 8000)]


class LongBenchE(Task):
    """JSON lines with the official fields, one file per task (``qasper_e.jsonl`` ...) or all in one; or parquet.

    Prompts are given whole. The benchmark's script cuts them in the middle to what the model was trained for: leave
    out longer ones for models of a short context.

    Args:
        tasks: only these of the thirteen. The longest of their answers' lengths is :attr:`max_new_tokens`: one task
            at a time, as ``longbench-e@tasks=qasper``, has exactly the benchmark's.
    """

    name = "longbench-e"
    metric: ClassVar[str] = "longbench"
    max_new_tokens = 512
    options: ClassVar[Any] = {"tasks": lambda text: text.split("+")}

    def __init__(self, tasks: Sequence[str] = tuple(PROMPTS)):
        if not tasks or not set(tasks) <= PROMPTS.keys():
            raise KVMMError(f"LongBench-E has no task {'+'.join(tasks)}: choose of {', '.join(PROMPTS)}.")
        self.tasks = frozenset(tasks)
        self.max_new_tokens = max(PROMPTS[task][1] for task in tasks)

    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """See :meth:`Task.load`."""
        required = (("context",), ("answers",), ("dataset",))
        name, rows = open_rows(source, mini=self.mini, split=split, required=required, many=True)
        chosen = (row for row in rows if isinstance(row, tuple) or self._is_chosen(row))
        return collect(self.name, name, chosen, self._id, self._sample, limit)

    def _is_chosen(self, row: Row) -> bool:
        """Whether the item is one of the chosen tasks', or of none that is known."""
        dataset = str(row.get("dataset", default="")).removesuffix("_e")
        return dataset in self.tasks or dataset not in PROMPTS

    def _id(self, row: Row) -> str:
        return f"{row.get('dataset', default='')}-{row_id(row, '_id', 'id')}"

    def _sample(self, row: Row, doc_id: str) -> Sample:
        dataset = row.text("dataset").removesuffix("_e")
        if dataset not in PROMPTS:
            raise BadItem(f"not in LongBench-E: {dataset}")
        length = row.get("length")
        if not isinstance(length, int) or isinstance(length, bool):
            raise BadItem("no length")
        prompt, _ = PROMPTS[dataset]
        context, asked = row.text("context"), str(row.get("input", default=""))
        return Sample(
            doc_id=doc_id,
            question=_filled(prompt, context, asked),
            answers=row.answers("answers"),
            metadata={
                "dataset": dataset,
                "length": length,
                "bucket": bucket(length),
                "classes": row.texts("all_classes"),
            },
        )

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """The task's own metric in [0, 1], of the best reference."""
        meta = sample.metadata
        return {"longbench": longbench_score(meta["dataset"], prediction, sample.answers, meta["classes"])}

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Means of tasks, and of tasks in each bucket of length; ``longbench`` and the buckets are means over tasks."""
        cells: dict[tuple[str, str], list[float]] = {}
        for sample, scores, _ in scored:
            for part in ("", sample.metadata["bucket"]):
                cells.setdefault((part, sample.metadata["dataset"]), []).append(scores["longbench"])
        means = {cell: mean(values) for cell, values in sorted(cells.items())}
        result = {"longbench": mean(value for (part, _), value in means.items() if not part)}
        for name in BUCKETS:
            if values := [value for (part, _), value in means.items() if part == name]:
                result[f"longbench/{name}"] = mean(values)
        for (part, dataset), value in means.items():
            result[f"longbench/{dataset}" + (f"/{part}" if part else "")] = value
        return result


def _filled(prompt: str, context: str, asked: str) -> str:
    """The prompt with its two fields; braces in the texts are left alone."""
    head, tail = prompt.split("{context}")
    return head.replace("{input}", asked) + context + tail.replace("{input}", asked)


__all__ = ["BUCKETS", "PROMPTS", "LongBenchE", "bucket"]
