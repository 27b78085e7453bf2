"""Questions about videos: official fields, prompts, scores, and what is wrong with items."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from kvmm.errors import KVMMError
from kvmm.eval.tasks import Scored, get_task
from kvmm.eval.tasks.worldsense import first_letter
from tests.media.files import mp4


def results(task, samples, answers: list[str]) -> dict[str, float]:
    return task.aggregate([Scored(s, task.score(s, text), text) for s, text in zip(samples, answers, strict=True)])


def question(answer: str, **changes: object) -> dict:
    item = {"question": "What is seen?", "candidates": ["A. a cat", "B. a dog", "C. rain", "D. none"], "answer": answer}
    return {**item, "task_domain": "Recognition", "task_type": "Event Recognition", **changes}


def worldsense(folder: Path) -> Path:
    (folder / "videos").mkdir()
    (folder / "videos" / "abc.mp4").write_bytes(mp4(20))
    shared = {"duration": "<1min", "domain": "Music", "sub_category": "Covers", "video_caption": "..."}
    content = {
        "abc": {
            **shared,
            "audio_class": ["Music", "Speech"],
            "task0": question("B"),
            "task1": question("D", task_domain="Reasoning"),
            "task2": question("E"),
        },
        "gone": {**shared, "audio_class": ["Event"], "task0": question("A")},
    }
    path = folder / "worldsense_qa.json"
    path.write_text(json.dumps(content))
    return path


def test_worldsense(tmp_path: Path):
    task = get_task("worldsense@frames=6")
    loaded = task.load(worldsense(tmp_path))
    assert loaded.skipped_by_kind() == {"wrong choices": 1, "missing video": 1}
    first, second = loaded.samples
    assert first.group == second.group and first.audio is None and first.doc_id == "abc-task0"
    assert first.question.endswith("Question: What is seen?\nA. a cat\nB. a dog\nC. rain\nD. none\nAnswer: ")
    frames = first.load_video()
    assert frames.pixels.shape == (6, 64, 64, 3) and frames.indices[0] == 0 and frames.indices[-1] == 19
    scores = results(task, loaded, ["The answer is B.", "Answer: A"])
    assert scores["accuracy"] == 0.5 and scores["accuracy/Recognition"] == 1 and scores["accuracy/Reasoning"] == 0
    assert scores["accuracy/sound: Speech"] == scores["accuracy/<1min"] == 0.5


def test_worldsense_plays_the_sound_where_it_is(tmp_path: Path):
    path = worldsense(tmp_path)
    (tmp_path / "audios").mkdir()
    (tmp_path / "audios" / "abc.wav").write_bytes(b"RIFF")
    (sample, _) = get_task("worldsense@audio=yes").load(path).samples
    assert sample.audio == tmp_path / "audios" / "abc.wav" and "and the corresponding audio" in sample.question
    assert get_task("worldsense").load(path).samples[0].audio is None


def test_letters_are_read_as_vlmevalkit_reads_them():
    """Among them what its rule takes for a letter though it is none: the first capital counts."""
    texts = {
        "B": "B",
        "(C) rain": "C",
        "Answer: D": "D",
        "The best answer is A": "A",
        "because": "",
        "Because": "B",
        "": "",
    }
    assert {text: first_letter(text) for text in texts} == texts


def mmbench(folder: Path, *lines: list[str]) -> Path:
    (folder / "video").mkdir(exist_ok=True)
    (folder / "video" / "abc_processed.mp4").write_bytes(mp4())
    text = io.StringIO()
    table = csv.writer(text, delimiter="\t", lineterminator="\n")
    table.writerow(["index", "video", "video_type", "question", "answer", "dimensions", "video_path"])
    table.writerows(lines)
    path = folder / "MMBench-Video.tsv"
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


GOOD = ["0", "abc", "Animals", "What, in\nall?", "a dog", "['OCR', 'Counting']", "./video/abc_processed.mp4"]


def test_mmbench_video(tmp_path: Path):
    reasoning = ["1", "abc", "News", "Why?", "rain", "['Causal Reasoning']", "./video/abc_processed.mp4"]
    gone = ["2", "x", "News", "Why?", "rain", "not a list", "./video/x.mp4"]
    path = mmbench(tmp_path, GOOD, reasoning, gone, ["3", "too", "short"])
    loaded = get_task("mmbench-video").load(path)
    assert loaded.skipped_by_kind() == {"missing video": 1, "wrong table": 1}
    assert loaded.samples[0].question == "What, in\nall?" and loaded.samples[0].group == loaded.samples[1].group
    assert results(get_task("mmbench-video"), loaded, ["a", "b"]) == {"not_scored": 2}
    asked = []

    def judge(question: str, reference: str, prediction: str) -> str:
        asked.append((question, reference, prediction))
        return "2" if prediction == "a" else "I would not say"

    scores = results(get_task("mmbench-video", judge=judge), loaded, ["a", "b"])
    assert asked[0] == ("What, in\nall?", "a dog", "a")
    assert scores["rating"] == pytest.approx(1) and scores["rating_valid"] == pytest.approx(2)
    assert scores["rating_share"] == pytest.approx(1 / 3) and scores["not_scored"] == 0
    assert (
        scores["rating_share/FP-S"]
        == scores["rating_share/OCR"]
        == scores["rating_share/Perception"]
        == pytest.approx(2 / 3)
    )
    assert scores["rating_share/TR"] == scores["rating_share/Reasoning"] == 0 and "rating_share/CP" not in scores


def test_tables_that_cannot_be_read_say_what_to_do(tmp_path: Path):
    path = mmbench(tmp_path, GOOD)
    path.write_text(path.read_text().replace("question", "asked"))
    with pytest.raises(KVMMError, match="has no column question"):
        get_task("mmbench-video").load(path)
    path.write_bytes(b"index\tquestion\tanswer\tvideo\n\x00\xff")
    with pytest.raises(KVMMError, match="not UTF-8"):
        get_task("mmbench-video").load(path)
    path.write_text("")
    with pytest.raises(KVMMError, match="has no column question"):
        get_task("mmbench-video").load(path)


def judge_by_criteria(question: str, reference: str, prediction: str) -> str:
    points = 5 if prediction == reference else 1
    return f"CORRECTNESS: {points}\nRELEVANCE: 5\nCOMPLETENESS: {points}\nCLARITY: 5"


def test_mmau_pro_by_four_criteria(tmp_path: Path):
    import soundfile

    soundfile.write(tmp_path / "a.wav", [0.1, -0.1] * 4000, 16_000)
    item = {"audio_path": ["a.wav"], "question": "What is heard?", "category": "open"}
    path = tmp_path / "test.json"
    path.write_text(json.dumps([{**item, "id": "1", "answer": "a dog"}, {**item, "id": "2", "answer": "a cat"}]))
    task = get_task("mmau-pro", judge=judge_by_criteria)
    loaded = task.load(path)
    scores = results(task, loaded, ["a dog", "a dog"])
    assert scores["accuracy"] == pytest.approx((5 / 5 + 3 / 5) / 2)  # (1 + 5 + 1 + 5) / 4 = 3
    assert scores["good_rate"] == 0.5 and scores["poor_rate"] == 0
    assert scores["points/correctness"] == 3 and scores["points/relevance"] == 5 and scores["points/overall"] == 4
    assert set(task.score(loaded.samples[0], "a dog")) == set(task.recorded)
