"""The table of docs/evaluation.md is that of the committed results, which are of the present set and complete."""

from __future__ import annotations

import copy
import json
from collections import Counter

import pytest

from benchmarks import blind_table
from tests.docs.pages import text_of

PAGE = text_of("docs/evaluation.md")


@pytest.fixture
def results() -> dict:
    return json.loads(blind_table.RESULTS.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def counts() -> Counter:
    rows = json.loads(blind_table.SET.read_text(encoding="utf-8"))["data"]
    return Counter(row["kind"] for row in rows)


def test_the_table_is_that_of_the_results():
    assert blind_table.marked(PAGE, blind_table.BEGIN) == blind_table.committed_table()


def test_the_results_answer_every_question(results, counts):
    assert results["complete"] and blind_table.REFERENCE in results["results"]
    assert blind_table.answered(results) == list(results["results"]) == list(results["configs"])
    for one in results["n-samples"].values():
        assert one["effective"] == one["original"] == sum(counts.values()) and not one["failed"]
    assert results["model_name"] == "tiny-omni"
    assert {config["pack_before_question"] for config in results["configs"].values()} == {True}


def test_rows_are_the_scores_of_their_kinds(results, counts):
    """One row by hand: the mean over kinds, weighted by their questions, is the headline."""
    for scores in results["results"].values():
        kinds = (*blind_table.KINDS, "unanswerable")
        whole = sum(counts[kind] * scores[f"anls/{kind},none"] for kind in kinds) / sum(counts[k] for k in kinds)
        assert scores["anls,none"] == pytest.approx(whole)
    lines = blind_table.committed_table().splitlines()
    chart = next(line for line in lines if line.startswith("| chart: ANLS"))
    cells = [cell.strip() for cell in chart.strip("|").split("|")]
    assert cells[1] == str(counts["chart"])
    assert cells[2] == f"{results['results']['blind_bf16']['anls/chart,none']:.3f}".removeprefix("0")


def test_what_is_said_of_the_set(counts):
    texts = json.loads((blind_table.SET.parent / "make" / "texts.json").read_text(encoding="utf-8"))
    memos = json.loads((blind_table.SET.parent / "make" / "memos.json").read_text(encoding="utf-8"))
    pages, said = sum(map(len, texts.values())), " ".join(PAGE.split())
    assert f"{len(texts)} documents ({pages} pages)" in said and f"{len(memos)} voice memos" in said
    assert f"{sum(counts.values())} questions in free wordings" in said
    readme = " ".join((blind_table.SET.parent / "README.md").read_text(encoding="utf-8").split())
    spoken = counts["memo"] + counts["memo transcript"] + counts["unanswerable memo"]
    assert f"{len(texts)} documents of {pages} pages with {sum(counts.values()) - spoken} questions" in readme
    assert f"{len(memos)} voice memos with {spoken}." in readme
    for kind, count in counts.items():
        assert f"| `{kind}` | {count} |" in readme


def test_incomplete_results_are_not_kept(tmp_path, results):
    with pytest.raises(SystemExit, match="no results"):
        blind_table.keep(tmp_path)
    results["n-samples"]["blind_bf16"]["effective"] -= 1
    (tmp_path / "1_results.json").write_text(json.dumps(results), encoding="utf-8")
    with pytest.raises(SystemExit, match="lacks answers in full precision"):
        blind_table.keep(tmp_path)


def test_only_policies_that_answered_everything_are_kept(tmp_path, monkeypatch, results):
    monkeypatch.setattr(blind_table, "RESULTS", tmp_path / "kept.json")
    for part in ("results", "configs", "n-samples", "higher_is_better"):
        results[part]["blind_small"] = copy.deepcopy(results[part]["blind_bf16"])
    results["n-samples"]["blind_small"]["effective"] -= 1
    results["results"]["blind_bf16"]["ttft_s,none"] = 1.0
    (tmp_path / "1_results.json").write_text(json.dumps(results), encoding="utf-8")
    blind_table.keep(tmp_path)
    kept = json.loads(blind_table.RESULTS.read_text(encoding="utf-8"))
    assert "blind_small" not in kept["results"] and "blind_bf16" in kept["results"]
    assert "ttft_s,none" not in kept["results"]["blind_bf16"]
