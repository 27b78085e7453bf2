"""``kvmm eval`` as a user runs it, killed and taken up again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvmm.cli import main
from kvmm.commands.eval import spread
from kvmm.eval.run import launch
from kvmm.eval.run.records import read_rows, read_run
from tests.encoded_pages import load_embedded

ROOT = Path(__file__).resolve().parents[2]
KEEP = ("doc_id", "filtered_resps", "kv_bytes", "anls", "token_counts", "error")


@pytest.fixture(scope="module")
def loaded():
    return load_embedded()


@pytest.fixture
def call(monkeypatch, capsys, loaded):
    """``kvmm eval`` in this process, with a model that is loaded already."""
    monkeypatch.setattr(launch, "load_model", lambda *_, **__: loaded)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["kvmm", "eval", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, exit_.value.code or 0, out, err)

    return call


def test_words_after_an_option():
    words = ["docvqa", "ocrbench", "--policies", "bf16", "rd2", "--out", "x", "--cache", "hf-hqq", "--data", "a", "b"]
    assert spread(words) == [
        *("docvqa", "ocrbench", "--policies", "bf16", "--policies", "rd2", "--out", "x", "--cache", "hf-hqq"),
        *("--data", "a", "--data", "b"),
    ]
    assert spread(["--policies=bf16", "docvqa", "--limit", "3", "ocrbench"]) == [
        *("--policies=bf16", "docvqa", "--limit", "3", "ocrbench")
    ]


def test_several_tasks_and_a_policy_file(call, tmp_path):
    policy = tmp_path / "mine.yaml"
    policy.write_text("name: mine\nimage: kivi4\n")
    options = ("docvqa", "mp-docvqa", "--data", "mini", "--limit", 2, "--max-new-tokens", 6, "--out", tmp_path / "out")
    result = call(*options, "--policies", "bf16", policy, "--batch-size", 2)
    assert result.returncode == 0, result.stderr
    for words in ("docvqa: 2 questions from mini", "mp-docvqa: 2 questions from mini"):
        assert words in result.stderr
    for words in ("docvqa, tiny-omni", "mp-docvqa, tiny-omni", "mine", "difference", "95 % interval", "answers/s"):
        assert words in result.stdout
    run = read_run(tmp_path / "out")
    assert run.tasks == ["docvqa", "mp-docvqa"] and run.policies("docvqa") == ["bf16", "mine"]
    assert run.results["config"]["image_processor"]["patch_size"] == 14
    assert run.config("docvqa", "mine")["policy_config"]["image"]["key"]["codec"] == "kivi"
    assert run.results["complete"] is True
    assert run.scores("docvqa", "mine")["kv_bytes"] < run.scores("docvqa", "bf16")["kv_bytes"] / 2
    again = call(*options, "--policies", "bf16", policy, "--quiet")
    assert again.stderr == "" and "docvqa, tiny-omni" in again.stdout
    assert again.returncode == 0 and read_run(tmp_path / "out").date == run.date  # there was nothing left to do
    fresh = call(*options[:1], *options[2:], "--policies", "bf16", "--fresh", "--limit", 1)
    assert fresh.returncode == 0 and read_run(tmp_path / "out").date > run.date


def test_killed_and_taken_up_again(call, tmp_path):
    """kill -9 while rows are written: nothing is lost but the sample in hand, nothing counts twice."""
    options = ["docvqa", "--data", "mini", "--limit", "8", "--policies", "bf16", "rd2", "--max-new-tokens", "8"]
    options += ["--dtype", "float32", "--device", "cpu", "--out", str(tmp_path / "killed")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "kvmm", "eval", *options], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL
    )

    def rows() -> list[dict]:
        return [row for path in (tmp_path / "killed").glob("*/*.jsonl") for row in read_rows(path)]

    deadline = time.monotonic() + 240
    while len(rows()) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {(row["policy"], row["doc_id"]): row for row in rows()}
    assert 3 <= len(before) < 16
    assert read_run(tmp_path / "killed").results["complete"] is False

    result = call(*options)
    assert result.returncode == 0, result.stderr
    run = read_run(tmp_path / "killed")
    for policy in ("bf16", "rd2"):
        ids = [row["doc_id"] for row in run.samples["docvqa"][policy]]
        assert len(ids) == len(set(ids)) == 8
        for row in run.samples["docvqa"][policy]:
            assert before.get((policy, row["doc_id"]), row) == row  # to the byte, times included
    result = call(*options[:-1], tmp_path / "whole")
    assert result.returncode == 0, result.stderr
    whole = read_run(tmp_path / "whole")
    for policy in ("bf16", "rd2"):
        kept, straight = ([{k: r[k] for k in KEEP} for r in x.samples["docvqa"][policy]] for x in (run, whole))
        assert kept == straight


def test_two_processes_answer_as_one(call, tmp_path):
    """Each document is answered by one of them, the rows are in the data's order, and one of them talks."""
    options = ["docvqa", "--data", "mini", "--limit", "6", "--policies", "rd2", "--max-new-tokens", "4"]
    options += ["--batch-size", "4", "--dtype", "float32", "--device", "cpu", "--out"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "kvmm"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command += ["eval", *options, str(tmp_path / "two")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("docvqa, tiny-omni") == 1
    two = read_run(tmp_path / "two")
    assert two.results["config"]["processes"] == 2 and two.results["complete"] is True
    assert len(list(two.folder.glob("*.jsonl"))) == 1
    assert call(*options, tmp_path / "one").returncode == 0
    one = read_run(tmp_path / "one")
    keep = [name for name in KEEP if name != "kv_bytes"]  # of batches, which hold padding
    kept = [[{k: row[k] for k in keep} for row in run.samples["docvqa"]["rd2"]] for run in (one, two)]
    assert kept[0] == kept[1] and len(kept[0]) == 6


def test_errors_are_one_line(call, tmp_path):
    (tmp_path / "broken.json").write_text("{")
    for options, match in [
        (("nothing",), "There is no task nothing"),
        (("docvqa", "docvqa", "--data", "mini"), "named twice"),
        (("docvqa", "--data", tmp_path / "missing"), "does not exist"),
        (("docvqa", "--data", tmp_path / "broken.json"), "broken.json"),
        (("docvqa", "--data", "mini", "mini", "mini"), "1 tasks and 3 sources"),
        (("docvqa", "--data", "mini", "--policies", "nothing"), "Unknown policy"),
        (("docvqa", "--data", "mini", "--policies", "rd2", "rd2"), "Two policies"),
        (("docvqa", "--data", "mini", "--cache", "hf-nothing"), "hf-nothing"),
        (("docvqa", "--data", "mini", "--engine", "slurm"), "no engine 'slurm'"),
        (("docvqa", "--data", "mini", "--address", "auto"), "--engine ray"),
        (("docvqa", "--data", "mini", "--limit", 1, "--out", tmp_path / "broken.json"), "--out"),
    ]:
        result = call(*options)
        assert result.returncode == 2 and result.stdout == "", (options, result.stderr)
        *_, line = result.stderr.splitlines()
        assert line.startswith("kvmm: ") and match in line, (options, result.stderr)
        assert "Traceback" not in result.stderr
