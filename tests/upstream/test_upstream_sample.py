"""The sample of transformers' own tests that its source distribution can run, with lossless and packed caches.

``KVMM_TRANSFORMERS_SOURCE`` names a checkout, of which Llama's own model and generation tests run as well. Everything:
``python tests/upstream/run.py --help``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).with_name("run.py")


def run(folder, *options):
    command = [sys.executable, str(RUNNER), "--folder", str(folder), "--output", str(folder / "summary.json"), *options]
    environment = {name: value for name, value in os.environ.items() if name != "KVMM_TRANSFORMERS_SOURCE"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540, check=False)
    if "pip" in done.stderr.rpartition("CalledProcessError")[2] and not os.environ.get("CI"):
        pytest.skip("the package index that has transformers' source distribution cannot be reached")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((folder / "summary.json").read_text())


def test_shared_tests_pass_as_they_do_without_kvmm(tmp_path):
    found = run(tmp_path, "--policies", "bf16", "balanced")
    assert [row["policy"] for row in found["rows"]] == ["bf16", "balanced"]
    for row in found["rows"]:
        assert row["passed"] >= 30 and row["caches of forward"] >= 100  # caches were in use
        assert not row["differences"] and not row["crashes"] and not row["fail_without"]
    assert found["rows"][0]["passed"] >= 150


@pytest.mark.skipif(not os.environ.get("KVMM_TRANSFORMERS_SOURCE"), reason="no checkout of transformers is named")
def test_generation_tests_of_a_family(tmp_path):
    source = os.environ["KVMM_TRANSFORMERS_SOURCE"]
    found = run(tmp_path, "--source", source, "--families", "llama", "--policies", "bf16")
    assert found["totals"]["differences"] == 0 and found["rows"][0]["packed reads"] > 100
