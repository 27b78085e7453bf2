"""The command line as a user runs it: a subprocess, its streams and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image, ImageDraw, ImageFont
from reportlab.pdfgen import canvas

import kvmm

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvmm", *map(str, arguments)]
    env = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **environment}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def refused(*arguments: object, match: str, **environment: str) -> None:
    result = run(*arguments, **environment)
    assert result.returncode == 2, result.stderr
    assert result.stdout == "" and "Traceback" not in result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("kvmm: ") and match in line


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A page as an image and as a PDF, and a text file called notes.png."""
    folder = tmp_path_factory.mktemp("media")
    page = Image.new("RGB", (448, 560), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(18)
    lines = [
        "Northwind Trading",
        "Invoice No: 48213",
        "Date: 12 March 2024",
        "Paper 12.50",
        "Ink 30.00",
        "Total: $42.50",
    ]
    for row, line in enumerate(lines):
        draw.text((30, 30 + 40 * row), line, font=font, fill="black")
    page.save(folder / "invoice.png")
    document = canvas.Canvas(str(folder / "invoice.pdf"), pagesize=(448, 560))
    document.drawImage(str(folder / "invoice.png"), 0, 0)
    document.save()
    (folder / "notes.png").write_text("only text")
    soundfile.write(folder / "silence.wav", np.zeros(16_000), 16_000)
    return folder


def test_ask_streams_the_answer_then_the_memory_table(folder):
    result = run("ask", "--image", folder / "invoice.png", "What is the total?")
    assert result.returncode == 0, result.stderr
    answer, _, table = result.stdout.partition("\n")
    assert answer == "$42.50"
    for word in ("balanced", "text", "image", "total", "bits a value", "tokens/s", "first token after"):
        assert word in table


def test_compare_shows_both(folder):
    result = run("ask", "--pdf", folder / "invoice.pdf", "--policy", "oscar2", "--compare", "What is the total?")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("oscar2: ") and lines[1] == "full precision: $42.50"
    assert result.stdout.count("bits a value") == 2


def test_json_is_one_object_and_nothing_else(folder):
    result = run(
        "ask", "--image", folder / "invoice.png", "--policy", "small", "--compare", "--json", "--dtype", "bfloat16",
        "What is the total?",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    out = json.loads(line)
    assert out["policy"] == "small" and out["answer"] == "$42.50" == out["full_precision"]["answer"]
    assert out["tokens_per_second"] > 0 and out["tokens"] > 1
    small, full = out["memory"], out["full_precision"]["memory"]
    assert 0 < small["nbytes"] < full["nbytes"] and small["nbytes_dense"] == full["nbytes_dense"]
    assert small["by_modality"]["image"]["bits_per_value"] < 4
    assert sum(entry["nbytes"] for entry in small["by_modality"].values()) == pytest.approx(small["nbytes"], rel=0.01)


def test_overrides_reach_the_policy(folder):
    def image_bits(*options):
        result = run(
            "ask", "--image", folder / "invoice.png", "--policy", "kivi2", "--json", *options, "What is the total?"
        )
        return json.loads(result.stdout)["memory"]["by_modality"]["image"]["packed_bits_per_value"]

    assert image_bits("--key-bits", 4, "--value-bits", 4) == pytest.approx(image_bits() + 2, abs=0.1)


def test_policies_has_one_line_each():
    result = run("policies")
    assert result.returncode == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(kvmm.policies())
    assert all(
        line.endswith(text) for line, text in zip(result.stdout.splitlines(), kvmm.policies().values(), strict=True)
    )


def test_errors_are_one_line_and_exit_code_2(folder):
    refused("ask", "--image", folder / "missing.png", "Why?", match="There is no file")
    refused("ask", "--image", folder / "notes.png", "Why?", match="notes.png is a text file")
    refused("ask", "--image", folder / "invoice.pdf", "Why?", match="is a PDF, not an image")
    refused("ask", "--audio", folder / "silence.wav", match="is silent")
    refused("ask", "--image", folder / "invoice.png", match="no question")


def test_errors_of_models_and_policies(folder):
    page = ("--image", folder / "invoice.png", "Why?")
    refused("ask", "--policy", "tiny", *page, match="tiny")
    refused("ask", "--model", folder / "nothing", *page, match="There is no model folder")
    refused("ask", "--model", folder, *page, match="config.json")
    refused("ask", "--dtype", "int8", *page, match="not a dtype")
    refused("ask", "--model", "owner/model", *page, match="hub", HF_HUB_OFFLINE="1")


def test_usage_errors_have_the_same_exit_code():
    result = run("ask", "--no-such-option", "Why?")
    assert result.returncode == 2 and "Traceback" not in result.stderr and result.stdout == ""
