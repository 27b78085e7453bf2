"""Sets with speech: recordings by unseen voices, and spoken questions about pages."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence

import numpy as np

from training import wordings
from training.heldout.pages import pick_facts
from training.heldout.writer import Writer, turn
from training.pages import PAGE_SHAPES, Rng, make_page
from training.questions import absent_facts
from training.speech import SAMPLE_RATE, degrade, place, speak
from training.utterances import utter
from training.utterances.reading import spoken_question


def _clip(task: tuple[int, str]) -> np.ndarray:
    seed, text = task
    r = Rng(seed)
    recording = speak(r, text, held=True)
    if r.chance(0.75):
        recording = degrade(r, recording)
    return place(r, recording, len(recording) + int(SAMPLE_RATE * r.uniform(0.2, 1.0)))


def synthesise(tasks: Sequence[tuple[int, str]]) -> list[np.ndarray]:
    """Clips for (seed, text). Each in a process of its own: the synthesiser keeps a state from clip to clip."""
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        return pool.map(_clip, tasks, chunksize=1)


def speech(writer: Writer, name: str, seed: int, count: int, held_wordings: bool) -> None:
    """Questions about recordings: everything they say, sometimes what they do not."""
    r = Rng(seed)
    spoken = [utter(r, held_wordings) for _ in range(count)]
    clips = synthesise([(r.getrandbits(48), utterance.text) for utterance in spoken])
    for number, (utterance, clip) in enumerate(zip(spoken, clips, strict=True)):
        path = writer.recording(f"{name}-{number:03d}", clip)
        chosen = r.sample(utterance.qa, min(3, len(utterance.qa)))
        if utterance.unanswerable and r.chance(0.3):
            chosen.append(r.pick(utterance.unanswerable)._replace(key="absent"))
        for key, question, answer in chosen:
            writer.add(name, utterance.kind, [], path, [turn(question, answer, key)])


def spoken_questions(writer: Writer, seed: int, pages: int) -> None:
    """A page and a spoken question, nothing written."""
    r = Rng(seed)
    asked = []
    for number in range(pages):
        height, width = r.pick(PAGE_SHAPES)
        page = make_page(r.getrandbits(48), height, width, held_fonts=True)
        path = writer.image(f"spoken-{number:03d}", page.rgb())
        facts = [fact for fact, _ in pick_facts(r, [page], 6)]
        facts = [f for f in facts if len(f.subject + f.label) <= 24 and f.key not in ("line_start", "numbered_line")][
            :2
        ]
        if r.chance(0.25):
            facts = facts[:1] + absent_facts(r, [page], 1)
        for fact in facts:
            question = wordings.phrase_question(r, fact)
            asked.append((page.kind, path, fact, question, (r.getrandbits(48), spoken_question(r, question))))
    clips = synthesise([task for *_, task in asked])
    for number, ((kind, path, fact, question, _), clip) in enumerate(zip(asked, clips, strict=True)):
        recording = writer.recording(f"spoken-{number:03d}", clip)
        key = "absent" if fact.value == wordings.NOT_STATED else fact.key
        writer.add("spoken", kind, [path], recording, [turn("", fact.value, key, spoken=question)])
