"""Intervals and tests of paired scores, against scipy and against known values."""

from __future__ import annotations

import numpy as np
import pytest

from kvmm.eval.report.statistics import binomial_two_sided, holm, mcnemar, paired_bootstrap

stats = pytest.importorskip("scipy.stats")


def test_interval_agrees_with_scipys_bootstrap():
    rng = np.random.default_rng(1)
    reference = rng.random(300)
    values = np.clip(reference - 0.02 + 0.1 * rng.standard_normal(300), 0, 1)
    ours = paired_bootstrap(values, reference)
    theirs = stats.bootstrap(
        ((values - reference),), np.mean, method="percentile", n_resamples=10_000, random_state=2
    ).confidence_interval
    assert ours.mean == pytest.approx((values - reference).mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=6e-4)
    assert (ours.samples, ours.clusters) == (300, 300)


def test_interval_is_the_same_every_time_and_moves_with_the_seed():
    values, reference = [1.0, 0.0, 1.0, 0.5, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    first = paired_bootstrap(values, reference)
    assert first == paired_bootstrap(values, reference)
    assert first != paired_bootstrap(values, reference, seed=1, resamples=999)


def test_blocks_of_resamples_do_not_change_the_interval(monkeypatch):
    rng = np.random.default_rng(3)
    values, reference = rng.random(50), rng.random(50)
    whole = paired_bootstrap(values, reference)
    monkeypatch.setattr("kvmm.eval.report.statistics._BLOCK", 50 * 700)
    assert paired_bootstrap(values, reference) == whole


def test_questions_of_one_document_widen_the_interval_by_the_design_effect():
    # 40 documents of 9 questions that all fail or all hold: only 40 observations.
    rng = np.random.default_rng(4)
    documents = np.repeat(np.arange(40), 9)
    values = np.repeat((rng.random(40) < 0.7).astype(float), 9)
    reference = np.ones(360)
    alone = paired_bootstrap(values, reference)
    clustered = paired_bootstrap(values, reference, documents.tolist())
    assert clustered.mean == alone.mean
    assert clustered.clusters == 40
    assert (clustered.high - clustered.low) / (alone.high - alone.low) == pytest.approx(3.0, rel=0.1)  # sqrt(9)


def test_large_documents_weigh_by_their_questions():
    # The mean is over questions: one document of 8 wrong and two of one right each is -0.8, not the mean of documents.
    found = paired_bootstrap([0.0] * 8 + [1.0, 1.0], [1.0] * 10, ["a"] * 8 + ["b", "c"])
    assert found.mean == pytest.approx(-0.8)
    assert found.low == -1.0
    assert found.high == 0.0


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (5, 5), (12, 3), (3, 12), (40, 61), (700, 650)])
def test_mcnemar_is_scipys_binomial_test(lost, gained):
    expected = stats.binomtest(lost, lost + gained, 0.5).pvalue if lost + gained else 1.0
    assert binomial_two_sided(lost, gained) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_counts_what_was_lost_and_gained():
    right = [True, True, False, False, False, True]
    reference = [True, False, True, True, False, True]
    found = mcnemar(right, reference)
    assert (found.both, found.lost, found.gained, found.neither) == (2, 2, 1, 1)
    assert found.p_value == 1.0
    assert mcnemar([False] * 6, [True] * 6).p_value == pytest.approx(2 / 64)


def test_holm_against_its_published_example():
    # Holm (1979): sorted p-values times n, n - 1, ...; never decreasing.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="same 1 or more questions"):
        paired_bootstrap([], [])
    with pytest.raises(ValueError, match="same 1 or more questions"):
        paired_bootstrap([1.0], [1.0, 0.0])
    with pytest.raises(ValueError, match="between 0 and 1"):
        paired_bootstrap([1.0], [1.0], confidence=95)
    with pytest.raises(ValueError, match="argument 2"):
        mcnemar([True], [True, False])
