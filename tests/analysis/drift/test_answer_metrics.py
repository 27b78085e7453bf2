"""Each answer metric on answers written by hand."""

from __future__ import annotations

import pytest

from kvmm import KVMMError
from kvmm.analysis.drift.answer_metrics import (
    GeneratedAnswer,
    answer_agreement,
    early_stop,
    length_drift,
    pooled_flips,
    refusal_flips,
    retrieval_raggedness,
    seed_sensitivity,
    similarity,
    tier_flips,
)
from kvmm.eval.metrics import is_refusal


def answer(text: str, ended: bool = True, tokens: int | None = None) -> GeneratedAnswer:
    """One token a character, or ``tokens`` of them."""
    return GeneratedAnswer(tuple(map(ord, text))[:tokens] if tokens is None else tuple(range(tokens)), text, ended)


def test_length_drift():
    full = [answer("four"), answer("four"), answer("fourteen chars")]
    found = length_drift(full, [answer("four"), answer("sixsix"), answer("four")])
    assert (found.answers, found.mean_tokens_full, found.mean_tokens) == (3, 22 / 3, 14 / 3)
    assert found.mean_difference == pytest.approx(-8 / 3) and found.mean_absolute_difference == pytest.approx(4)
    assert found.max_absolute_difference == 10 and found.same_length == pytest.approx(1 / 3)


def test_early_stop_tells_cut_answers_from_other_short_ones():
    full = [answer("12 March 2024")] * 4
    policy = [
        answer("12 March"),  # cut off
        answer("14 May"),  # shorter, but another answer
        answer("12 March", ended=False),  # stopped by the length limit
        answer("12 March 2024"),
    ]
    found = early_stop(full, policy)
    assert (found.earlier, found.truncated, found.runs_on) == (0.5, 0.25, 0.25)
    limited = early_stop([answer("12 March", ended=False)], [answer("12 March", ended=False)])
    assert (limited.earlier, limited.truncated, limited.runs_on) == (0, 0, 0)


def test_agreement_and_similarity():
    assert similarity("kitten", "sitting") == pytest.approx(1 - 3 / 7)
    assert similarity("", "") == 1 and similarity("", "a") == 0 and similarity("A  b", "a B") == 1
    found = answer_agreement([answer("kitten"), answer("same")], [answer("sitting"), answer("same")])
    assert found.identical == 0.5 and found.similarity == pytest.approx((1 - 3 / 7 + 1) / 2)


def test_seed_sensitivity_measures_against_the_spread_of_sampling():
    a, b, x = answer("aaaa"), answer("bbbb"), answer("xxxx")
    same = seed_sensitivity([[a, b], [a, a]], [[a, b], [a, a]], 1.0)
    assert (same.full_full, same.policy_full, same.policy_policy, same.same_seed) == (0.5, 0.5, 0.5, 1)
    assert same.gap == 0 and (same.prompts, same.seeds) == (2, 2)
    other = seed_sensitivity([[a, a, a]], [[a, x, x]], 0.5)
    assert other.full_full == 1 and other.policy_policy == pytest.approx(1 / 3) and other.temperature == 0.5
    assert other.policy_full == pytest.approx(1 / 3) and other.gap == pytest.approx(2 / 3)
    assert other.same_seed == pytest.approx(1 / 3)
    swapped = seed_sensitivity([[a, b]], [[b, a]], 1.0)  # the same answers, drawn by other seeds
    assert swapped.same_seed == 0 and swapped.policy_full == 1 and swapped.gap == -1


def test_seed_sensitivity_needs_two_seeds_everywhere():
    a = answer("a")
    for full, policy in [([[a]], [[a]]), ([[a, a]], [[a, a, a]]), ([[a, a], [a]], [[a, a], [a]])]:
        with pytest.raises(KVMMError, match="two or more seeds"):
            seed_sensitivity(full, policy, 1.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It does not say.", True),
        ("it does not say", True),
        ("It does not say. But 42.", True),
        ("It does not saying", False),
        ("$42.50", False),
        ("", False),
    ],
)
def test_refusals(text, expected):
    assert is_refusal(text) == expected


def test_refusal_flips():
    no, yes = answer("It does not say."), answer("$42.50")
    found = refusal_flips([no, no, yes, yes, yes], [no, yes, no, no, yes])
    assert (found.refused_full, found.refused, found.to_refusal, found.from_refusal) == (2, 3, 2, 1)
    assert found.rate == pytest.approx(3 / 5)
    assert refusal_flips([yes], [answer("I cannot help.")], ["I cannot"]).to_refusal == 1
    assert refusal_flips([yes], [answer("Anything")], [""]).to_refusal == 0


def test_retrieval_raggedness():
    places = [(1, 3), (1, 3), (2, 3), (3, 3), (3, 3)]
    found = retrieval_raggedness(places, [True] * 5, [True, True, False, True, False])
    assert [(row.page, row.pages, row.questions, row.accuracy) for row in found.by_page] == [
        (1, 3, 2, 1.0),
        (2, 3, 1, 0.0),
        (3, 3, 2, 0.5),
    ]
    assert (found.spread, found.spread_full, found.questions) == (1, 0, 5)


def test_tier_flips():
    found = tier_flips({"num_entries": 5, "runs": 4, "flips": 7, "repeated_flips": 2})
    assert (found.decisions, found.flips) == (20, 2) and found.rate == pytest.approx(0.1)
    assert tier_flips({"num_entries": 5, "runs": 0, "flips": 0, "repeated_flips": 0}) is None
    both = pooled_flips([found, found, tier_flips({"num_entries": 10, "runs": 1, "flips": 20, "repeated_flips": 10})])
    assert (both.decisions, both.flips, both.rate) == (50, 14, 0.28) and pooled_flips([]) is None


def test_answers_come_in_pairs():
    a = answer("a")
    for metric in (length_drift, early_stop, answer_agreement, refusal_flips):
        for full, policy in [([], []), ([a], [a, a])]:
            with pytest.raises(KVMMError, match="pairs"):
                metric(full, policy)
