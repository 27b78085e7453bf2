"""BLEU, ROUGE-L and CIDEr against pycocoevalcap's scores, and the tokenizer against what PTB writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvmm.eval.metrics.caption import bleu, cider, rouge_l, tokenize_caption

VECTORS = Path(__file__).parents[2] / "data" / "vectors"
CORPORA = json.loads((VECTORS / "captions.json").read_text(encoding="utf-8"))["corpora"]


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda corpus: f"{len(corpus['predictions'])} images")
def test_scores_are_those_of_pycocoevalcap(corpus: dict):
    predictions = [text.split() for text in corpus["predictions"]]
    references = [[text.split() for text in texts] for texts in corpus["references"]]
    assert bleu(predictions, references) == pytest.approx(corpus["bleu"], rel=1e-9, abs=1e-12)
    assert cider(predictions, references) == pytest.approx(corpus["cider"], rel=1e-9, abs=1e-12)
    scores = [rouge_l(words, texts) for words, texts in zip(predictions, references, strict=True)]
    assert scores == pytest.approx(corpus["rouge_l"], rel=1e-9, abs=1e-12)


def test_vectors_can_tell_wrong_scores():
    scores = [score for corpus in CORPORA for score in corpus["cider"]]
    assert len(scores) == 21 and len({round(score, 6) for score in scores}) > 15


def test_an_empty_corpus_scores_nothing():
    assert bleu([], []) == [0.0] * 4 and cider([], []) == []


OTHERWISE = {"email me@x.com now", "<b>bold</b>", "C++ book", "1+1", "more'n", "wow!nice", "really?yes"}


def test_tokenizer_writes_what_ptb_writes():
    rows = json.loads((VECTORS / "ptb.json").read_text(encoding="utf-8"))["rows"]
    differ = {row["caption"] for row in rows if tokenize_caption(row["caption"]) != row["words"]}
    assert len(rows) > 120 and differ == OTHERWISE  # the differences that the module names


def test_tokenizer_of_nothing():
    assert tokenize_caption("") == tokenize_caption("...") == []
