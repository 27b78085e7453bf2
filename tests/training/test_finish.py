"""What is made of a trained model: all tasks beside each other, those that are missing, and answers in parts."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from training import finish
from training.confidence import rows_of
from training.finish import join_reports

REPORT = {
    "sets": {"fonts": {"n": 1}}, "model_sha256": "a", "data_sha256": "b", "decoding": "greedy", "device": "cpu",
    "versions": {}, "seconds": 3.0, "command": "python -m training.evaluate --sets fonts",
}  # fmt: skip
OTHER = {**REPORT, "sets": {"turns": {"n": 2}}, "seconds": 9.0, "command": "python -m training.evaluate --sets turns"}


@pytest.fixture
def options(tmp_path) -> Namespace:
    for name in ("heldout", "calibration", "model"):
        (tmp_path / name).mkdir()
    lines = "".join(json.dumps({"set": name}) + "\n" for name in ("fonts", "turns", "fonts"))
    (tmp_path / "heldout" / "heldout.jsonl").write_text(lines)
    (tmp_path / "calibration" / "questions.jsonl").write_text("{}\n")
    (tmp_path / "model" / "model.safetensors").write_text("weights")
    return Namespace(
        model=tmp_path / "model", heldout=tmp_path / "heldout", calibration=tmp_path / "calibration",
        out=tmp_path / "out", minutes=1.0, gpus=2, parts=3, together=16,
        examples=20, choose=False, limit=5, device="cpu",
    )  # fmt: skip


def written(options: Namespace, **reports: dict) -> None:
    """Reports of some sets in ``--out``, as an earlier call has left them."""
    finish.begin_or_go_on(options)
    for name, report in reports.items():
        (options.out / finish.SETS / f"{name}.json").write_text(json.dumps(report))


def test_what_is_done_is_not_done_again(options):
    named = finish.tasks(options)
    sets = ["evaluation fonts", "evaluation turns"]
    assert list(named) == ["calibration", *sets, "confidence 0", "confidence 1", "confidence 2"]
    assert "--gradients" in named["calibration"] and named["confidence 1"][3:6] == ["--part", "1", "3"]
    command = " ".join(named[sets[1]])
    assert "--limit 5 --sets turns" in command and command.endswith("out/unfinished/sets/turns.json")
    written(options, fonts=REPORT)
    options.choose = True
    named = finish.tasks(options)
    assert sets[0] not in named and sets[1] in named and "--gradients" not in named["calibration"]


def test_tasks_end_with_the_minutes_and_say_how(options, monkeypatch, capsys):
    """A module that ends, one that fails, one that would go on for ever; only what ended well is a result."""
    finished, endless = "evaluation turns", ["http.server", "0", "--bind", "127.0.0.1"]
    modules = {finished: ["this"], "calibration": ["no_such"], "x": endless}
    written(options, fonts=REPORT)
    (options.out / finish.UNFINISHED / finish.SETS / "turns.json").write_text(json.dumps(OTHER))
    (options.out / finish.UNFINISHED / finish.CALIBRATION).write_text("half of it")
    monkeypatch.setattr(finish, "tasks", lambda args: modules)
    options.minutes = 6 / 60
    assert finish.finish(options) == {finished: 0, "calibration": 1, "x": None}
    assert "calibration: exit code 1" in capsys.readouterr().out
    assert "Zen of Python" in (options.out / "logs" / "evaluation-turns.log").read_text()
    assert not (options.out / finish.CALIBRATION).exists()
    assert json.loads((options.out / finish.EVALUATION).read_text()) == join_reports([REPORT, OTHER])


def test_tasks_wait_for_their_turn(options, monkeypatch):
    """One at a time: what comes behind a task that does not end is not begun."""
    options.together, options.minutes = 1, 6 / 60
    endless = ["http.server", "0", "--bind", "127.0.0.1"]
    monkeypatch.setattr(finish, "tasks", lambda args: {"a": ["this"], "b": ["no_such"], "c": endless, "d": ["this"]})
    assert finish.finish(options) == {"a": 0, "b": 1, "c": None, "d": None}
    assert sorted(log.stem for log in (options.out / "logs").iterdir()) == ["a", "b", "c"]


def test_there_is_no_report_of_no_sets(options):
    options.out.mkdir()
    finish.join_sets(options.out, [])
    assert not list(options.out.iterdir())


def test_a_report_waits_for_all_sets(options, monkeypatch):
    written(options, fonts=REPORT)
    monkeypatch.setattr(finish, "tasks", lambda args: {})
    assert finish.finish(options) == {} and not (options.out / finish.EVALUATION).exists()


@pytest.mark.parametrize("changed", ["model/model.safetensors", "heldout/heldout.jsonl"])
def test_results_of_another_model_or_of_other_questions_are_refused(options, changed):
    written(options, fonts=REPORT)
    path = options.model.parent / changed
    path.write_text(path.read_text() * 2)
    with pytest.raises(ValueError, match="choose another --out"):
        finish.finish(options)
    path.unlink()
    with pytest.raises(ValueError, match="is missing"):
        finish.finish(options)


def test_reports_of_sets_are_joined_where_they_are_of_one_kind():
    whole = join_reports([REPORT, OTHER])
    assert whole["sets"] == {"fonts": {"n": 1}, "turns": {"n": 2}} and whole["seconds"] == 9.0
    assert whole["commands"] == [REPORT["command"], OTHER["command"]] and "command" not in whole
    for key in ("model_sha256", "data_sha256", "device"):
        with pytest.raises(ValueError, match=key):
            join_reports([REPORT, {**OTHER, key: "c"}])
    with pytest.raises(ValueError, match="same set: fonts"):
        join_reports([REPORT, {**OTHER, "sets": REPORT["sets"]}])


def test_answers_of_parts_count_where_they_are_of_the_same_model(tmp_path):
    head = {"fingerprint": "a", "policy": "bf16"}
    path = tmp_path / "bf16.0.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, {"id": "x"}, {"id": "y"})))
    assert [row["id"] for row in rows_of(path, head)] == ["x", "y"]
    assert rows_of(path, {**head, "fingerprint": "b"}) == rows_of(tmp_path / "none", head) == []
