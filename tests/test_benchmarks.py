"""The benchmark scripts run and write what they promise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


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
