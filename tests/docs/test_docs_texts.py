"""Needles and a book on the language model: docs/language-model.md says what the committed results say."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks import text_tables
from benchmarks.language_tables import filled
from benchmarks.records_text import made_text
from kvmm.eval.report.depth_plot import depth_cells
from kvmm.eval.tasks import get_task
from tests.docs.pages import ROOT, text_of

PAGE = "docs/language-model.md"


def test_the_tables_and_the_figure_are_of_the_results():
    page, found = text_of(PAGE), text_tables.tables()
    assert filled(page, found, text_tables.MARK) == page, "run python -m benchmarks.text_tables"
    assert text_tables.drawn_of() == text_tables.digest(), "run python -m benchmarks.text_tables"
    assert f"]({text_tables.FIGURE.relative_to(ROOT / 'docs').as_posix()})" in page


def test_every_cell_of_the_heatmap_was_asked():
    for one in text_tables.policies_of(text_tables.NEEDLES):
        cells = depth_cells(one)
        lengths, depths = ({key[axis] for key in cells} for axis in (0, 1))
        assert len(depths) == 15 and len(cells) == len(lengths) * 15
        assert one.score == pytest.approx(sum(cells.values()) / len(cells))


def test_records_are_asked_for_at_the_end_of_a_piece():
    novel = (ROOT / "benchmarks" / "texts" / "persuasion.txt").read_text(encoding="utf-8")
    text = made_text(novel)
    assert text == made_text(novel) and 70_000 < len(text) < 100_000 and "code of the" not in text
    asked = re.findall(r"What is the number of (.+)\? It is (\d+)\.", text)
    read = text.count("\n\n") + 1 - len(asked)
    assert len(asked) > 100 and read > 100
    for thing, number in asked:
        assert re.search(rf"(?i){re.escape(thing)}( is|:| has number) {number}\.", text), thing


@pytest.mark.parametrize("path", [text_tables.NEEDLES, text_tables.BOOK])
def test_the_command_is_that_of_the_results_and_of_the_page(path):
    results = json.loads(path.read_text(encoding="utf-8"))
    (task,) = {config["task"] for config in results["configs"].values()}
    command, page = results["command"], " ".join(text_of(PAGE).replace("\\\n", "").split())
    assert command in page and f" {task} " in command and get_task(task).name == task
    assert all(config["policy"] in command for config in results["configs"].values())
    assert results["git_hash"] and results["versions"]["torch"] and results["config"]["device"] == "cpu"


def test_runs_that_are_not_whole_are_not_kept(tmp_path, monkeypatch):
    results = json.loads(text_tables.NEEDLES.read_text(encoding="utf-8"))
    monkeypatch.setattr(text_tables, "NEEDLES", tmp_path / "kept.json")
    with pytest.raises(SystemExit, match="holds no results"):
        text_tables.keep(tmp_path, "x")
    path = tmp_path / "1_results.json"
    path.write_text(json.dumps(results | {"complete": False}), encoding="utf-8")
    with pytest.raises(SystemExit, match="lacks answers"):
        text_tables.keep(tmp_path, "x")
    name, config = next(iter(results["configs"].items()))
    path.write_text(json.dumps(results | {"configs": {name: config | {"task": "gsm8k"}}}), encoding="utf-8")
    with pytest.raises(SystemExit, match="is of gsm8k"):
        text_tables.keep(tmp_path, "x")
    path.write_text(json.dumps(results), encoding="utf-8")
    kept = json.loads(text_tables.keep(tmp_path, "python -m kvmm eval").read_text(encoding="utf-8"))
    assert kept["results"] == results["results"] and kept["command"] == "python -m kvmm eval"
    assert text_tables.keep(tmp_path, "x", records=True) == tmp_path / "kept_records.json"


def test_what_is_said_of_needles():
    page = " ".join(text_of(PAGE).split())
    found = {one.policy: depth_cells(one) for one in text_tables.policies_of(text_tables.NEEDLES)}
    count = {name: sum(cells.values()) for name, cells in found.items()}
    last = sum(value for (_, depth), value in found["balanced"].items() if depth == 1)
    assert f"of the numbers it finds {count['balanced']:.0f}, half of them among the newest tokens" in page
    assert last == count["balanced"] / 2
    assert (
        f"`oscar2`, which reads the book worse, finds {count['oscar2']:.0f}, and `oscar4-2` {count['oscar4-2']:.0f}"
        in page
    )
    book = {one.policy: one.scores["perplexity"] for one in text_tables.policies_of(text_tables.BOOK)}
    assert book["bf16"] < book["balanced"] < 1.02 * book["bf16"] < book["oscar2"]


def test_what_is_said_of_a_calibration_on_records():
    page = " ".join(text_of(PAGE).split())
    novel, records = (
        {one.policy: one for one in text_tables.policies_of(path)}
        for path in (text_tables.NEEDLES, text_tables.with_records(text_tables.NEEDLES))
    )

    def count(one) -> int:
        return sum(text_tables.count_at(one, length) for length in (1000, 2000))

    counts = {name: (count(novel[name]), count(one)) for name, one in records.items()}
    before, after = counts["balanced"]
    said = f"So `balanced` finds {after} of 30 needles where it found {before}, as many as `oscar2` "
    assert f"{said}({count(novel['oscar2'])})" in page
    assert max(counts["small"]) <= 2
    readme = " ".join(text_of("README.md").split())
    assert f"`balanced` finds {before} if its calibration has read a novel, and {after} if numbers were asked" in readme
    assert f"`oscar4-2`, which needs none, finds {count(novel['oscar4-2'])}" in readme
    assert novel["balanced"].scores["bits_per_value"] < novel["oscar2"].scores["bits_per_value"]
    old, new = (
        {one.policy: one.scores["perplexity"] for one in text_tables.policies_of(path)}["balanced"]
        for path in (text_tables.BOOK, text_tables.with_records(text_tables.BOOK))
    )
    assert new <= old
