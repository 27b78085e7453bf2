"""Halls, wind, knocks, turning away and gaps in recordings."""

from __future__ import annotations

import numpy as np
import pytest

from training.pages.values import Rng
from training.rooms import SAMPLE_RATE, anywhere, gaps, hall, knocks, turning, wind


@pytest.fixture
def tone() -> np.ndarray:
    """Bursts of 440 Hz, a tenth of a second each, with silence as long."""
    t = np.arange(2 * SAMPLE_RATE, dtype=np.float32) / SAMPLE_RATE
    return (0.3 * np.sin(2 * np.pi * 440 * t) * ((t * 5) % 1 < 0.5)).astype(np.float32)


@pytest.mark.parametrize("change", (hall, wind, knocks, turning, gaps, anywhere))
def test_a_place_keeps_length_type_and_range_and_its_seed(tone, change):
    before = tone.copy()
    for seed in range(5):
        out = change(Rng(seed), tone)
        assert out.shape == tone.shape and out.dtype == np.float32 and np.isfinite(out).all()
        assert np.abs(out).max() <= 1.5 and (tone == before).all()
        assert (change(Rng(seed), tone) == out).all()
        assert np.corrcoef(out, tone)[0, 1] > 0.2  # what was said is still there
    if change is not anywhere:
        assert any((change(Rng(seed), tone) != tone).any() for seed in range(5))


def test_a_hall_fills_the_silence(tone):
    silence = tone == 0
    assert np.abs(hall(Rng(1), tone)[silence]).mean() > 0.005
    assert hall(Rng(1), tone).std() == pytest.approx(tone.std(), rel=0.01)


def test_wind_is_low(tone):
    added = wind(Rng(2), tone) - tone
    spectrum = np.abs(np.fft.rfft(added)) ** 2
    hertz = np.fft.rfftfreq(len(added), 1 / SAMPLE_RATE)
    assert spectrum[hertz < 300].sum() > 0.9 * spectrum.sum()


def test_turning_only_weakens_and_gaps_only_silence(tone):
    assert (np.abs(turning(Rng(3), tone)) <= np.abs(tone) + 1e-6).all()
    out = gaps(Rng(3), tone)
    assert (np.abs(out) <= np.abs(tone)).all() and 0.8 < (out == tone).mean() < 1
