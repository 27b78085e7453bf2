"""``kvmm drift`` and ``benchmarks.drift`` as a user runs them, on the embedded model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import drift as benchmark
from kvmm.analysis.drift import witnesses
from kvmm.analysis.drift.report import DriftReport, validate
from kvmm.analysis.drift.tool_run import MAX_NEW_TOKENS
from kvmm.cli import main
from kvmm.commands import drift
from kvmm.errors import KVMMError
from tests.encoded_pages import encode_once

ROOT = Path(__file__).resolve().parents[1]
INVOICE = ROOT / "assets" / "samples" / "invoice.png"
MEMO = ROOT / "assets" / "samples" / "memo.wav"
HELDOUT = ROOT / "tests" / "data" / "heldout" / "sample.jsonl"


@pytest.fixture
def call(monkeypatch, capsys):
    """``kvmm drift`` in this process."""

    encode_once(monkeypatch)

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["kvmm", "drift", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, exit_.value.code or 0, out, err)

    return call


def assert_refused(result: subprocess.CompletedProcess[str], match: str) -> None:
    assert result.returncode == 2 and result.stdout == "" and "Traceback" not in result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("kvmm: ") and match in line


def test_a_page_under_several_policies(call, tmp_path):
    out = tmp_path / "report.json"
    result = call(
        "--image", INVOICE, "--question", "How much do I have to pay?", "--out", out, "--dtype", "float32",
        "--policy", "bf16", "--policy", "kivi2", "--policy", "calibquant1", "--max-new-tokens", 16,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    for word in ("bf16", "calibquant1", "top-1", "tail KL", "early", "seed gap"):
        assert word in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80 and "…" not in result.stdout
    report = json.loads(out.read_text())
    assert validate(report) == []
    exact, two, one = DriftReport.from_dict(report).policies
    assert exact.logits.kl_max < 1e-4 and exact.logits.top1_agreement == 1 and exact.agreement.identical == 1
    assert exact.seeds.gap == 0 and exact.seeds.same_seed == 1
    assert exact.logits.kl_mean < two.logits.kl_mean < one.logits.kl_mean and one.logits.kl_mean > 1
    assert 1 < one.bits.media_packed_bits < 1.5 < two.bits.media_packed_bits < 3.5
    assert one.agreement.similarity < 0.6 < exact.agreement.similarity
    assert report["command"].startswith("kvmm drift --image") and report["settings"]["files"] == ["invoice.png"]


def test_a_recording_as_json(call):
    result = call("--audio", MEMO, "--policy", "kivi4", "--seeds", 0, "--max-new-tokens", 12, "--json")
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    report = json.loads(line)
    assert validate(report) == [] and report["settings"]["question"] == "What do you hear?"
    assert report["policies"][0]["seeds"] is None and report["policies"][0]["logits"]["top1_agreement"] > 0.5


def test_a_text(call, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog, and then the dog looks at the fox. " * 30)
    options = ("--text", text, "--prefill", 200, "--continue", 40, "--seeds", 0, "--max-new-tokens", 4)
    result = call(*options, "--policy", "kivi2", "--json")
    assert result.returncode == 0, result.stderr
    (policy,) = json.loads(result.stdout)["policies"]
    assert policy["logits"]["positions"] == 39 and policy["logits"]["kl_mean"] > 1e-6
    assert policy["bits"]["media_bits"] is None and policy["bits"]["packed_bits"] < 4
    assert_refused(call("--text", text, "--prefill", 8000), "nothing is left to continue")


def test_tools_are_asked_for_and_verdicts_written(call, tmp_path):
    tools, out = tmp_path / "tools.json", tmp_path / "verdicts.json"
    asked = json.loads((ROOT / "benchmarks" / "tools" / "office.json").read_text())
    tools.write_text(json.dumps({**asked, "requests": asked["requests"][:2]}))
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog, and then the dog looks at the fox. " * 30)
    options = ("--text", text, "--prefill", 200, "--continue", 40, "--seeds", 0, "--max-new-tokens", 4)
    result = call(*options, "--policy", "kivi2", "--tools", tools, "--verdicts", out)
    assert result.returncode == 0, result.stderr
    assert "W2 logit drift:" in result.stdout and "W8 schema integrity: not measured" in result.stdout
    found = json.loads(out.read_text())
    assert found["settings"]["tools"] == "tools.json"
    assert found["policies"]["kivi2"]["tool_calls"]["answers"] == 2  # the embedded model calls no tools
    assert found["policies"]["kivi2"]["witnesses"][1]["measures"][0]["name"] == "KL, mean"
    tools.write_text("{}")
    assert_refused(call(*options, "--tools", tools), "must hold")


def test_results_are_shown_before_they_are_written(call, tmp_path, monkeypatch):
    """A disk that is full by then costs the file, not what was measured."""
    monkeypatch.setattr(drift, "measure", lambda *_, **__: type("Report", (), {"to_dict": lambda self: {"a": 1}})())
    monkeypatch.setattr(drift, "show", lambda *_: print("shown"))
    monkeypatch.setattr(witnesses, "verdicts", lambda *_: {})

    def full(found, path):
        raise KVMMError(f"{path} cannot be written")

    monkeypatch.setattr(witnesses, "save_verdicts", full)
    for options, said in ((), "shown\n"), (("--json",), '{"a": 1}\n'):
        result = call("--policy", "kivi2", "--verdicts", tmp_path / "v.json", *options)
        assert result.returncode == 2 and result.stdout == said and "cannot be written" in result.stderr


def test_help_says_what_tool_calls_may_take(call):
    said = " ".join(call("--help").stdout.replace("│", " ").split())
    assert f"of tool calls always {MAX_NEW_TOKENS}" in said


def test_errors(call, tmp_path):
    words = tmp_path / "words.txt"
    words.write_bytes(b"\xff\xfe\x00")
    for options, match in [
        (("--policy", "nothing"), "Unknown policy"),
        (("--policy", "kivi2", "--policy", "kivi2"), "Two policies"),
        (("--image", tmp_path / "missing.png"), "There is no file"),
        (("--image", words), "words.txt"),
        (("--text", tmp_path / "missing.txt"), "No such file"),
        (("--text", words), "not UTF-8"),
        (("--text", words, "--image", INVOICE), "A text is continued"),
        (("--question", "Why?"), "nothing to ask about"),
        (("--image", INVOICE, "--model", tmp_path / "nothing"), "There is no model folder"),
        (("--image", INVOICE, "--seeds", 1), "2 or more"),
        (("--image", INVOICE, "--out", "one.json", "--verdicts", "./one.json"), "both name one.json"),
    ]:
        assert_refused(call(*options), match)


def test_benchmark_of_questions(tmp_path, capsys):
    output = tmp_path / "drift.json"
    options = ["--data", str(HELDOUT), "--limit", "4", "--transcribe", "8", "--output", str(output)]
    benchmark.main([*options, "--policies", "kivi4", "calibquant1-mean", "calibquant1"])
    report = json.loads(output.read_text())
    assert validate(report) == [] and report["command"].startswith("python -m benchmarks.drift --data")
    assert report["device"] == "cpu" and report["prompts"] > 4 and report["settings"]["transcribe"] == 8
    four, mean, paper = (policy["logits"] for policy in report["policies"])
    assert four["kl_mean"] < mean["kl_mean"] < paper["kl_mean"]
    assert report["policies"][0]["length"] is None
    table = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split()[0] for line in table] == ["kivi4", "calibquant1-mean", "calibquant1"]
    benchmark.main([*options, "--resume", "--policies", "bf16", "kivi4"])
    resumed = json.loads(output.read_text())
    assert resumed["policies"][:3] == report["policies"] and resumed["policies"][3]["policy"] == "bf16"
    capsys.readouterr()
    with pytest.raises(SystemExit):
        benchmark.main([*options, "--policies", "all", "kivi4"])  # all the presets, and one of them again
    assert "Two policies are called 'kivi4'" in capsys.readouterr().err


def test_benchmark_hides_pages(tmp_path, capsys):
    output = tmp_path / "drift.json"
    options = ["--data", str(HELDOUT), "--hide", "2", "--limit", "2", "--answers", "--output", str(output)]
    benchmark.main([*options, "--policies", "balanced"])
    (policy,) = json.loads(output.read_text())["policies"]
    assert [row["page"] for row in policy["retrieval"]["by_page"]] == [1, 2]
    assert policy["length"]["answers"] == 2 and "balanced" in capsys.readouterr().out


def test_benchmark_errors_are_one_line(tmp_path, capsys):
    for options, match in [
        (["--data", str(tmp_path / "missing.jsonl")], "cannot be read"),
        (["--text", str(tmp_path)], "cannot be read"),
        (["--text", str(HELDOUT), "--policies", "nothing"], "Unknown policy"),
        (["--text", str(HELDOUT), "--tools", str(HELDOUT)], "--tools adds to the --verdicts"),
        (["--text", str(HELDOUT), "--verdicts", "v.json", "--tools", str(HELDOUT)], "is not JSON"),
        (["--text", str(HELDOUT), "--starts", "0", "512", "0"], "different numbers"),
        (["--text", str(HELDOUT), "--verdicts", "v.json", "--output", "./v.json"], "name the same file"),
        (["--text", str(HELDOUT), "--verdicts", "v.json", "--resume", "--output", "o.json"], "of one whole run"),
    ]:
        with pytest.raises(SystemExit) as exit_:
            benchmark.main(options)
        assert exit_.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("drift: ") and match in line
