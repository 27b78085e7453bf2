"""What the README promises: its commands, its Python, its tables."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import kvmm
from kvmm.models.families import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_python_block_runs_and_answers():
    (code,) = blocks("python")
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    answer, _, modality = result.stdout.strip().rpartition(" {")
    assert re.search(r"\d", answer), "the total of an invoice is an amount"
    assert "bits_per_value" in modality


def test_the_two_commands():
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("python3 -m venv")]
    assert commands == [
        "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt && .venv/bin/python app.py",
        "python3 -m venv .venv && .venv/bin/pip install -r requirements-dev.txt && .venv/bin/pytest",
    ]
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    pattern = re.search(r"grep -m1 '([^']*)' README.md", script.read_text())[1]
    assert [line for line in README.splitlines() if re.search(pattern, line)] == commands[1:]


def test_the_example_commands_parse():
    examples = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("python -m kvmm ask")]
    assert len(examples) >= 4
    help_text = subprocess.run(
        [sys.executable, "-m", "kvmm", "ask", "--help"],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}, timeout=120,
    ).stdout  # fmt: skip
    for option in {option for line in examples for option in re.findall(r"--[a-z-]+", line)}:
        assert option in help_text, option


def test_the_policy_table_is_the_registry():
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]*) \|$", README, re.MULTILINE)
    assert dict(rows) == kvmm.policies()


def results(name: str) -> dict[str, dict]:
    rows = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))["results"]
    return {row["name"]: row for row in rows}


def cells(start: str) -> list[str]:
    """The cells of the table row that begins with ``start``, behind it."""
    (line,) = [line for line in README.splitlines() if line.startswith(f"| {start} | ")]
    return [cell.strip() for cell in line[len(start) + 4 :].strip("| ").split("|")]


@pytest.mark.parametrize(
    ("start", "shape"),
    [
        ("1 x 131072 | 126", "1x128k"),
        ("32 x 8192", "32x8k"),
        ("64 x 4096", "64x4k"),
        ("1 x 131072, 7 query heads a KV head", "1x128k-r7"),
        ("1 x 131072, 64 channels", "1x128k-d64"),
    ],
)
def test_the_table_of_attention_is_the_results(start: str, shape: str):
    rows = [results("decode_attention")[f"{shape} {policy}"] for policy in ("rd2", "oscar2", "calibquant1-mean")]
    expected = [f"{row['us']:.0f} ({row['ratio']:.1f}x" for row in rows]
    baseline = f"{rows[0]['baseline_us']:.0f}"
    found = [*start.split(" | ")[1:], *cells(start)]
    assert found[0] == baseline
    assert [re.sub(r"( faster)?\)$", "", cell) for cell in found[1:]] == expected


@pytest.mark.parametrize(
    ("start", "shape"),
    [("1 x 131072 | 67.0", "1x128k"), ("1 x 32768 | 33.3", "1x32k"), ("32 x 4096", "32x4k")],
)
def test_the_table_of_steps_is_the_results(start: str, shape: str):
    rd2, oscar2 = (results("decode_step")[f"{shape} {policy} compile"] for policy in ("rd2", "oscar2"))
    expected = [rd2["baseline_ms"], rd2["floor_bf16_ms"], rd2["ms"], oscar2["ms"]]
    assert [*start.split(" | ")[1:], *cells(start)] == [f"{ms:.1f}" for ms in expected]


@pytest.mark.parametrize(("start", "shape"), [("1 x 4096", "1x4k"), ("1 x 32768 | 34", "1x32k")])
def test_the_table_of_generate_is_the_results(start: str, shape: str):
    policies = ("balanced", "balanced+file", "oscar2", "kivi2", "kitty")
    rows = [results("generate")[f"{shape} {policy}"] for policy in policies]
    expected = [f"{rows[0]['dynamic']['tokens_per_second']:.0f}"]
    expected += [f"{row['kvmm']['tokens_per_second']:.0f} ({row['ratio']:.1f}x)" for row in rows]
    assert [*start.split(" | ")[1:], *cells(start)] == expected


def test_what_readme_says_of_generate_is_the_results():
    rows = results("generate").values()
    assert f"at most {100 * (max(row['first_ratio'] for row in rows) - 1):.0f} % later" in README
    for name, text in (("short_ratio", "{} to {} % of its"), ("host_ratio", "{} to {} % of the host time")):
        found = [round(100 * row[name]) for row in rows]
        assert text.format(min(found), max(found)) in " ".join(README.split()), name


def test_requirements_are_exact_and_without_torchvision():
    lines = [
        line for name in ("requirements.txt", "requirements-dev.txt") for line in (ROOT / name).read_text().splitlines()
    ]
    pins = [line.partition(";")[0].strip() for line in lines if line and not line.startswith(("#", "-r"))]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+==[0-9.]+", pin) for pin in pins)
    names = {pin.partition("==")[0].lower() for pin in pins}
    assert "torchvision" not in names and {"torch", "triton", "transformers", "gradio", "plotly"} <= names


def test_versions_of_this_environment_are_in_the_supported_range():
    major, minor = map(int, version("transformers").split(".")[:2])
    assert (major, minor) >= (5, 17)


@pytest.mark.parametrize("limit", ["MAX_PDF_PAGES", "MAX_IMAGE_SIDE", "MAX_IMAGE_PIXELS", "MAX_AUDIO_SECONDS"])
def test_the_limits_are_those_of_the_code(limit: str):
    from kvmm import media

    words = {
        "MAX_PDF_PAGES": f"{media.MAX_PDF_PAGES} pages",
        "MAX_IMAGE_SIDE": f"{media.MAX_IMAGE_SIDE // 1000} 000 a side",
        "MAX_IMAGE_PIXELS": f"{media.MAX_IMAGE_PIXELS // 10**6} million pixels",
        "MAX_AUDIO_SECONDS": f"{media.MAX_AUDIO_SECONDS // 60} minutes",
    }
    assert words[limit] in README


def test_every_family_is_named():
    said = re.sub(r"[^a-z0-9]", "", README.lower())
    for name in FAMILIES:
        short = re.sub(r"(thinker|moe|[^a-z0-9])", "", name)
        assert short in said, name
