"""``kvmm report``: numbers, pages and refusals, on runs written by hand in the format of ``kvmm eval``."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from kvmm.analysis.plots import score_by_bits, score_differences
from kvmm.cli import main
from kvmm.eval.report.build import EvaluationReport, build_report, find_runs
from kvmm.eval.report.files import load_samples, write_report
from kvmm.eval.report.pages import markdown, markdown_table, summary_table, table_of
from kvmm.eval.report.plots import LEAST_POINTS, front
from kvmm.eval.run.records import Run, sample_hash
from kvmm.eval.tasks import get_task

BF16 = 1_048_576
SIZES = {"bf16": BF16, "rd2": BF16 // 8, "rd1": BF16 // 16}


def row(sample, policy, answer, score, **more):
    """A line of a samples file."""
    return {
        "doc_id": sample.doc_id,
        "task": "docvqa",
        "policy": policy,
        "input": sample.question,
        "target": list(sample.answers),
        "doc_hash": sample_hash(sample.question, sample.answers),
        "group": sample.group,
        "filtered_resps": answer,
        "token_counts": {"prompt": 300, "output": 4},
        "anls": score,
        "exact_match": float(score == 1),
        "kv_bytes": SIZES[policy],
        "kv_bytes_bf16": BF16,
        "ttft_s": 0.5,
        "tpot_s": 0.02,
        "output_tokens": 4,
        "repetition_rate": 0.0,
        "error": None,
        "metadata": dict(sample.metadata),
        **more,
    }


def write(folder, rows, *, metric="anls", data="mini", date="20260101_000000", **results):
    """A run of one task: rows by policy."""
    folder.mkdir(parents=True, exist_ok=True)
    task = results.pop("task", "docvqa")
    configs = {
        f"{task}_{name}": {"task": task, "policy": name, "metric": metric, "dataset_path": data, "split": None}
        for name in rows
    }
    found = {
        "results": {f"{task}_{name}": {} for name in rows},
        "configs": configs,
        "versions": {"torch": "2.13.0", f"{task}_bf16": 1},
        "config": {"device": "cpu", "dtype": "float32"},
        "model_name": folder.name,
        "complete": True,
        "total_evaluation_time_seconds": "12.5",
        **results,
    }
    (folder / f"{date}_results.json").write_text(json.dumps(found), encoding="utf-8")
    for name, lines in rows.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{date}_samples_{task}_{name}.jsonl").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def samples():
    """Five pages of the mini set with four questions each."""
    found = list(get_task("docvqa").load("mini", limit=20))
    assert len({sample.group for sample in found}) == 5
    return found


@pytest.fixture(scope="module")
def rows(samples):
    """bf16 is always right but for one error; rd2 loses two questions of one page, rd1 all of three pages."""
    made = {"bf16": [], "rd2": [], "rd1": []}
    pages = list(dict.fromkeys(sample.group for sample in samples))
    for index, sample in enumerate(samples):
        right = sample.answers[0]
        made["bf16"].append(row(sample, "bf16", right, 1.0))
        lost = index in (0, 1)
        made["rd2"].append(row(sample, "rd2", "almost" if lost else right, (0.6, 0.0)[index] if lost else 1.0))
        broken = pages.index(sample.group) < 3
        made["rd1"].append(row(sample, "rd1", "<b>noise|" if broken else right, 0.0 if broken else 1.0))
    made["bf16"][-1] |= {"error": "memory ran out", "filtered_resps": ""}
    for name in ("anls", "exact_match"):
        del made["bf16"][-1][name]
    return made


@pytest.fixture
def run_folder(tmp_path, rows):
    scores = {"anls,none": 0.9, "anls/form,none": 0.8, "anls/table | list,none": 1.0}
    return write(tmp_path / "results" / "tiny", rows, results={"docvqa_rd2": scores})


def test_numbers_of_the_table(run_folder):
    (task,) = build_report(find_runs(run_folder.parent)).runs[0].tasks
    bf16, rd2, rd1 = task.policies
    assert (task.metric, task.paired_metric, task.reference) == ("anls", "anls", "bf16")
    assert (bf16.score, bf16.answered, bf16.failed, bf16.difference) == (1.0, 19, 1, None)
    assert rd2.score == 0.9  # what the results file says, not the mean of the rows
    assert rd1.score == pytest.approx(8 / 20)
    assert (rd2.bits_per_value, rd2.kv_ratio) == (2.0, 8.0)
    # the question that full precision could not answer is in no pair
    assert rd2.difference.samples == 19
    assert rd2.difference.mean == pytest.approx(-1.4 / 19)
    assert (rd2.mcnemar.lost, rd2.mcnemar.gained, rd2.mcnemar.p_value) == (2, 0, 0.5)
    assert (rd1.mcnemar.lost, rd1.mcnemar.p_value) == (12, pytest.approx(2 / 2**12))
    assert rd1.p_holm == pytest.approx(4 / 2**12) and rd2.p_holm == 0.5
    assert rd2.parts == {"form": 0.8, "table | list": 1.0}


@pytest.mark.parametrize("scored", [2, 20])
def test_score_and_difference_are_of_the_same_answers(rows, tmp_path, scored):
    """A smaller --limit scores fewer answers than the run has, of which the difference is."""
    scores = {"samples": scored, "anls,none": 0.3, "anls/form,none": 0.2}
    folder = write(tmp_path / "tiny", rows, results={"docvqa_rd2": scores})
    (task,) = build_report(find_runs(folder)).runs[0].tasks
    rd2 = task.policy("rd2")
    mean = sum(line["anls"] for line in rows["rd2"]) / 20
    assert rd2.answered == 20 and rd2.score == pytest.approx(0.3 if scored == 20 else mean)
    assert rd2.parts == ({"form": 0.2} if scored == 20 else {})


def test_questions_of_a_page_are_resampled_together(run_folder, rows, tmp_path):
    (task,) = build_report(find_runs(run_folder)).runs[0].tasks
    assert task.clusters and task.policy("rd1").difference.clusters == 5
    bare = {name: [{**line, "group": None} for line in lines] for name, lines in rows.items()}
    (alone,) = build_report(find_runs(write(tmp_path / "bare", bare))).runs[0].tasks
    assert not alone.clusters
    wide, narrow = task.policy("rd1").difference, alone.policy("rd1").difference
    assert wide.high - wide.low > 1.3 * (narrow.high - narrow.low)


def test_worst_failures_come_first_and_show_all_wrong_answers(run_folder, samples):
    (task,) = build_report(find_runs(run_folder), failures=3).runs[0].tasks
    first, second = samples[1].doc_id, samples[0].doc_id
    assert task.policy("rd2").failures == (first, second)  # 0.0 before 0.6
    assert len(task.policy("rd1").failures) == 3
    worst = task.failures[0]
    assert worst.doc_id == first
    assert worst.answers == {"rd2": "almost", "rd1": "<b>noise|"}
    assert worst.reference_answer == samples[1].answers[0]
    assert "single word or phrase" not in worst.question  # the question, not the prompt


def test_files_of_the_report(run_folder, tmp_path):
    runs = find_runs(run_folder)
    markdown, html, data = write_report(tmp_path / "out", build_report(runs), runs)
    text = markdown.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert pictures and all((tmp_path / "out" / path).stat().st_size > 500 for path in pictures)
    assert "| form |" in text and "table \\| list" in text
    page = html.read_text(encoding="utf-8")
    body = page[page.index("<body") :]
    assert body.count('<img src="data:image/jpeg;base64,') == len(pictures)
    assert "&lt;b&gt;noise|" in body and "<b>noise" not in body
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page[: page.index("<script")] + body)
    assert body.count("js-plotly-plot") + body.count("plotly-graph-div") >= 2
    found = json.loads(data.read_text(encoding="utf-8"))
    assert found["runs"][0]["tasks"][0]["policies"][1]["difference"]["clusters"] == 5


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("niah-pages@lengths=1,depths=3,repeats=1", {}),
        ("niah-pages", {"lengths": (1,), "depths": 3, "repeats": 1, "seed": 7}),
        ("niah", {"lengths": (90,), "depths": (0.5,), "repeats": 1}),  # with a function among its options
    ],
)
def test_samples_are_asked_for_with_the_options_of_the_run(name: str, options: dict, tmp_path):
    task = get_task(name, **options)
    config = {"task": name, "policy": "bf16", "dataset_path": "generated", "split": None}
    config["task_options"] = json.loads(json.dumps(task.option_values()))
    asked = {sample.doc_id: sample for sample in task.load()}
    lines = [{"doc_id": s.doc_id, "doc_hash": sample_hash(s.question, s.answers)} for s in asked.values()]
    run = Run(tmp_path, "20260101", {"configs": {f"{name}_bf16": config}}, {name: {"bf16": lines}})
    found = load_samples(run, name)
    assert found.keys() == asked.keys() and all(found[key].images == asked[key].images for key in asked)
    config["task_options"] = {"lengths": "many", "seed": [1]}
    assert load_samples(run, name) != found
    config["task_options"] = [1]
    assert load_samples(run, name) == {}


def test_pictures_are_of_what_was_asked(rows, tmp_path):
    (run,) = find_runs(write(tmp_path / "same", rows))
    assert list(load_samples(run, "docvqa")) == [line["doc_id"] for line in rows["rd2"]]
    changed = {name: [{**line, "doc_hash": "0"} for line in lines] for name, lines in rows.items()}
    (run,) = find_runs(write(tmp_path / "changed", changed))
    assert load_samples(run, "docvqa") == {}
    (run,) = find_runs(write(tmp_path / "moved", rows, data="/nowhere/docvqa"))
    assert load_samples(run, "docvqa") == {}
    files = write_report(tmp_path / "out", build_report([run]), [run])
    assert "pictures/" not in files[0].read_text(encoding="utf-8")


def test_full_precision_is_needed_for_differences_only(rows, tmp_path):
    folder = write(tmp_path / "tiny", {name: rows[name] for name in ("rd2", "rd1")})
    report = build_report(find_runs(folder))
    (task,) = report.runs[0].tasks
    assert task.reference is None and all(one.difference is None for one in task.policies)
    assert "run bf16 too" in table_of(report.runs[0], task)
    report = build_report(find_runs(write(tmp_path / "full", {"bf16": rows["bf16"]})))
    assert "run more policies" in table_of(report.runs[0], report.runs[0].tasks[0])


def test_a_corpus_metric_is_compared_by_one_that_each_answer_has(rows, tmp_path):
    lines = {
        name: [
            {**{k: v for k, v in line.items() if k not in ("anls", "exact_match")}, "ROUGE_L": line.get("anls")}
            for line in lines
            if line["error"] is None
        ]
        for name, lines in rows.items()
    }
    results = {"coco-caption_rd2": {"CIDEr,none": 1.25, "ROUGE_L,none": 0.9}}
    folder = write(
        tmp_path / "tiny",
        lines,
        task="coco-caption",
        metric="CIDEr",
        results=results,
        higher_is_better={"coco-caption_rd2": {"ROUGE_L": True}},
    )
    (task,) = build_report(find_runs(folder)).runs[0].tasks
    assert (task.metric, task.paired_metric) == ("CIDEr", "ROUGE_L")
    low = write(
        tmp_path / "low", lines, task="coco-caption", metric="CIDEr", higher_is_better={"a": {"ROUGE_L": False}}
    )
    (errors,) = build_report(find_runs(low)).runs[0].tasks
    assert errors.paired_metric is None and errors.policy("rd2").mcnemar is None  # a high error rate is not right
    assert task.policy("rd2").score == 1.25
    assert task.policy("bf16").score is None  # not a mean of something else
    assert task.policy("rd2").difference.mean == pytest.approx(-1.4 / 19)


def test_the_newest_run_of_every_model(rows, tmp_path):
    write(tmp_path / "a", rows, date="20250101_000000")
    write(tmp_path / "a", {"bf16": rows["bf16"]}, date="20260101_000000")
    write(tmp_path / "b", rows)
    found = build_report(find_runs(tmp_path))
    assert [(run.model, run.date, len(run.tasks[0].policies)) for run in found.runs] == [
        ("a", "20260101_000000", 1),
        ("b", "20260101_000000", 3),
    ]
    (old,) = find_runs(tmp_path / "a" / "20250101_000000_results.json")
    assert old.date == "20250101_000000"


def test_figures(run_folder):
    (task,) = build_report(find_runs(run_folder)).runs[0].tasks
    assert front(task.policies) == ["bf16", "rd2", "rd1"]
    points = [trace for trace in score_by_bits(task).data if trace.mode == "markers"]
    assert {x for trace in points for x in trace.x} == {16.0, 2.0, 1.0}
    assert max(y + e for t in points if t.error_y.array for y, e in zip(t.y, t.error_y.array, strict=True)) <= 100
    assert list(score_differences(task).data[0].y) == ["rd1", "rd2"]


@pytest.mark.parametrize("score", [0.0, 0.5, 1.0])
def test_equal_scores_are_not_drawn_as_differences(run_folder, score):
    (task,) = build_report(find_runs(run_folder)).runs[0].tasks
    equal = replace(task, policies=tuple(replace(one, score=score, difference=None) for one in task.policies))
    low, high = score_by_bits(equal).layout.yaxis.range
    assert high - low >= LEAST_POINTS and low <= 100 * score <= high
    assert low >= -0.1 * LEAST_POINTS and high <= 100 + 0.1 * LEAST_POINTS, "no score is beyond the ends"


def test_the_axis_of_scores_holds_all_of_them(run_folder):
    (task,) = build_report(find_runs(run_folder)).runs[0].tasks
    low, high = score_by_bits(task).layout.yaxis.range
    ends = [100 * one.score for one in task.policies]
    assert low < min(ends) and max(ends) < high and "bits per value" in score_by_bits(task).layout.xaxis.title.text


def test_the_summary_holds_all_tasks(run_folder, rows, monkeypatch, capsys):
    (file,) = run_folder.glob("*_results.json")
    content = json.loads(file.read_text(encoding="utf-8"))
    content["configs"]["mp-docvqa_rd2"] = {"task": "mp-docvqa", "policy": "rd2", "metric": "anls"}
    file.write_text(json.dumps(content), encoding="utf-8")
    path = file.with_name(file.name.replace("_results.json", "_samples_mp-docvqa_rd2.jsonl"))
    half = [{**line, "kv_bytes": BF16 // 2} for line in rows["rd2"][2:]]
    path.write_text("".join(json.dumps(line) + "\n" for line in half), encoding="utf-8")
    code, out, _ = call(monkeypatch, capsys, run_folder, "--table", "summary")
    lines = out.splitlines()
    assert code == 0 and lines[2] == "| policy | whole-cache bits | docvqa | mp-docvqa |"
    assert lines[4] == "| bf16 | 16.00 | 100.0 |  |"
    # 20 questions at 1/8 and 18 at 1/2 of bf16
    bits = 16 * (20 / 8 + 18 / 2) / 38
    (task, _) = build_report(find_runs(run_folder)).runs[0].tasks
    low, high = task.policy("rd2").difference.interval
    assert lines[5] == f"| rd2 | {bits:.2f} | -7.4 [{100 * low:.1f}, {100 * high:.1f}] | 100.0 |"
    assert lines[6].startswith("| rd1 | 1.00 | -63.2 [-")
    assert "bf16: points of 100 (anls)" in lines[-1]
    assert "20 of docvqa, 18 of mp-docvqa" in lines[-1]


def test_a_table_survives_any_text():
    text = markdown_table(("a", "b"), [("x|y\nz", "<i>")])
    assert text.splitlines()[2] == "| x\\|y z | &#60;i\\> |"


HOSTILE = (
    "](http://host) ![x](http://host/x.png) <img src=x> `a` | **b** _c_ &lt; $d$ ~~e~~\n# f\n\n---\n[g]: http://host"
)


def test_names_and_answers_are_no_markup(rows, tmp_path):
    answers = {name: [{**line, "metadata": {"question": HOSTILE}} for line in lines] for name, lines in rows.items()}
    for line in (line for lines in answers.values() for line in lines):
        line["filtered_resps"] += HOSTILE
    (result,) = build_report(find_runs(write(tmp_path / "hostile", answers))).runs
    (task,) = result.tasks
    policies = tuple(replace(one, policy=f"{one.policy} {HOSTILE}") for one in task.policies)
    failures = tuple(
        replace(one, answers={f"{name} {HOSTILE}": text for name, text in one.answers.items()}) for one in task.failures
    )
    task = replace(task, task=HOSTILE, data=HOSTILE, paired_metric=HOSTILE, policies=policies, failures=failures)
    versions = {HOSTILE: HOSTILE}
    hostile = replace(result, model=HOSTILE, device=HOSTILE, dtype=HOSTILE, versions=versions, tasks=(task, task))
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    for text in (markdown(EvaluationReport((hostile,)), {}), summary_table(hostile), table_of(hostile, task)):
        tokens = [one for token in reader.parse(text) for one in (token, *(token.children or ()))]
        kinds = {token.type for token in tokens}
        assert not kinds & {"html_block", "html_inline", "image", "link_open", "code_inline", "s_open", "em_open", "hr"}
        assert "table_open" in kinds and "http://host" not in text  # which some readers make a link of
        for token in (one for one in tokens if one.type == "text" and "src=" in one.content):
            assert "<img src=x> `a` | **b** _c_ &lt; $d$ ~~e~~" in token.content


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["kvmm", "report", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    out, err = capsys.readouterr()
    return exit_.value.code, out, err


def test_command_line(run_folder, monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, run_folder.parent, "--table", "docvqa")
    assert code == 0 and out.count("\n| ") == 5 and "| rd2 | 90.0 | -7.4 |" in out
    assert not list(run_folder.parent.glob("report*"))
    code, out, _ = call(monkeypatch, capsys, run_folder.parent)
    assert code == 0 and "rd1" in out and "report.html" in out
    head, *lines = [line.split() for line in out.splitlines() if re.match(r" *(policy|bf16|rd2|rd1) ", line)]
    assert "bits" in head and ["2.00", "8.00x"] in [line[-2:] for line in lines]  # of 80 columns
    assert {path.name for path in run_folder.parent.glob("report.*")} == {"report.md", "report.html", "report.json"}


def _empty(folder, rows):
    folder.mkdir()
    return folder, "There are no results"


def _missing(folder, rows):
    return folder / "nothing", "does not exist"


def _not_json(folder, rows):
    folder.mkdir()
    (folder / "20260101_000000_results.json").write_text("{cut off", encoding="utf-8")
    return folder, "cannot be read"


def _list(folder, rows):
    folder.mkdir()
    (folder / "20260101_000000_results.json").write_text("[1]", encoding="utf-8")
    return folder, "did not write"


def _other_program(folder, rows):
    folder.mkdir()
    content = {"results": {"docvqa": {"anls,none": 0.5}}, "configs": {"docvqa": {"task": "docvqa"}}}
    (folder / "20260101_000000_results.json").write_text(json.dumps(content), encoding="utf-8")
    return folder, "did not write"


def _no_rows(folder, rows):
    return write(folder, {"bf16": [], "rd2": []}), "has no answers"


def _damaged_rows(folder, rows):
    lines = [{**line, "anls": "high"} for line in rows["rd2"]]
    return write(folder, {"bf16": rows["bf16"], "rd2": lines}), "are damaged"


def _other_file(folder, rows):
    folder.mkdir()
    (folder / "notes.txt").write_text("x", encoding="utf-8")
    return folder / "notes.txt", "is no results file"


@pytest.mark.parametrize(
    "make", [_empty, _missing, _not_json, _list, _other_program, _no_rows, _damaged_rows, _other_file]
)
def test_bad_folders_get_one_line(make, tmp_path, rows, monkeypatch, capsys):
    path, match = make(tmp_path / "results", rows)
    code, out, err = call(monkeypatch, capsys, path)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("kvmm: ") and match in line


def test_an_unknown_table_names_those_there_are(run_folder, monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, run_folder, "--table", "ocrbench")
    assert code == 2 and "choose one of docvqa, all or summary" in err
