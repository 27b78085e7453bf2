"""Calibration error and ranking against cases computed by hand."""

import pytest

from kvmm.eval.metrics.reliability import auroc, calibration_figures, expected_calibration_error, reliability_table


def test_two_bins_by_hand() -> None:
    chances, right = [0.2, 0.4, 0.9, 0.7], [False, True, True, True]
    assert [row["n"] for row in reliability_table(chances, right, bins=2)] == [2, 2]
    # bins {.2, .4} with .5 right and {.7, .9} with all right: both are .2 off
    assert expected_calibration_error(chances, right, bins=2) == pytest.approx(0.2)


def test_auroc_counts_ties_half() -> None:
    assert auroc([0.1, 0.5, 0.5, 0.9], [False, False, True, True]) == pytest.approx(3.5 / 4)
    assert auroc([0.1, 0.2], [True, True]) is None


def test_figures_by_hand() -> None:
    found = calibration_figures([0.2, 0.4, 0.9, 0.7], [False, True, True, True], 0.4)
    assert (found["n"], found["right"], found["probability"]) == (4, 0.75, 0.55)
    assert found["ece"] == pytest.approx((0.2 + 0.6 + 0.1 + 0.3) / 4) and found["auroc"] == 1
    assert found["unsure"] == {"n": 1, "right": 0.0} and found["sure"] == {"n": 3, "right": 1.0}
    assert found["table"][1] == {"n": 1, "probability": 0.4, "right": 1.0}
    assert calibration_figures([0.9], [True], 0.5)["unsure"] == {"n": 0, "right": None}
