"""Reports of some presets beside that of all."""

from __future__ import annotations

import json

import pytest

from benchmarks.mini_report import combined_run


def write(path, scores, questions=4):
    rows = [{"policy": name, "score": score, "answered": questions} for name, score in scores.items()]
    task = {"task": "docvqa", "reference": "bf16", "policies": rows}
    path.write_text(json.dumps({"runs": [{"tasks": [task]}]}))
    return path


def test_rows_of_later_reports_count(tmp_path):
    first = write(tmp_path / "all.json", {"bf16": 0.9, "rd2": 0.7, "balanced": 0.7})
    later = write(tmp_path / "some.json", {"bf16": 0.895, "balanced": 0.8, "paper-kitty-pro": 0.6})
    (task,) = combined_run((first, later))["tasks"]
    assert [(row["policy"], row["score"]) for row in task["policies"]] == [
        ("bf16", 0.9), ("rd2", 0.7), ("paper-kitty-pro", 0.6), ("balanced", 0.8),
    ]  # fmt: skip


@pytest.mark.parametrize(("scores", "questions"), [({"bf16": 0.8}, 4), ({"bf16": 0.9}, 5)])
def test_a_report_of_other_answers_is_refused(tmp_path, scores, questions):
    first = write(tmp_path / "all.json", {"bf16": 0.9})
    with pytest.raises(ValueError, match="run all presets again"):
        combined_run((first, write(tmp_path / "some.json", scores, questions)))
