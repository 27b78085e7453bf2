"""Free voice memos: what is asked is said, what is open is not; spoiled recordings keep their length and loudness."""

from __future__ import annotations

import numpy as np
import pytest

from training.pages.values import Rng


def test_memos_answer_what_they_say_and_hold_back_wordings():
    from training.utterances.free import MEMOS, free_memo
    from training.wordings import NOT_STATED

    kinds, held_out = (
        set(),
        {
            ways.split(" | ")[-1]
            for entries in MEMOS.values()
            for _, asks in entries
            for ways, _ in asks
            if len(ways.split(" | ")) >= 4 and "{" not in ways
        },
    )
    for seed in range(300):
        memo = free_memo(Rng(seed))
        kinds.add(memo.kind)
        assert memo == free_memo(Rng(seed))
        assert memo.transcript == memo.transcript.lower() and not set(memo.transcript) & set(".,?{}")
        questions = [qa.question for qa in memo.qa]
        assert len(questions) == len(set(questions)) >= 2
        assert not held_out & set(questions)
        assert all("{" not in qa.question + qa.answer for qa in (*memo.qa, *memo.unanswerable))
        assert all(qa.answer == NOT_STATED for qa in memo.unanswerable)
        for qa in memo.qa:
            if qa.key in MEMOS and not any(c.isdigit() for c in qa.answer):
                assert qa.answer.lower().split()[-1] in memo.transcript
    assert len(kinds) == len(MEMOS)
    asked = {qa.question for seed in range(200) for qa in free_memo(Rng(seed), held=True).qa}
    assert len(asked & held_out) > 30


def test_memos_fit_the_time_they_are_given():
    from training.utterances.free import free_memo

    short = [len(free_memo(Rng(seed), seconds=8).text.split()) for seed in range(100)]
    long = [len(free_memo(Rng(seed), seconds=22).text.split()) for seed in range(100)]
    assert max(short) < 34 and 1.5 * np.mean(short) < np.mean(long)


def tone() -> np.ndarray:
    t = np.arange(16000, dtype=np.float32) / 16000
    return (0.3 * np.sin(2 * np.pi * 1000 * t) + 0.3 * np.sin(2 * np.pi * 6000 * t)).astype(np.float32)


def test_the_telephone_takes_the_treble():
    from training.speech import telephone

    spectrum = np.abs(np.fft.rfft(telephone(Rng(1), tone())))
    assert spectrum[6000] < 0.05 * spectrum[1000]
    assert len(telephone(Rng(1), tone())) == 16000


def test_background_and_overdrive_keep_the_voice():
    from training.speech import beside, overdrive

    voice, other = tone(), np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    mixed = beside(Rng(2), voice, other)
    assert mixed.shape == voice.shape and 0.85 < np.corrcoef(voice, mixed)[0, 1] < 1
    cut = overdrive(Rng(3), voice)
    assert np.isclose(np.abs(cut).max(), np.abs(voice).max(), rtol=1e-3) and np.mean(cut**2) > np.mean(voice**2)


@pytest.mark.usefixtures("train_assets")
def test_a_training_step_of_memos(train_assets):
    from training.office_dataset import SPECS, make_step

    if not (train_assets / "espeak").exists():
        pytest.skip("no speech synthesiser in the assets")
    spec = next(s for s, _ in SPECS if s.name == "speech" and s.frames == 1000)
    from dataclasses import replace

    step = make_step(3, replace(spec, sequences=3))
    assert step["mel"].shape == (3, 1000, 128) and (step["weight"] == 2).any(1).all()
