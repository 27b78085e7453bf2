"""The benchmark scripts run and write what they promise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_packing(tmp_path: Path):
    output = tmp_path / "result.json"
    options = ["--rounds", "1", "--policies", "rd2", "kivi2", "--output", str(output)]
    command = [sys.executable, "-m", "benchmarks.packing", *options]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    report = json.loads(output.read_text())
    assert report["pages"] == 4 and report["tokens"] > 1000 and report["reading_seconds"] > 0
    assert set(report["results"]) == {"rd2", "kivi2"}
    assert all(row["seconds"] > 0 for row in report["results"].values())


def test_ask_policies(tmp_path: Path):
    output = tmp_path / "result.json"
    options = ["--rounds", "1", "--decode-tokens", "4", "--policies", "small", "--output", str(output)]
    command = [sys.executable, "-m", "benchmarks.ask_policies", *options]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    report = json.loads(output.read_text())
    assert report["pages"] == 4 and report["machine"]["threads"] >= 1 and report["versions"]["torch"]
    small, dynamic = report["results"]["small"], report["results"]["dynamic"]
    assert dynamic["seconds_ratio"] == 1 and dynamic["memory"] is None
    assert 0 < small["prefill_seconds"] < small["seconds"] and small["decode_seconds_per_token"] > 0
    assert 0 < small["memory"]["nbytes"] < small["memory"]["nbytes_dense"]


def test_retention(tmp_path: Path):
    """At equal bytes the joint plan is nearer to full precision than lowering everything first."""
    output = tmp_path / "result.json"
    data = ROOT / "tests" / "data" / "heldout" / "sample.jsonl"
    options = ["--data", str(data), "--limit", "2", "--shares", "0.7", "--dtype", "float32", "--output", str(output)]
    command = [sys.executable, "-m", "benchmarks.retention", *options]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    rows = {(r["policy"], r["variant"]): r for r in json.loads(output.read_text())["results"]}
    free, joint = (rows["spherical-high", variant] for variant in ("no budget", "joint"))
    assert joint["nbytes"] <= 0.7 * free["nbytes"] and joint["dropped"] > 0
    assert abs(rows["spherical-high", "A1 rebuilt keys"]["kl"] - free["kl"]) < 1e-3
    assert joint["kl"] < rows["spherical-high", "A2 decoupled"]["kl"]


def test_policy_accuracy(tmp_path: Path):
    """Two processes share the documents; scores and measured bits of every policy are written."""
    output = tmp_path / "result.json"
    data = ROOT / "tests" / "data" / "heldout" / "sample.jsonl"
    options = ["--data", str(data), "--limit", "8", "--jobs", "2", "--policies", "rd2", "calibquant1"]
    command = [sys.executable, "-m", "benchmarks.policy_accuracy", *options, "--output", str(output)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    dynamic, rd, one_bit = json.loads(output.read_text())["results"]
    assert dynamic["policy"] == "dynamic" and dynamic["questions"] == rd["questions"] >= 6 and dynamic["kept"] == 1
    assert "media_bits" not in dynamic and one_bit["media_bits"] < rd["media_bits"] < 2.6
    assert one_bit["kept"] < 0.5 < rd["kept"]
