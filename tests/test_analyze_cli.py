"""``kvmm analyze`` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from kvmm.analysis.drift.report import DriftReport, validate
from kvmm.analysis.report.pages import drift_page
from kvmm.cli import main

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "assets" / "samples"
MEMO = SAMPLES / "memo.wav"


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """``kvmm analyze`` in this process; files go to ``tmp_path / "out"``."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr(sys, "argv", ["kvmm", "analyze", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, exit_.value.code or 0, out, err)

    return call


def read(tmp_path: Path, name: str, folder: str = "out") -> dict:
    assert (tmp_path / folder / f"{name}.html").read_text().startswith("<!DOCTYPE html>")
    return json.loads((tmp_path / folder / f"{name}.json").read_text())


def test_norms_of_the_sample_with_the_most_modalities(call, tmp_path):
    result = call("norms", "--layer", 3, "--no-png")
    assert result.returncode == 0, result.stderr
    assert "Token-norm imbalance" in result.stdout and "stages of codec oscar" in result.stdout
    found = read(tmp_path, "norms", "report")  # the default folder
    assert found["files"] == ["invoice.png", "question.wav"] and found["model"] == "tiny-omni"
    assert set(found["norms"]["tokens_by_modality"]) == {"text", "image", "audio"}
    assert found["norms"]["layers"] == list(range(8)) and found["norms"]["attention"] == "measured"
    assert found["channels"]["layer"] == 3 and found["command"].startswith("kvmm analyze norms --layer 3")
    assert not list((tmp_path / "report").glob("*.png"))
    page = (tmp_path / "report" / "norms.html").read_text()
    assert all(
        f"figure-{name}" in page
        for name in ("norms_key", "boxes_query", "heads", "tokens_key", "attention", "stages_key", "ranges")
    )


def test_norms_of_a_text(call, tmp_path):
    (tmp_path / "words.txt").write_text("The quick brown fox jumps over the lazy dog. " * 5)
    result = call("norms", "--text", tmp_path / "words.txt", "--out", tmp_path / "out", "--no-png")
    assert result.returncode == 0, result.stderr
    found = read(tmp_path, "norms")
    assert list(found["norms"]["tokens_by_modality"]) == ["text"] and found["files"] == ["words.txt"]
    assert found["norms"]["key"]["summary"]["gap"] == 1


def test_errors_of_a_recording(call, tmp_path):
    options = ("--audio", MEMO, "--policy", "kivi2", "--policy", "calibquant1", "--out", tmp_path / "out", "--no-png")
    result = call("errors", *options)
    assert result.returncode == 0, result.stderr
    row = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}
    assert float(row["kivi2"][0]) < 0.3 < float(row["calibquant1"][0])
    found = read(tmp_path, "errors")
    assert [one["policy"] for one in found["errors"]["policies"]] == ["kivi2", "calibquant1"]
    assert found["question"] == "What do you hear?" and len(found["scores"]["layers"]) == 8


def test_drift_has_the_report_of_kvmm_drift(call, tmp_path):
    options = ("--policy", "bf16", "--policy", "kivi2", "--seeds", 0, "--max-new-tokens", 8)
    result = call("drift", "--audio", MEMO, *options, "--out", tmp_path / "out", "--no-png")
    assert result.returncode == 0, result.stderr
    assert "Logit drift" in result.stdout and "kivi2" in result.stdout
    report = read(tmp_path, "drift")
    assert validate(report) == [] and report["settings"]["files"] == ["memo.wav"]
    figures = {one.name: one.figure for one in drift_page(DriftReport.from_dict(report))[0]}
    exact, two = figures["drift_bits"].data
    assert two.y[0] == report["policies"][1]["logits"]["kl_mean"] > 10 * exact.y[0] > 0  # a logarithm is taken
    assert two.x[0] == pytest.approx(report["policies"][1]["bits"]["bits"], abs=1e-3) and two.text[0].strip() == "kivi2"
    assert sum(figures["drift_position"].data[1].customdata) == report["policies"][1]["logits"]["positions"]
    assert list(figures["drift_agreement"].data[0].x) == ["bf16", "kivi2"]
    assert figures["drift_agreement"].data[0].y[0] == 1


def test_cost_of_a_shape_with_pictures(call, tmp_path):
    options = ("--model", "Qwen2.5-VL-3B", "--context", 16384, "--images", 4, "--budget", "8GiB")
    result = call("cost", *options, "--policy", "bf16", "--policy", "kivi2", "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert "longest context" in text and result.stderr == ""
    assert "Of 8 GiB, the weights take 6.994 GiB" in text and "1.006 GiB are left for the cache" in text
    found = read(tmp_path, "cost")
    full, packed = found["policies"]
    assert found["tokens"] == {"text": 12288, "image": 4096, "video": 0, "audio": 0}
    assert full["nbytes"] > 4 * packed["nbytes"]
    pictures = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert pictures == ["bytes.png", "decode.png", "longest.png", "pack_image.png", "pack_text.png"]
    assert Image.open(tmp_path / "out" / "bytes.png").width == 1800


def test_cost_of_a_file(call, tmp_path):
    options = ("--audio", MEMO, "--context", 1000, "--policy", "rd2", "--out", tmp_path / "out", "--no-png")
    assert call("cost", *options).returncode == 0
    found = read(tmp_path, "cost")
    assert sum(found["tokens"].values()) == 1000 and found["tokens"]["audio"] > 20 and found["files"] == ["memo.wav"]
    assert found["policies"][0]["stored_as"] == "rd2"  # the embedded model has a calibration file


def test_wrong_input_is_one_line(call, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "taken").write_text("")
    for options, match in [
        (("norms", "--image", tmp_path / "missing.png"), "There is no file"),
        (("norms", "--question", "Why?"), "nothing to ask about"),
        (("norms", "--audio", MEMO, "--text", tmp_path / "empty.txt"), "A text is continued"),
        (("norms", "--text", tmp_path / "empty.txt"), "is empty"),
        (("norms", "--audio", MEMO, "--layer", 40), "no layer 40"),
        (("norms", "--audio", MEMO, "--head", 9), "no KV head 9"),
        (("norms", "--audio", MEMO, "--out", tmp_path / "taken", "--no-png"), "cannot be written"),
        (("errors", "--policy", "nothing"), "Unknown policy"),
        (("errors", "--audio", MEMO, "--policy", "kivi2", "--layer", 9), "no layer 9"),
        (("drift", "--audio", MEMO, "--seeds", 1), "2 or more"),
        (("cost", "--model", "nothing"), "built-in model"),
        (("cost", "--budget", "much"), "no amount of memory"),
        (("cost", "--images", 40), "raise it, or plan fewer media"),
        (("cost", "--audio", MEMO, "--images", 1), "counted in the files"),
    ]:
        result = call(*options)
        assert result.returncode == 2 and result.stdout == "" and "Traceback" not in result.stderr, options
        (line,) = result.stderr.splitlines()
        assert line.startswith("kvmm: ") and match in line
