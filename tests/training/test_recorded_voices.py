"""Voices of flite, where the training assets have them."""

from __future__ import annotations

import numpy as np
import pytest

from training.asset_speech import FLITE_VOICES
from training.flite import HELD_VOICES, VOICES, flite
from training.pages.values import Rng
from training.speech import SAMPLE_RATE, speak, speak_recorded

TEXT = "We meet on Thursday at half past nine, behind the station."
pytestmark = pytest.mark.skipif(flite() is None, reason="the assets have no flite")


def pitch(wave: np.ndarray) -> float:
    """Median over voiced pieces of 50 ms, in hertz, from the autocorrelation."""
    found = []
    for start in range(0, len(wave) - 800, 400):
        piece = wave[start : start + 800] - wave[start : start + 800].mean()
        likeness = np.correlate(piece, piece, "full")[799:]
        lag = likeness[40:260].argmax() + 40
        if likeness[0] > 0.5 and likeness[lag] > 0.6 * likeness[0]:
            found.append(SAMPLE_RATE / lag)
    return float(np.median(found))


def test_every_voice_speaks_and_one_is_kept():
    assert set(VOICES) | set(HELD_VOICES) == set(FLITE_VOICES) and not set(VOICES) & set(HELD_VOICES)
    for voice in FLITE_VOICES:
        wave = flite()(TEXT, voice)
        assert wave.dtype == np.float32 and 2.5 < len(wave) / SAMPLE_RATE < 6 and 0.1 < np.abs(wave).max() <= 1
    with pytest.raises(ValueError):
        flite()(TEXT, "nobody")


def test_pace_leaves_the_pitch_and_pitch_the_pace():
    wave = flite()(TEXT, "slt")
    quick = flite().at_pace(wave, 1.3)
    assert len(quick) == pytest.approx(len(wave) / 1.3, rel=0.02)
    assert pitch(quick) == pytest.approx(pitch(wave), rel=0.06)
    high = flite()(TEXT, "slt", pitch=1.3)
    assert len(high) == pytest.approx(len(wave), rel=0.02) and pitch(high) > 1.15 * pitch(wave)


def test_a_text_ends_in_the_time_it_has():
    r = Rng(4)
    for seconds in (4.5, 6.0, 10.0):
        waves = [speak_recorded(r, TEXT, seconds=seconds) for _ in range(12)]
        assert all(w is not None and len(w) > SAMPLE_RATE for w in waves)
        assert sum(len(w) <= seconds * SAMPLE_RATE for w in waves) >= 11
    assert speak_recorded(r, TEXT * 4, seconds=2.0) is None


def test_training_hears_them_and_held_out_voices_stay_as_they_were(monkeypatch):
    said = []
    monkeypatch.setattr("training.speech.speak_recorded", lambda rng, text, **kw: said.append(text) or np.ones(400))
    with_flite = [len(speak(Rng(seed), TEXT, held=True)) for seed in range(3)]
    assert not said
    for seed in range(60):
        speak(Rng(seed), "yes")
    assert 5 <= len(said) <= 30  # a quarter
    monkeypatch.setattr("training.flite.flite", lambda: None)
    assert [len(speak(Rng(seed), TEXT, held=True)) for seed in range(3)] == pytest.approx(with_flite, rel=0.02)
