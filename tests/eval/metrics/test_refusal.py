"""Refusals in several wordings, answers that only deny something, and word error rates by hand."""

from __future__ import annotations

import pytest

from kvmm.eval.metrics import is_refusal, refusal_scores, wer
from kvmm.eval.metrics.text import spoken_words

REFUSALS = (
    "It does not say.",
    "The page doesn't mention it",
    "Not stated in the document.",
    "The price is not specified",
    "unanswerable",
    "I don't know.",
    "This cannot be determined from the receipt.",
    "There is no information about the cook.",
    "N/A",
    "It isn’t shown on the page.",
)
ANSWERS = (
    "",
    "Bicycles are not carried",
    "somebody who did not know the custom",
    "Cups are not included in the price",
    "No",
    "non rimborsabile",
    "No sailing in winds above force 7.",
    "None of the three",
    "Do not open the brewing unit",
    "can wait until Saturday",
)


@pytest.mark.parametrize("text", REFUSALS)
def test_refusals_in_any_words(text):
    assert is_refusal(text) and is_refusal(text.upper())


@pytest.mark.parametrize("text", ANSWERS)
def test_answers_that_deny_something_are_answers(text):
    assert not is_refusal(text)


def test_a_long_text_that_denies_something_is_no_refusal():
    assert not is_refusal("The letter does not say why. " * 10)


def test_precision_and_recall_of_refusals():
    outcomes = [(True, True)] * 3 + [(True, False)] * 2 + [(False, True)] + [(False, False)] * 4
    assert refusal_scores(outcomes) == {"refusal_precision": 3 / 4, "refusal_recall": 3 / 5}
    assert refusal_scores([(False, False), (True, False)]) == {"refusal_precision": 0.0, "refusal_recall": 0.0}
    assert refusal_scores([]) == {"refusal_precision": 0.0, "refusal_recall": 0.0}


def test_wer_by_hand():
    assert wer("Buy two eggs.", "buy two eggs") == 0
    assert wer("buy to eggs now", "buy two eggs") == pytest.approx(2 / 3)
    assert wer("", "buy two eggs") == 1
    assert wer("it is £230", ["it is two hundred pounds", "It is £230."]) == 0  # the best reference counts
    assert wer("a b c d", "a") == 3  # may exceed 1
    with pytest.raises(ValueError):
        wer("a", [])
    with pytest.raises(ValueError):
        wer("a", ["..."])


def test_words_keep_apostrophes_figures_and_currencies():
    assert spoken_words("Don’t pay £3.50, or 2:30 - café!") == ["don't", "pay", "£3.50", "or", "2:30", "café"]
