"""Calibration error and ranking against cases computed by hand."""

import pytest

from kvmm.eval.metrics.reliability import auroc, expected_calibration_error, reliability_table


def test_two_bins_by_hand() -> None:
    chances, right = [0.2, 0.4, 0.9, 0.7], [False, True, True, True]
    assert [row["n"] for row in reliability_table(chances, right, bins=2)] == [2, 2]
    # bins {.2, .4} with .5 right and {.7, .9} with all right: both are .2 off
    assert expected_calibration_error(chances, right, bins=2) == pytest.approx(0.2)


def test_auroc_counts_ties_half() -> None:
    assert auroc([0.1, 0.5, 0.5, 0.9], [False, False, True, True]) == pytest.approx(3.5 / 4)
    assert auroc([0.1, 0.2], [True, True]) is None
