"""What is made of a trained model: all tasks beside each other, those that are missing, and answers in parts."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from training import finish
from training.confidence import rows_of


@pytest.fixture
def options(tmp_path) -> Namespace:
    return Namespace(
        model=tmp_path / "model", heldout=tmp_path / "heldout", calibration=tmp_path / "calibration", blind=None,
        out=tmp_path / "out", minutes=1.0, gpus=2, parts=3, examples=20, choose=False, limit=5, device="cpu",
    )  # fmt: skip


def test_what_is_done_is_not_done_again(options):
    named = finish.tasks(options)
    assert list(named) == ["calibration", "evaluation", "confidence 0", "confidence 1", "confidence 2"]
    assert "--gradients" in named["calibration"] and named["confidence 1"][3:6] == ["--part", "1", "3"]
    options.out.mkdir()
    (options.out / "evaluation.json").write_text("{}")
    options.blind, options.choose = Path("pages"), True
    named = finish.tasks(options)
    assert "evaluation" not in named and "--gradients" not in named["calibration"]
    assert "balanced" not in named["blind"]  # nothing to pack by
    options.model.mkdir()
    (options.model / finish.CALIBRATION).touch()
    assert "balanced" in finish.tasks(options)["blind"]


def test_tasks_end_with_the_minutes_and_say_how(options, monkeypatch, capsys):
    """A module that ends, one that fails, one that would go on for ever."""
    modules = {"ends": ["this"], "fails": ["no_such_module"], "goes on": ["http.server", "0", "--bind", "127.0.0.1"]}
    monkeypatch.setattr(finish, "tasks", lambda args: modules)
    options.minutes = 6 / 60
    assert finish.finish(options) == {"ends": 0, "fails": 1, "goes on": None}
    assert "fails: exit code 1" in capsys.readouterr().out
    assert "Zen of Python" in (options.out / "logs" / "ends.log").read_text()


def test_answers_of_parts_count_where_they_are_of_the_same_model(tmp_path):
    head = {"fingerprint": "a", "policy": "bf16"}
    path = tmp_path / "bf16.0.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, {"id": "x"}, {"id": "y"})))
    assert [row["id"] for row in rows_of(path, head)] == ["x", "y"]
    assert rows_of(path, {**head, "fingerprint": "b"}) == rows_of(tmp_path / "none", head) == []
