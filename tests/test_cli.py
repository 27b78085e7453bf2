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
from kvmm.cli import main
from kvmm.policy_costs import measured_on, plain_cost
from kvmm.presets import policy_groups

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvmm", *map(str, arguments)]
    env = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **environment}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture
def call(monkeypatch, capsys):
    """``main()`` in this process: like ``run``, without the seconds that a new Python needs to import torch."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["kvmm", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, exit_.value.code, out, err)

    return call


def assert_refused(result: subprocess.CompletedProcess[str], match: str) -> None:
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


def test_compare_shows_both(folder, call):
    result = call("ask", "--pdf", folder / "invoice.pdf", "--policy", "oscar2", "--compare", "What is the total?")
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


def test_overrides_reach_the_policy(folder, call):
    def image_bits(*options):
        result = call(
            "ask", "--image", folder / "invoice.png", "--policy", "kivi2", "--json", *options, "What is the total?"
        )
        return json.loads(result.stdout)["memory"]["by_modality"]["image"]["packed_bits_per_value"]

    assert image_bits("--key-bits", 4, "--value-bits", 4) == pytest.approx(image_bits() + 2, abs=0.1)


def test_policies_from_a_file(folder, call, tmp_path):
    policy = tmp_path / "mine.yaml"
    policy.write_text("base: bf16\nimage: {codec: oscar, bits: 4, group_size: 128}\nskip_layers: [0]\n")
    arguments = ("--image", folder / "invoice.png", "What is the total?")
    result = call("ask", "--policy", policy, "--json", *arguments)
    assert result.returncode == 0, result.stderr
    out = json.loads(result.stdout)
    layers = [layer["nbytes"] for layer in out["memory"]["by_layer"]]
    assert out["answer"] == "$42.50" and 2 * layers[1] < layers[0]
    policy.write_text("image: {codec: oscar, bits: 5}\n")
    assert_refused(call("ask", "--policy", policy, *arguments), "mine.yaml: image: Codec oscar stores")
    policy.write_text("skip_layers: [99]\n")
    assert_refused(call("ask", "--policy", policy, *arguments), "names layer 99")
    assert_refused(call("ask", "--policy", tmp_path / "none.yaml", *arguments), "There is no policy file")


def test_policies_are_listed_by_tier_with_their_cost(call):
    result = call("policies")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    listed = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert list(listed) == [name for group in policy_groups() for name in group.names]
    assert set(listed) == set(kvmm.policies())
    for name, line in kvmm.policies().items():
        assert listed[name].endswith(line) and plain_cost(name) in listed[name]
    tiers = [line for line in lines if line and not line.startswith(" ")][:-1]
    assert tiers == ["Recommended", "kvmm's own", "Papers' methods"]
    assert lines[-1] == measured_on()


def test_an_error_is_one_line_and_exit_code_2(folder):
    assert_refused(run("ask", "--image", folder / "missing.png", "Why?"), "There is no file")


def test_errors_of_files(folder, call):
    for option, name, match in [
        ("--image", "notes.png", "notes.png is a text file"),
        ("--image", "invoice.pdf", "is a PDF, not an image"),
        ("--pdf", "invoice.png", "is an image, not a PDF"),
        ("--audio", "silence.wav", "is silent"),
        ("--audio", "missing.wav", "There is no file"),
    ]:
        assert_refused(call("ask", option, folder / name, "Why?"), match)
    assert_refused(call("ask", "--image", folder / "invoice.png"), "no question")


def test_errors_of_models_and_policies(folder, call):
    for option, value, match in [
        ("--policy", "tiny", "tiny"),
        ("--model", folder / "nothing", "There is no model folder"),
        ("--model", folder, "config.json"),
        ("--dtype", "int8", "not a dtype"),
        ("--device", "toaster", "not a device"),
    ]:
        assert_refused(call("ask", option, value, "--image", folder / "invoice.png", "Why?"), match)


def test_an_id_of_the_hub_without_a_network(folder):
    arguments = ("ask", "--model", "owner/model", "--image", folder / "invoice.png", "Why?")
    assert_refused(run(*arguments, HF_HUB_OFFLINE="1"), "hub")


def test_usage_errors_have_the_same_exit_code(call):
    result = call("ask", "--no-such-option", "Why?")
    assert result.returncode == 2 and "Traceback" not in result.stderr and result.stdout == ""
