"""Final answers and judgements: what the benchmarks' own scorers say of recorded ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvmm.errors import KVMMError
from kvmm.eval.metrics import reasoning as r
from kvmm.eval.metrics.hotpot import hotpot_exact_match, hotpot_f1
from kvmm.eval.metrics.judge import criteria_prompt, rating_prompt, read_criteria, read_rating

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "vectors" / "reasoning.json").read_text(encoding="utf-8"))


def test_expressions_are_the_same_where_math_says_so():
    wrong = [(a, b) for a, b, same in VECTORS["math"] if r.same_expression(a, b) is not same]
    assert not wrong and len(VECTORS["math"]) > 3000
    assert not r.same_expression(None, "5")
    long = "9" * 20_000
    assert r.same_expression(long, long) and not r.same_expression(long, "9")


def test_boxes_are_the_last_whole_ones():
    for text, recorded in VECTORS["boxed"]:
        assert r.boxed(text) == (None if recorded is None else recorded.removeprefix(r"\boxed{")[:-1])


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"so $\boxed 5$.", "5"),
        (r"so \boxed 5.", "5"),
        (r"\boxed5", "5"),
        (r"\[\boxed x + 1\]", "x + 1"),
        (r"\(\boxed \frac{1}{2}\) is it", r"\frac{1}{2}"),
        (r"it is \boxed 12 because $x = 2$", "12"),
        (r"\boxed {7}", "7"),
        (r"\fbox{7}", "7"),
        (r"$\boxed{\frac{1}{2}}$", r"\frac{1}{2}"),
        (r"\boxed{\frac{\sqrt{x^{2}}}{2}}", r"\frac{\sqrt{x^{2}}}{2}"),
        (r"\boxed{\left\{ x : x > 1 \right.}", r"\left\{ x : x > 1 \right."),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{1} and then \boxed 2", "2"),
        (r"\boxed", None),
        (r"\boxed .", None),
        (r"\boxed{\frac{1}{2}", None),
    ],
)
def test_boxes_without_braces_and_with_braces_in_them(text: str, inside: str | None):
    assert r.boxed(text) == inside


def test_numbers_are_those_of_the_filters():
    for text, target, strict, flexible in VECTORS["gsm8k"]:
        assert r.same_number(r.strict_number(text), target) is strict, text
        assert r.same_number(r.last_number(text), target) is flexible, text


def test_integers():
    assert [r.last_integer(text) for text in ("204 or 1,025.", "x = -7", "none", "9" * 5000)] == [1025, -7, None, None]


def test_decimals_are_no_two_integers():
    """A column that pandas wrote has 204.0, which is not 0."""
    texts = ("204.0", "204.00.", "about 12.5, so 33", "12.5", r"\boxed{1,025.0}", "1.2.3 is 7")
    assert [r.last_integer(text) for text in texts] == [204, 204, 33, None, 1025, 7]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[
            (text, 73)
            for text in ("73", "073", " 73. ", "73.0", r"m + n = 73", r"73\text{ cm}^2", r"73^\circ", r"\$73")
        ],
        *[(text, 73) for text in (r"\mathbf{73}", r"\text{Answer: } 73", "73 cm", "x=-73=73", r"73^{\mathrm{th}}")],
        *[("1{,}025", 1025), ("1,025", 1025), ("-7", -7)],
        *[(text, None) for text in (r"\frac{1}{73}", "1/73", "2^{73}", "73^2", r"\sqrt{73}", "73x", "72.5", "73!", "")],
        *[(text, None) for text in ("(7, 73)", "none", "9" * 20_000, "a " * 20_000, " " * 9000 + "!")],
    ],
)
def test_an_expression_that_is_a_whole_number(text: str, number: int | None):
    assert r.whole_number(text) == number


def test_words_of_answers_are_scored_as_hotpotqa_does():
    for prediction, answer, exact, f1 in VECTORS["hotpot"]:
        assert hotpot_exact_match(prediction, answer) is exact, prediction
        assert hotpot_f1(prediction, answer) == pytest.approx(f1), prediction


def test_judgements_are_read_as_mmau_pro_does():
    text = "CORRECTNESS: 4 - right\nRelevance: 5 - yes\nCOMPLETENESS: 3\nCLARITY: 5\nOVERALL: 4.25 - good"
    assert read_criteria(text) == {
        "correctness": 4, "relevance": 5, "completeness": 3, "clarity": 5, "overall": 4.25
    }  # fmt: skip
    assert read_criteria("I cannot say.") == dict.fromkeys(
        (*"correctness relevance completeness clarity".split(), "overall"), 3
    )
    assert read_criteria("CORRECTNESS: 5\nRELEVANCE: 5\nOVERALL: 3")["overall"] == 4  # the mean of 5, 5, 3, 3
    with pytest.raises(KVMMError, match="scale of 1 to 5"):
        read_criteria("CORRECTNESS: 50")
    prompt = criteria_prompt("What?", "a dog", "a cat")
    assert all(f"{name}: [1-5]" in prompt for name in ("CORRECTNESS", "RELEVANCE", "COMPLETENESS", "CLARITY"))


def test_ratings_are_read_as_mmbench_video_does():
    assert [read_rating(text) for text in ("3", " 2\n", 1, "0", "4", "two", "2.5", "-1")] == [3, 2, 1, 0, *[None] * 4]
    assert [read_rating(number) for number in (2.0, 2.5, float("nan"), float("inf"), None)] == [2, *[None] * 4]
    assert "Rating:" in rating_prompt("What?", "a", "b")
