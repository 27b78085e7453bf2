"""What is made of a trained model: all tasks beside each other, those that are missing, and answers in parts."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from training import finish
from training.confidence import rows_of


@pytest.fixture
def options(tmp_path) -> Namespace:
    return Namespace(
        model=tmp_path / "model", heldout=tmp_path / "heldout", calibration=tmp_path / "calibration",
        out=tmp_path / "out", minutes=1.0, gpus=2, parts=3, examples=20, choose=False, limit=5, device="cpu",
    )  # fmt: skip


def test_what_is_done_is_not_done_again(options):
    named = finish.tasks(options)
    assert list(named) == ["calibration", "evaluation", "confidence 0", "confidence 1", "confidence 2"]
    assert "--gradients" in named["calibration"] and named["confidence 1"][3:6] == ["--part", "1", "3"]
    options.out.mkdir()
    (options.out / "evaluation.json").write_text("{}")
    options.choose = True
    named = finish.tasks(options)
    assert "evaluation" not in named and "--gradients" not in named["calibration"]


def test_tasks_end_with_the_minutes_and_say_how(options, monkeypatch, capsys):
    """A module that ends, one that fails, one that would go on for ever; only what ended well is a result."""
    modules = {"evaluation": ["this"], "calibration": ["no_such"], "x": ["http.server", "0", "--bind", "127.0.0.1"]}
    unfinished = options.out / finish.UNFINISHED
    unfinished.mkdir(parents=True)
    for name in finish.RESULTS.values():
        (unfinished / name).write_text(name)
    monkeypatch.setattr(finish, "tasks", lambda args: modules)
    options.minutes = 6 / 60
    assert finish.finish(options) == {"evaluation": 0, "calibration": 1, "x": None}
    assert "calibration: exit code 1" in capsys.readouterr().out
    assert "Zen of Python" in (options.out / "logs" / "evaluation.log").read_text()
    assert (options.out / "evaluation.json").is_file() and not (options.out / finish.CALIBRATION).exists()


def test_answers_of_parts_count_where_they_are_of_the_same_model(tmp_path):
    head = {"fingerprint": "a", "policy": "bf16"}
    path = tmp_path / "bf16.0.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, {"id": "x"}, {"id": "y"})))
    assert [row["id"] for row in rows_of(path, head)] == ["x", "y"]
    assert rows_of(path, {**head, "fingerprint": "b"}) == rows_of(tmp_path / "none", head) == []
