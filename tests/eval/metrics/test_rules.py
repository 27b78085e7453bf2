"""Multiple choice, instruction following and LongBench's metrics: by hand, and against rows the packages scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvmm.eval.metrics.choice import choice_correct, choice_letter, words_match
from kvmm.eval.metrics.instructions import RULES, follows_instruction
from kvmm.eval.metrics.longbench import (
    METRICS,
    classification,
    code_similarity,
    longbench_score,
    qa_f1,
    retrieval,
    rouge,
)

ROWS = json.loads((Path(__file__).parents[2] / "data" / "vectors" / "longbench.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("B", "B"),
        ("(C) a dog", "C"),
        ("The answer is D.", "D"),
        ("A. rain", "A"),
        ("not A but B here", "B"),  # the last one between spaces
        ("(A) or B", "A"),  # brackets first
        ("rain", None),
        ("", None),
        ("b", None),
    ],
)
def test_choice_letter(response: str, letter: str | None):
    assert choice_letter(response, "ABCD") == letter


def test_choice_by_words():
    choices = ["a red car", "a blue car", "rain"]
    assert words_match("a red car", "It is a red car!", choices)
    assert not words_match("a red car", "a red or blue car", choices)
    assert not words_match("a red car", "red", choices) and not words_match("rain", "", choices)
    assert choice_correct("B", "a blue car", choices) and not choice_correct("C", "a blue car", choices)
    assert choice_correct("heavy rain", "rain", choices)
    assert not choice_correct("D", "rain", choices)  # there are three choices only


def test_a_whole_choice_is_no_letter():
    choices = ["A man", "A woman", "B"]
    assert choice_correct("A woman.", "A woman", choices) and not choice_correct("a woman", "A man", choices)
    assert choice_correct("A", "A man", choices) and choice_correct("B", "A woman", choices)  # a letter, not the text
    assert choice_correct("A woman sings", "A man", choices)  # lmms-eval's rule


@pytest.mark.parametrize(
    ("rule", "values", "good", "bad"),
    [
        ("Include Keywords", {"keywords": "Rain, storm"}, "storm and rain", "rain only"),
        ("Keyword Frequency", {"keyword": "dog", "N": 2.0}, "Dog, dog.", "dogs dog"),
        ("Forbidden Words", {"forbidden_words": "rain, snow"}, "sun", "Snow fell"),
        ("Number Paragraphs", {"N": 2}, "one *** two", "one"),
        ("Number Words (at least)", {"N": 3}, "a b c", "a b"),
        ("Number Words (at most)", {"N": 2}, "a b", "a b c"),
        ("Number Words (range)", {"N1": 2, "N2": 3}, "a b", "a b c d"),
        ("Number Sentences (at least)", {"N": 2}, "One. Two!", "One."),
        ("Number Sentences (at most)", {"N": 1}, "One...", "One? Two"),
        ("Number Sentences (range)", {"N1": 1, "N2": 2}, "One. Two.", "One. Two. Three."),
        ("All-capital Words (at least)", {"N": 1}, "a LOUD dog", "a dog"),
        ("All-capital Words (at most)", {"N": 0}, "a dog", "A DOG"),
        ("All-capital Words (range)", {"N1": 1, "N2": 1}, "a BIG dog", "a BIG DOG"),
        ("Postscript", {"postscript_marker": "P.S."}, "Hello. p.s. bye", "Hello."),
        ("Number Placeholder", {"N": 1}, "Dear [name]", "Dear name"),
        ("Number Bullets", {"N": 2}, "* a\n* b", "* a"),
        ("Title", {}, "<<Rain>> it rains", "Rain"),
        ("Minimum Number Highlighted Section", {"N": 1}, "so *very* loud", "so very loud"),
        ("Multiple Sections", {"N": 2, "section_splitter": "SECTION"}, "SECTION a SECTION b", "SECTION a"),
        ("Repeat Prompt", {}, "what is it? Rain", "Rain"),
        ("Two Responses", {}, "one ****** two", "same ****** Same"),
        ("All Uppercase", {}, "RAIN", "Rain"),
        ("All Lowercase", {}, "rain", "Rain"),
        ("Start Checker", {"start_phrase": "Well, yes"}, "well yes it rains", "It rains"),
        ("End Checker", {"end_phrase": "the end."}, "It rains. The End", "It rains"),
        ("Quotation", {}, ' "rain" ', '"rain'),
        ("No Commas", {}, "rain and snow", "rain, snow"),
    ],
)
def test_instructions(rule: str, values: dict, good: str, bad: str):
    # parquet fills the values of other rules with nulls
    values = {"N": None, "keyword": None, **values}
    assert follows_instruction(good, rule, values, "What is it?")
    assert not follows_instruction(bad, rule, values, "What is it?")
    assert not follows_instruction("  ", rule, values)


def test_every_instruction_rule_is_tested_and_unknown_ones_fail():
    tested = {mark.args[1][i][0] for mark in test_instructions.pytestmark for i in range(len(mark.args[1]))}
    assert tested == set(RULES)
    assert not follows_instruction("anything", "Rhyme")


def test_rouge_and_code_are_those_of_the_packages():
    for row in ROWS["summaries"]:
        assert rouge(row["prediction"], row["answer"]) == pytest.approx(row["rouge"], abs=1e-12), row
    for row in ROWS["code"]:
        assert code_similarity(row["prediction"], row["answer"]) == pytest.approx(row["ratio"], abs=1e-12), row
    assert any(0 < row["rouge"] < 0.9 for row in ROWS["summaries"])


def test_longbench_by_hand():
    assert qa_f1("The blue car", "a car") == pytest.approx(2 / 3)
    assert qa_f1("", "a car") == 0
    assert classification("Location or Human", "Human", ["Human", "Location"]) == 0.5
    assert classification("Human being", "Human being", ["Human", "Human being"]) == 1
    assert retrieval("Paragraph 3 or 4", "Paragraph 3") == 0.5
    assert longbench_score("passage_count", "7, maybe 7", ["7"]) == 1
    assert longbench_score("triviaqa", "\nParis\nQuestion: London", ["London", "Paris"]) == 1
    assert code_similarity("# a comment\nx = 1\ny = 2", "x = 1") == 1
    assert code_similarity("# nothing else", "x = 1") == 0
    assert len(METRICS) == 13
