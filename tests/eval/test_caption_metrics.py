"""BLEU, ROUGE-L and CIDEr against pycocoevalcap's scores, and the tokenizer against what PTB writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvmm.eval.metrics.caption import bleu, cider, rouge_l, tokenize_caption

CORPORA = json.loads((Path(__file__).parents[1] / "data" / "vectors" / "captions.json").read_text(encoding="utf-8"))[
    "corpora"
]


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man riding a wave, on top of a surfboard.", "a man riding a wave on top of a surfboard"),
        ("A dog's toy isn't here; they're gone!", "a dog 's toy is n't here they 're gone"),
        ('A black-and-white sign that says "STOP" -- twice...', "a black-and-white sign that says stop twice"),
        ("1,000 people at 10:30 (in the U.S.)", "1,000 people at 10:30 -lrb- in the u.s. -rrb-"),
        ("They cannot win\non 5th Ave.", "they can not win on 5th ave"),
        ("café tables & chairs", "café tables & chairs"),
        ("...", ""),
    ],
)
def test_tokenizer(text: str, words: str):
    assert " ".join(tokenize_caption(text)) == words
