"""A full disk under ``--cache-dir`` costs no answer, and leaves nothing half written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform == "win32", reason="limits of files are POSIX's")
def test_a_full_disk_costs_no_answer(tmp_path: Path) -> None:
    """The limit holds for the server's own process alone, and so the server is one of its own."""
    command = [sys.executable, "-m", "tests.serve.full_disk", str(tmp_path / "cache")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    start, full, room = json.loads(done.stdout.splitlines()[-1])
    assert "name another folder with --cache-dir" in start["refused"] and "\n" not in start["refused"]
    assert start["files"] == [], "half a secret"
    assert full["failures"] and full["files"] == ["secret"]
    assert full["cached"][0] == 0 < full["cached"][1], "what is in memory is found all the same"
    assert "was not written" in done.stderr and "Traceback" not in done.stderr
    assert not room["failures"] and len(room["files"]) > 1 and full["texts"] == room["texts"]
    assert len(set(full["texts"])) == 1 and full["texts"][0]
