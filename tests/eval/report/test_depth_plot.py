"""The heatmap of needles: which cell is where, and that other tasks have none."""

from __future__ import annotations

from types import SimpleNamespace

from kvmm.eval.report.depth_plot import depth_cells, found_by_depth
from kvmm.eval.tasks import Scored, get_task


def policy(name: str, found: list[float]) -> SimpleNamespace:
    """A policy's result from the answers of the task itself."""
    task = get_task("niah@lengths=200+400,depths=3,repeats=1")
    samples = task.load("generated").samples
    answers = [sample.answers[0] if right else "0" for sample, right in zip(samples, found, strict=True)]
    scored = [Scored(s, task.score(s, text), text) for s, text in zip(samples, answers, strict=True)]
    scores = task.aggregate(scored)
    parts = {key.split("/", 1)[1]: value for key, value in scores.items() if "/" in key}
    return SimpleNamespace(policy=name, score=scores["accuracy"], parts=parts)


def test_cells_are_lengths_by_depths():
    full, small = policy("bf16", [1, 1, 1, 1, 1, 1]), policy("rd2", [1, 0, 1, 0, 0, 1])
    assert depth_cells(small) == {(200, 0): 1, (200, 0.5): 0, (200, 1): 1, (400, 0): 0, (400, 0.5): 0, (400, 1): 1}
    figure = found_by_depth(SimpleNamespace(task="niah", policies=(full, small)))
    assert [list(trace.x) for trace in figure.data] == [["200", "400"]] * 2
    assert [list(trace.y) for trace in figure.data] == [["0", "50", "100"]] * 2  # read from the top
    assert figure.layout.yaxis.autorange == "reversed"
    assert [list(row) for row in figure.data[1].z] == [[100, 0], [0, 0], [100, 100]]
    assert [note.text for note in figure.layout.annotations] == ["bf16: 100.0", "rd2: 50.0"]


def test_other_tasks_have_no_heatmap():
    one = SimpleNamespace(policy="bf16", score=1.0, parts={"form": 1.0})
    assert found_by_depth(SimpleNamespace(task="docvqa", policies=(one,))) is None
