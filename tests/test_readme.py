"""What the README promises: its commands, its Python, its tables."""

from __future__ import annotations

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
