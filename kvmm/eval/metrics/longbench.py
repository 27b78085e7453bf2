"""LongBench's metrics for its English tasks (Bai et al. 2024), as its own script computes them.

ROUGE-L is that of the ``rouge`` package, which counts distinct words and joins the common subsequences of all
sentences; the similarity of code is that of ``fuzzywuzzy``.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

Metric = Callable[[str, str, Sequence[str]], float]
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def squad_words(text: str) -> list[str]:
    """Lower case, without punctuation and articles, split into words (SQuAD's normalisation)."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_NO_PUNCTUATION)).split()


def qa_f1(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """F1 of the words that two answers share."""
    given, wanted = squad_words(prediction), squad_words(answer)
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


def rouge(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """ROUGE-L, F1, at the level of summaries; 0 when one of the two has no sentence."""
    given, wanted = _rouge_sentences(prediction), _rouge_sentences(answer)
    if not given or not wanted:
        return 0.0
    union = {word for sentence in wanted for other in given for word in _common_words(sentence, other)}
    precision = len(union) / len({word for sentence in given for word in sentence})
    recall = len(union) / len({word for sentence in wanted for word in sentence})
    return 2 * precision * recall / (precision + recall + 1e-8)


def _rouge_sentences(text: str) -> list[list[str]]:
    """Sentences end at full stops; one of spaces only counts as an empty word."""
    return [part.split() or [""] for part in text.split(".") if part]


def _common_words(a: list[str], b: list[str]) -> set[str]:
    """The words of one longest common subsequence; of several, the one that ``rouge`` finds."""
    table = [[0] * (len(b) + 1)]
    for left in a:
        above, row = table[-1], [0]
        for j, right in enumerate(b):
            row.append(above[j] + 1 if left == right else max(above[j + 1], row[j]))
        table.append(row)
    words, i, j = set(), len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            words.add(a[i - 1])
            i, j = i - 1, j - 1
        elif table[i - 1][j] > table[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words


def classification(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """1 over the number of classes named, when the right one is among them.

    A class whose name is part of the right one's does not count. As in the script, names are removed while the list is
    walked through, so of two such classes in a row the second stays.
    """
    named = [name for name in classes if name in prediction]
    for name in named:
        if name in answer and name != answer:
            named.remove(name)
    return 1 / len(named) if answer in named else 0.0


def retrieval(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """The share of the numbers in the prediction that are the paragraph's ("Paragraph 12")."""
    match = re.search(r"Paragraph (\d+)", answer)
    return _share(prediction, match.group(1)) if match else 0.0


def count(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """The share of the numbers in the prediction that are the right one."""
    return _share(prediction, answer)


def _share(prediction: str, number: str) -> float:
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(number) / len(numbers) if numbers else 0.0


def code_similarity(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """How alike the first line of code in the prediction is to the answer, in steps of 1 %."""
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    if not line or not answer:
        return float(line == answer)
    from rapidfuzz.distance import Indel

    return round(100 * Indel.normalized_similarity(line, answer)) / 100


METRICS: dict[str, Metric] = {
    "qasper": qa_f1,
    "multifieldqa_en": qa_f1,
    "hotpotqa": qa_f1,
    "2wikimqa": qa_f1,
    "gov_report": rouge,
    "multi_news": rouge,
    "trec": classification,
    "triviaqa": qa_f1,
    "samsum": rouge,
    "passage_count": count,
    "passage_retrieval_en": retrieval,
    "lcc": code_similarity,
    "repobench-p": code_similarity,
}
FIRST_LINE_ONLY = ("trec", "triviaqa", "samsum")


def longbench_score(dataset: str, prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The score in [0, 1] of one answer to a task of LongBench-E; the best reference counts.

    Raises:
        KeyError: the task is not one of :data:`METRICS`.
    """
    metric = METRICS[dataset]
    if dataset in FIRST_LINE_ONLY:
        prediction = prediction.lstrip("\n").split("\n")[0]
    return max((metric(prediction, answer, classes) for answer in answers), default=0.0)


__all__ = [
    "FIRST_LINE_ONLY",
    "METRICS",
    "classification",
    "code_similarity",
    "count",
    "longbench_score",
    "qa_f1",
    "retrieval",
    "rouge",
]
