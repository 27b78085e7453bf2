"""Training speech: spectrograms equal the feature extractor's, utterances and their questions are sound."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from training import speech
from training.pages.values import Rng, assets_dir
from training.utterances import utter
from training.utterances.numbers import say_number
from training.utterances.questions import QUESTIONS
from training.utterances.reading import spoken_question
from training.wordings import NOT_STATED


def has_espeak() -> bool:
    if (assets_dir() / "espeak" / "libespeak-ng.so").exists():
        return True
    try:
        ctypes.CDLL("libespeak-ng.so.1")
    except OSError:
        return False
    return True


@pytest.mark.parametrize("n", [1, 159, 160, 400, 16_000, 123_457, 479_999, 480_000])
def test_log_mel_equals_the_feature_extractor(n: int):
    wave = np.random.default_rng(n).standard_normal(n).astype(np.float32) * np.linspace(1e-3, 0.3, n, dtype=np.float32)
    extractor = WhisperFeatureExtractor(feature_size=128)
    out = extractor(wave, sampling_rate=16_000, return_attention_mask=True, padding="max_length", return_tensors="np")
    frames = int(out["attention_mask"].sum())
    expected = out["input_features"][0].T[:frames]
    found = speech.log_mel(wave)
    assert found.shape == expected.shape and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("n", [0, 480_001])
def test_log_mel_refuses_other_lengths(n: int):
    with pytest.raises(ValueError, match="480000"):
        speech.log_mel(np.zeros(n, np.float32))


def test_resampling_keeps_tones_below_the_new_limit_only():
    t = np.arange(22_050) / 22_050
    low, high = np.sin(2 * np.pi * 1000 * t), np.sin(2 * np.pi * 10_000 * t)
    kept = speech.resample(low.astype(np.float32), 22_050, 16_000)
    assert len(kept) == 16_000
    np.testing.assert_allclose(
        kept[500:-500], np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000)[500:-500], atol=1e-2
    )
    assert np.abs(speech.resample(high.astype(np.float32), 22_050, 16_000)[500:-500]).max() < 0.01


def test_degraded_and_placed_clips_are_reproducible_and_bounded():
    wave = np.sin(np.arange(16_000) / 10).astype(np.float32) * 0.5
    first, second = (speech.place(Rng(3), speech.degrade(Rng(5), wave), 40_000) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.shape == (40_000,) and first.dtype == np.float32
    for seed in range(20):
        clip = speech.degrade(Rng(seed), wave)
        assert np.isfinite(clip).all() and np.abs(clip).max() <= 1


def test_voices_are_disjoint():
    train, held = set(speech.TRAIN_VOICES), set(speech.HELD_VOICES)
    assert not train & held
    assert any(voice.startswith(speech.HELD_ACCENT) for voice in held)
    assert not any(voice.startswith(speech.HELD_ACCENT) for voice in train)
    assert not {voice.partition("+")[2] for voice in train} & set(speech.HELD_VARIANTS)


@pytest.mark.skipif(not has_espeak(), reason="needs espeak-ng")
def test_every_voice_speaks():
    synthesiser = speech.espeak()
    for voice in (*speech.TRAIN_VOICES, *speech.HELD_VOICES):
        wave = synthesiser("one two", voice)
        assert 0.2 < len(wave) / speech.SAMPLE_RATE < 4, voice
        assert np.abs(wave).max() > 0.05, voice
    with pytest.raises(ValueError, match="no voice"):
        synthesiser("one", "no-such-voice")


# ---------------------------------------------------------------------------------------------------------------------


def words(texts) -> set[str]:
    return {word for text in texts for word in re.findall(r"[a-z']+", text.lower())}


def test_held_wordings_are_new_but_made_of_known_words():
    train = [t for q in QUESTIONS.values() for t in q.train]
    held = [t for q in QUESTIONS.values() for t in q.held]
    assert not {t.lower() for t in train} & {t.lower() for t in held}
    assert words(held) <= words(train)
    assert 0.2 <= len(held) / (len(held) + len(train)) <= 0.25


def test_utterances_are_consistent():
    for seed in range(600):
        utterance = utter(Rng(seed), held=seed % 2 == 0)
        assert utterance == utter(Rng(seed), held=seed % 2 == 0)
        assert re.fullmatch(r"[a-z' ]+", utterance.transcript), utterance.transcript
        keys = [qa.key for qa in utterance.qa]
        assert len(keys) == len(set(keys)) and "transcript" in keys
        groups = [  # a caller and whom he calls have wordings that tell them apart
            QUESTIONS[key].group for key in keys if key not in ("digit_count", "callee")
        ]
        assert len(groups) == len(set(groups)), keys  # no question could mean two facts
        for qa in utterance.unanswerable:
            assert qa.answer == NOT_STATED
            assert QUESTIONS[qa.key].group not in groups
        for qa in (*utterance.qa, *utterance.unanswerable):
            own = QUESTIONS[qa.key]
            assert qa.question in (own.held if seed % 2 == 0 else own.train)


@pytest.mark.parametrize(
    ("value", "spoken"),
    [(0, "zero"), (14, "fourteen"), (40, "forty"), (105, "one hundred and five"), (2300, "two thousand three hundred")],
)
def test_numbers_in_words(value: int, spoken: str):
    assert say_number(value) == spoken


@pytest.mark.parametrize(
    ("question", "spoken"),
    [
        ("What is the total?", "what is the total"),
        ("What is the total on page 2?", "what is the total on page two"),
        ("Invoice no?", "invoice number"),
        ("What is the VAT amount?", "what is the v a t amount"),
        ("Which item costs $1,240.50?", "which item costs one thousand two hundred and forty point five zero dollars"),
        ("Smith & Sons: total?\nAnswer the question using a single word or phrase.", "smith and sons total"),
    ],
)
def test_spoken_questions(question: str, spoken: str):
    found = spoken_question(Rng(1), question)
    assert found.removesuffix(" please") == spoken


def test_codes_are_spelled_out():
    for seed in range(5):
        found = spoken_question(Rng(seed), "How much is INV-2041?").removesuffix(" please")
        assert found.replace(" dash ", " ") == "how much is i n v two zero four one"
