"""Written memos and prose read aloud: answers are said, transcripts are what is spoken, held-out things stay out."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from training.pages.values import Rng
from training.utterances.memos import faults, memo_of, memos, written_memo
from training.utterances.reading import spoken_question
from training.wordings import NOT_STATED


def spoken_words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower().replace("-", " "))


@pytest.mark.parametrize("name", sorted({memo.where.partition(":")[0] for memo in memos()}))
def test_every_memo_fills_and_holds_its_answers(name):
    assert not [text for memo in memos() if memo.where.startswith(name) for text in faults(memo)]


def test_there_are_many_memos_of_many_situations():
    assert len(memos()) >= 120 and len({memo.title for memo in memos()}) == len(memos())
    assert sum(q.answer is not None for memo in memos() for q in memo.questions) >= 4 * len(memos())
    wordings = [way for memo in memos() for q in memo.questions for way in q.wordings]
    assert len(wordings) > 2000


def test_faults_are_found():
    from training.utterances.memos import parse

    said = "## a | b\nThe shop on {street1} opens at 9, and {who:Ann/Bob} has the key to the long cupboard with tins"
    asks = "\nQ: Who? | Which one?\nA: {who}\nQ: Where is it? | Where?\nA: on the roof\nN: Why? | What for?"
    assert any("unknown blank {x}" in fault for fault in faults(parse(f"{said}, {{x}}.{asks}")[0]))
    assert any("wording" in fault for fault in faults(parse(f"{said}.{asks.replace(' | Where?', '')}")[0]))
    found = " ".join(faults(parse(f"{said}.{asks}")[0]))
    assert "not written as it is said" in found and "not in the memo: 'on the roof'" in found


def test_transcripts_are_what_is_spoken():
    for seed in range(400):
        memo = written_memo(Rng(seed), seconds=(10, 22)[seed % 2])
        assert memo == written_memo(Rng(seed), seconds=(10, 22)[seed % 2])
        assert memo.transcript.split() == spoken_words(memo.text)
        questions = [qa.question for qa in memo.qa]
        assert len(questions) == len(set(questions))
        assert all("{" not in qa.question + qa.answer for qa in (*memo.qa, *memo.unanswerable))
        assert memo.unanswerable and all(qa.answer == NOT_STATED for qa in memo.unanswerable)


def test_a_shortened_memo_asks_only_for_what_is_left():
    for seed, memo in enumerate(memos()):
        whole, part = memo_of(Rng(seed), memo), memo_of(Rng(seed), memo, words=15)
        assert len(part.text) <= len(whole.text) + 40
        for qa in part.qa:
            plain_answer = not any(c.isdigit() for c in qa.answer) and qa.key not in ("transcript", "topic")
            if plain_answer:
                assert " ".join(spoken_words(qa.answer)) in part.transcript


def test_memos_fit_their_seconds_and_leave_wordings_for_evaluation():
    short = [len(written_memo(Rng(seed), seconds=10).text.split()) for seed in range(200)]
    long = [len(written_memo(Rng(seed), seconds=22).text.split()) for seed in range(200)]
    assert max(short) < 36 and 1.5 * np.mean(short) < np.mean(long)
    fixed = {q.wordings[-1] for m in memos() for q in m.questions if len(q.wordings) >= 4 and "{" not in q.wordings[-1]}
    others = {way for m in memos() for q in m.questions for way in q.wordings[: 3 if len(q.wordings) >= 4 else None]}
    fixed -= others
    asked = lambda held: {qa.question for s in range(800) for qa in written_memo(Rng(s), held).qa}  # noqa: E731
    assert not asked(False) & fixed and len(asked(True) & fixed) > 80


@pytest.fixture
def prose(train_assets, monkeypatch):
    """The assets' prose, or sentences for a machine without it."""
    from training.utterances import aloud

    for function in (aloud.runs, aloud._known):
        function.cache_clear()
    if not aloud.runs():
        text = "The yellow river is quiet. A little bridge, the bridge of stone, is by it. See RFC 822. It has 3 keys. "
        monkeypatch.setattr(aloud, "paragraphs", lambda: tuple(text + "Morning, river. " * i for i in range(60)))
        monkeypatch.setattr(aloud, "passages", lambda: ())
        aloud.runs.cache_clear()
    yield aloud
    aloud.runs.cache_clear()


