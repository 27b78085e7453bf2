"""Refusals in several wordings, answers that only deny something, and word error rates by hand."""

from __future__ import annotations

import pytest

from kvmm.analysis.drift.answer_metrics import GeneratedAnswer, refusal_flips
from kvmm.eval.metrics import is_refusal, refusal_scores, wer
from kvmm.eval.metrics.text import spoken_words
from kvmm.eval.tasks.base import Sample
from kvmm.eval.tasks.blind import Blind

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
    "There is not enough information.",
    "The text does not provide an answer.",
    "No answer is given.",
    "I'm sorry, but I can't help with that.",
    "Sorry, I can't.",
    "We are unable to determine the date",
    "I could not find any mention of a cook",
    "It is not possible to say",
    "As an AI, I have no opinion.",
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
    "Do not tell anybody",
    "Please don't mention it to Tom",
    "The price does not include breakfast",
    "Do not give him sugar",
    "The parcel could not be found",
    "rang twice, no answer",
    "I can't make it on Thursday",
    "I will not be able to come",
    "I cannot find my keys",
    "It is not possible to park there",
    "Sorry, Inc.",
)


@pytest.mark.parametrize("text", REFUSALS)
def test_refusals_in_any_words(text):
    assert is_refusal(text) and is_refusal(text.upper())


@pytest.mark.parametrize("text", ANSWERS)
def test_answers_that_deny_something_are_answers(text):
    assert not is_refusal(text)


def test_a_long_text_that_denies_something_is_no_refusal():
    assert not is_refusal("The letter does not say why. " * 10)


def test_a_long_text_that_begins_as_a_refusal_is_one():
    assert is_refusal("I'm sorry, but I cannot help with that. " + "Ask somebody who knows. " * 10)


@pytest.mark.parametrize("text", (*REFUSALS, *ANSWERS, "The letter does not say why. " * 10))
def test_the_blind_set_and_the_witness_agree(text):
    """Witness W4 counts an answer that became a refusal where the blind set says that the question was refused."""
    sample = Sample("a", "Who?", ("Tom",), metadata={"kind": "prose"})
    flips = refusal_flips([GeneratedAnswer((), "Tom", True)], [GeneratedAnswer((), text, True)])
    assert Blind().score(sample, text)["refused"] == flips.to_refusal


@pytest.mark.parametrize(
    ("text", "refused"), [("Unfortunately, not on file", True), ("NOT ON FILE!", True), ("on file", False)]
)
def test_other_beginnings_count_instead(text, refused):
    assert is_refusal(text, ["Not on file."]) is refused
    assert not is_refusal("It does not say.", ["Not on file."]) and not is_refusal(text, [""])


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
