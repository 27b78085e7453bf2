"""What is made of a trained model: all tasks beside each other, those that are missing, and answers in parts."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from training import finish
from training.confidence import rows_of
from training.evaluate import join_reports

REPORT = {
    "sets": {"fonts": {"n": 1}}, "model_sha256": "a", "data_sha256": "b", "seconds": 3.0,
    "command": "python -m training.evaluate --data x --sets fonts --out y/fonts.json --limit 5",
}  # fmt: skip


@pytest.fixture
def options(tmp_path) -> Namespace:
    (tmp_path / "heldout").mkdir()
    lines = "".join(json.dumps({"set": name}) + "\n" for name in ("fonts", "turns", "fonts"))
    (tmp_path / "heldout" / "heldout.jsonl").write_text(lines)
    return Namespace(
        model=tmp_path / "model", heldout=tmp_path / "heldout", calibration=tmp_path / "calibration",
        out=tmp_path / "out", minutes=1.0, gpus=2, parts=3, examples=20, choose=False, limit=5, device="cpu",
    )  # fmt: skip


def test_what_is_done_is_not_done_again(options):
    named = finish.tasks(options)
    sets = ["evaluation fonts", "evaluation turns"]
    assert list(named) == ["calibration", *sets, "confidence 0", "confidence 1", "confidence 2"]
    assert "--gradients" in named["calibration"] and named["confidence 1"][3:6] == ["--part", "1", "3"]
    (options.out / finish.SETS).mkdir(parents=True)
    (options.out / finish.SETS / "fonts.json").write_text("{}")
    options.choose = True
    named = finish.tasks(options)
    assert sets[0] not in named and sets[1] in named and "--gradients" not in named["calibration"]


def test_tasks_end_with_the_minutes_and_say_how(options, monkeypatch, capsys):
    """A module that ends, one that fails, one that would go on for ever; only what ended well is a result."""
    ends, goes_on = "evaluation fonts", ["http.server", "0", "--bind", "127.0.0.1"]
    modules = {ends: ["this"], "calibration": ["no_such"], "x": goes_on}
    unfinished = options.out / finish.UNFINISHED
    (unfinished / finish.SETS).mkdir(parents=True)
    for name in finish.results(options).values():
        (unfinished / name).write_text(json.dumps(REPORT))
    monkeypatch.setattr(finish, "tasks", lambda args: modules)
    options.minutes = 6 / 60
    assert finish.finish(options) == {ends: 0, "calibration": 1, "x": None}
    assert "calibration: exit code 1" in capsys.readouterr().out
    assert "Zen of Python" in (options.out / "logs" / "evaluation-fonts.log").read_text()
    assert not (options.out / finish.CALIBRATION).exists()
    whole = json.loads((options.out / finish.EVALUATION).read_text())
    assert whole["sets"] == REPORT["sets"] and whole["command"].endswith("--limit 5, a process a set")


def test_reports_of_sets_are_joined_where_they_are_of_one_model():
    other = {**REPORT, "sets": {"turns": {"n": 2}}, "seconds": 9.0}
    whole = join_reports([REPORT, other])
    assert whole["sets"] == {"fonts": {"n": 1}, "turns": {"n": 2}} and whole["seconds"] == 9.0
    with pytest.raises(ValueError, match="different models"):
        join_reports([REPORT, {**other, "model_sha256": "c"}])


def test_answers_of_parts_count_where_they_are_of_the_same_model(tmp_path):
    head = {"fingerprint": "a", "policy": "bf16"}
    path = tmp_path / "bf16.0.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, {"id": "x"}, {"id": "y"})))
    assert [row["id"] for row in rows_of(path, head)] == ["x", "y"]
    assert rows_of(path, {**head, "fingerprint": "b"}) == rows_of(tmp_path / "none", head) == []