def test_prose_is_said_as_it_is_written(prose):
    assert prose.sayable("The little river, it's yellow, isn't a quiet river.")
    for odd in (
        "It has 3 keys.", "See the RFC.", "Use (this) table.", "The --river option.", "An xqzzy table.",
        "openOffice is it.", "See www.river.org.", "Plan b is it.", "the table.", "The 'little' river.",
    ):  # fmt: skip
        assert not prose.sayable(odd)
    assert all(prose.sayable(sentence) for run in prose.runs() for sentence in run)
    for seed in range(300):
        said = prose.read_aloud(Rng(seed), seconds=(3.2, 10, 22)[seed % 3])
        assert said == prose.read_aloud(Rng(seed), seconds=(3.2, 10, 22)[seed % 3])
        assert said.transcript.split() == spoken_words(said.text) and said.transcript
        assert len(said.text) <= max(12, prose.CHARACTERS_A_SECOND * (3.2, 10, 22)[seed % 3])
        assert [qa.answer for qa in said.qa] == [said.transcript]


@pytest.mark.parametrize(
    "question, said",
    [
        ("How many m³ in 2019?", "how many m cubed in two zero one nine"),
        ("Who has 12 m² for 41 pounds?", "who has twelve m squared for forty one pounds"),
    ],
)
def test_questions_with_raised_digits_are_said(question, said):
    assert all(spoken_question(Rng(seed), question) in (said, f"{said} please") for seed in range(40))


def test_held_sentences_are_not_read_in_training(prose):
    heard = {sentence for run in prose.runs() for sentence in run}
    kept = {sentence for run in prose.runs(True) for sentence in run}
    assert heard and not heard & kept


def test_hesitant_speech_says_the_same_words():
    from training.speech import hesitant

    text = "We, we met Ann & Bob at the station. Did you see them? <Yes>, at nine."
    pauses = 0
    for seed in range(50):
        marked = hesitant(Rng(seed), text)
        assert marked == hesitant(Rng(seed), text) and marked.startswith("<speak>")
        said = re.sub(r"<[^>]*>", "", marked)
        assert said.split() == text.replace("&", "and").replace("<", " ").replace(">", " ").split()
        pauses += marked.count("<break")
    assert pauses > 20


def test_held_voices_are_never_trained_on():
    from training.speech import HELD_VARIANTS, HELD_VOICES, TRAIN_VOICES, VARIANTS

    assert not set(TRAIN_VOICES) & set(HELD_VOICES) and not set(VARIANTS) & set(HELD_VARIANTS)
    assert not {"klatt4", "klatt5", "klatt6", "anikaRobot"} & set(VARIANTS)  # the same voices under other names


def test_a_microphone_colours_but_keeps_the_sound():
    from training.speech import microphone

    noise = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    before, after = np.abs(np.fft.rfft(noise)), np.abs(np.fft.rfft(microphone(Rng(1), noise)))
    decibels = 20 * np.log10([after[i : i + 200].mean() / before[i : i + 200].mean() for i in range(0, 7800, 200)])
    assert len(after) == len(before) and np.abs(decibels).max() < 11 and np.ptp(decibels) > 3


def test_every_voice_speaks_and_keeps_time(train_assets):
    from training.speech import FASTEST, HELD_VOICES, SAMPLE_RATE, TRAIN_VOICES, espeak, speak, trim

    if not (train_assets / "espeak").exists():
        pytest.skip("no speech synthesiser in the assets")
    for voice in (
        *TRAIN_VOICES[:: len(TRAIN_VOICES) // 60],
        *HELD_VOICES[::9],
        *(v for v in TRAIN_VOICES if "en-us+" in v),
    ):
        assert 0.4 < len(trim(espeak()("seven quiet rivers", voice, rate=FASTEST))) / SAMPLE_RATE < 3, voice
    text = "we walked along the river until it was dark and then took the last bus home from the old bridge"
    quick = [len(speak(Rng(seed), text, seconds=7)) / SAMPLE_RATE for seed in range(60)]
    free = [len(speak(Rng(seed), text)) / SAMPLE_RATE for seed in range(60)]
    assert np.mean(np.array(quick) < 7) > 0.85 and max(free) > 8 > min(free)


def test_training_steps_ask_for_transcripts_in_many_ways(train_assets):
    from training.dataset import TRANSCRIBE_AUDIO
    from training.office_dataset import SPECS, any_utterance, make_step

    assert len(set(TRANSCRIBE_AUDIO)) == len(TRANSCRIBE_AUDIO) >= 25
    if not (train_assets / "espeak").exists():
        pytest.skip("no speech synthesiser in the assets")
    kinds = [any_utterance(Rng(seed), False, 1000).kind for seed in range(300)]
    assert 0.25 < np.mean([kind == "aloud" for kind in kinds]) < 0.45
    assert np.mean([kind.startswith("memo_") for kind in kinds]) > 0.25
    spec = next(s for s, _ in SPECS if s.name == "speech" and s.frames == 2200)
    step = make_step(5, replace(spec, sequences=4))
    assert step["mel"].shape == (4, 2200, 128) and (step["weight"] == 2).any(1).all()
