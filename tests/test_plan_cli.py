"""``kvmm plan`` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvmm.cli import main
from kvmm.commands.plan import parse_budget
from kvmm.errors import KVMMError

ROOT = Path(__file__).resolve().parents[1]
EMBEDDED = ROOT / "assets" / "tiny-omni"
MODEL = ("--model", "Qwen2.5-VL-3B")


@pytest.fixture
def call(monkeypatch, capsys):
    """``kvmm plan`` in this process."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setattr(sys, "argv", ["kvmm", "plan", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, exit_.value.code or 0, out, err)

    return call


def test_the_table(call):
    result = call(*MODEL, "--context", 16384, "--images", 4, "--batch", 2, "--budget", "1GiB", "--cache-only", "--policy", "bf16", "--policy", "balanced")  # fmt: skip  # noqa: E501
    assert result.returncode == 0, result.stderr
    head, shape, columns, *rows = result.stdout.splitlines()
    assert "Qwen2.5-VL-3B-Instruct: 36 layers, 2 KV heads of 128" in head
    assert "12,288 text, 4,096 image tokens, batch 2" in shape
    assert columns.split() == "policy GiB packed bits whole-cache bits smaller by longest context".split()
    (full, packed), notes = (row.split() for row in rows[:2]), " ".join(rows[2:])
    assert full[:5] == ["bf16", "1.125", "16.00", "16.00", "1.0×"]
    assert packed[0] == "balanced*" and "* Needs calibration for this model" in notes
    assert int(packed[-1].replace(",", "")) > 3 * int(full[-1].replace(",", ""))
    assert "1 GiB are for the cache alone" in notes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("24", 24 << 30), ("24GiB", 24 << 30), (" 512 mib ", 512 << 20), ("80gb", 80 * 10**9), ("1.5TiB", 3 << 39)],
)
def test_a_budget_has_a_unit_in_any_case_or_is_in_gib(text, nbytes):
    assert parse_budget(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "24 parsecs", "1.2.3", "1e9", "-5GiB", "24GiB\n24"])
def test_what_is_no_budget(text):
    with pytest.raises(KVMMError, match="is no amount of memory"):
        parse_budget(text)


def test_weights_come_out_of_the_budget(call):
    result = call(*MODEL, "--budget", "24GiB", "--policy", "bf16")
    assert "Of 24 GiB, the weights take 6.994 GiB (3.75 billion parameters in 16 bits)" in " ".join(
        result.stdout.split()
    )


def test_json_of_a_folder_with_a_calibration(call):
    result = call("--model", EMBEDDED, "--policy", "balanced", "--context", 2000, "--audio-tokens", 300, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["model"]["name"] == "tiny-omni" and found["tokens"]["audio"] == 300
    (one,) = found["policies"]
    assert one["stored_as"] == "balanced" and "longest_context" not in one
    assert one["nbytes"] == sum(one["by_component"].values())
    assert set(one["pack_operations"]) == {"text", "audio"} and one["decode_operations"]["total"] > 0


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--model", "nothing-7b"), "No folder and no built-in model 'nothing-7b'"),
        ((*MODEL, "--policy", "none"), "Unknown policy 'none'"),
        ((*MODEL, "--budget", "much"), "--budget 'much' is no amount of memory"),
        ((*MODEL, "--budget", "0"), "--budget '0' is no amount of memory"),
        ((*MODEL, "--context", "100", "--images", "1"), "The media have 1024 tokens and the context 100"),
        ((*MODEL, "--context", str(2**40)), "more than"),
        (("--model", str(ROOT / "tests")), "has no configuration"),
    ],
)
def test_mistakes_are_one_line(call, arguments, match):
    result = call(*arguments)
    assert result.returncode == 2 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("kvmm: ") and match in line
