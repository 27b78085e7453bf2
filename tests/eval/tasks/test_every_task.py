"""What every registered task has to do: read its format, score any text, and meet files that somebody spoiled."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile
from PIL import Image

from kvmm.errors import KVMMError
from kvmm.eval.tasks import Scored, get_task, task_names
from kvmm.eval.tasks.rows import forget_files, media_inside_folder
from tests.fuzz.mutate import mutated_bytes, mutated_json
from tests.media.files import mp4

MINI = Path(__file__).parents[3] / "assets" / "mini"
TEXTS = ("", "A", "5", "\\boxed{5}", "#### 5", "```python\n```", "\\frac", "é\x00\ud800"[:2], "yes " * 500)
CHANGES = 12  # spoiled files a task


def media(folder: Path) -> None:
    """One of each, where the items below look for them."""
    Image.new("RGB", (40, 30), "white").save(folder / "a.png")
    soundfile.write(folder / "a.wav", [0.1, -0.1] * 400, 16_000)
    (folder / "a.mp4").write_bytes(mp4())


def mini(name: str, file: str) -> Callable[[Path], tuple[str, Any]]:
    """The first items of a bundled set."""

    def make(folder: Path) -> tuple[str, Any]:
        shutil.copytree(MINI / name, folder, dirs_exist_ok=True)
        values = json.loads((MINI / name / file).read_text(encoding="utf-8"))
        return file, {**values, "data": values["data"][:4]} if isinstance(values, dict) else values[:4]

    return make


def items(*found: dict) -> Callable[[Path], tuple[str, Any]]:
    """A JSON file of these items."""

    def make(folder: Path) -> tuple[str, Any]:
        media(folder)
        return "data.json", list(found)

    return make


PAGE = {"document": "letter", "condition": ["scanned"], "files": ["a.png"]}
MEMO = {"document": "voice memo", "condition": [], "audio": "a.wav"}
SOUND = {"audio_path": "a.wav", "question": "What?", "answer": "a dog", "choices": ["a cat", "a dog"]}
CONTEXT = [["One", ["First.", " Second."]], ["Two", ["Third."]]]
HOTPOT = {"_id": "1", "question": "Who?", "answer": "she", "context": CONTEXT, "type": "bridge", "level": "easy"}
FORMATS: dict[str, Callable[[Path], tuple[str, Any]]] = {
    "docvqa": mini("docvqa", "val_v1.0_withQT.json"),
    "mp-docvqa": mini("multipage", "val_v1.0_withQT.json"),
    "ocrbench": mini("ocrbench", "OCRBench.json"),
    "audio-qa": mini("audio", "val_v1.0_withQT.json"),
    "blind": items(
        {**PAGE, "questionId": 1, "question": "What?", "answers": ["5"], "kind": "prose"},
        {**PAGE, "questionId": 2, "question": "Who?", "answers": ["It does not say."], "kind": "unanswerable"},
        {**PAGE, "questionId": 3, "question": "Copy it.", "answers": ["A page. " * 50], "kind": "transcription"},
        {**MEMO, "questionId": 4, "question": "When?", "answers": ["5"], "kind": "memo"},
        {**MEMO, "questionId": 5, "question": "Copy it.", "answers": ["A memo. " * 50], "kind": "memo transcript"},
    ),
    "coco-caption": items({"id": 1, "image": "a.png", "answer": ["a cat", "a small cat"]}),
    "mmau": items({**SOUND, "id": "1", "task": "sound"}),
    "mmau-pro": items(
        {**SOUND, "id": "1", "category": "sound"},
        {**SOUND, "id": "2", "category": "open"},
        {**SOUND, "id": "3", "category": "instruction following", "task_identifier": "All Lowercase", "kwargs": {}},
    ),
    "longbench-e": items(
        {"dataset": "hotpotqa_e", "context": "Text.", "input": "Who?", "answers": ["she"], "length": 100, "_id": "1"}
    ),
    "hotpotqa": items(HOTPOT, {**HOTPOT, "_id": "2", "answer": "yes"}),
    "2wikimultihopqa": items(HOTPOT),
    "gsm8k": items({"question": "2 + 3?", "answer": "#### 5"}),
    "math": items({"problem": "2 + 3?", "solution": r"\boxed{5}", "level": "Level 1", "type": "Algebra"}),
    "aime": items({"id": 1, "problem": "2 + 3?", "answer": "005"}),
    "humaneval": items({"task_id": "1", "prompt": "def f():\n", "test": "def check(f): f()", "entry_point": "f"}),
    "pg19": items({"short_book_title": "A", "text": "Once upon a time. " * 200}),
    "worldsense": items(
        {"id": 1, "video": "a.mp4", "question": "Which?", "candidates": ["A. x", "B. y"], "answer": "B"}
    ),
    "mmbench-video": items(
        {"index": 1, "video_path": "./a.mp4", "question": "What?", "answer": "a dog", "dimensions": ["OCR"]}
    ),
}
GENERATED = {"niah", "niah-pages"}  # these read no items


def test_every_task_that_reads_items_is_here():
    assert set(FORMATS) | GENERATED == set(task_names())


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_items_are_read_and_any_text_is_scored(name: str, tmp_path: Path):
    file, values = FORMATS[name](tmp_path)
    (tmp_path / file).write_text(json.dumps(values))
    task = pickle.loads(pickle.dumps(get_task(name)))
    loaded = task.load(tmp_path / file)
    again = get_task(name).load(tmp_path / file, limit=1)
    assert len(loaded) >= 1 and not loaded.skipped and len(again) == 1
    assert [sample.question for sample in again] == [loaded.samples[0].question]
    assert len({sample.doc_id for sample in loaded}) == len(loaded)
    scored = []
    for sample in loaded:
        json.dumps(dict(sample.metadata))  # it stands in the row
        for text in (*TEXTS, *sample.answers[:1]):
            scores = task.score(sample, text)
            assert all(isinstance(value, float) and 0 <= value <= 10 for value in scores.values()), (text, scores)
            scored.append(Scored(sample, scores, text))
    result = task.aggregate(scored)
    assert task.metric in result or result == {"not_scored": len(scored)}
    assert all(isinstance(value, float | int) for value in result.values())


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_spoiled_files_are_refused_or_left_out(name: str, tmp_path: Path):
    """Values of another type, huge, missing or nested; cut files: a line, or items that are left out with a reason."""
    file, values = FORMATS[name](tmp_path)
    task, whole = get_task(name), json.dumps(values).encode()
    for seed in range(CHANGES):
        rng = random.Random(f"{name} {seed}")
        data = mutated_bytes(rng, whole) if seed % 4 == 0 else json.dumps(mutated_json(rng, values)).encode()
        (tmp_path / file).write_bytes(data)
        forget_files()
        try:
            with media_inside_folder():
                loaded = task.load(tmp_path / file, limit=20)
        except KVMMError as error:
            assert "\n" not in str(error)
        else:
            assert all(reason for _, reason in loaded.skipped)
            for sample in loaded:
                task.score(sample, "5")
