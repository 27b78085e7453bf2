"""The command line as a user runs it: a subprocess, its streams and its exit code."""

from __future__ import annotations

import json
import os
import pty
import re
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
from kvmm.media import load_image
from kvmm.models.confidence import NOT_IN_TEXT
from kvmm.policy.costs import measured_on, plain_cost
from kvmm.policy.presets import policy_groups
from kvmm.samples import SAMPLES
from tests.encoded_pages import encode_once
from tests.media.files import scan_pdf

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvmm", *map(str, arguments)]
    env = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **environment}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture
def call(monkeypatch, capsys):
    """``main()`` in this process: like ``run``, without the seconds that a new Python needs to import torch."""

    encode_once(monkeypatch)

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
    for word in ("balanced", "text", "image", "total", "tokens/s", "first token after", "s later"):
        assert word in table
    words = re.search(r"packed: (\S+) bits per value, whole cache: (\S+) bits", " ".join(table.split()))
    assert 1 < float(words[1]) < float(words[2]) < 8


def test_compare_shows_both(folder, call):
    result = call("ask", "--pdf", folder / "invoice.pdf", "--policy", "oscar2", "--compare", "What is the total?")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("oscar2: ") and lines[1] == "full precision: $42.50"
    same = lines[0] == "oscar2: $42.50"
    assert lines[2].startswith("Same answer as full precision; KV cache " if same else "Differs from full precision at")
    assert " instead of " in lines[2] and lines[2].count("iB") == 2
    assert " ".join(result.stdout.split()).count("bits per value, whole cache: ") == 2


def test_json_is_one_object_and_nothing_else(folder):
    result = run(
        "ask", "--image", folder / "invoice.png", "--policy", "small", "--compare", "--json", "--dtype", "float32",
        "What is the total?",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    out = json.loads(line)
    assert out["policy"] == "small" and out["answer"] == "$42.50" == out["full_precision"]["answer"]
    assert out["tokens_per_second"] > 0 and out["tokens"] > 1 and out["first_step_seconds"] > 0
    assert out["identical"] is True and out["first_difference"] is None and result.stderr == ""
    small, full = out["memory"], out["full_precision"]["memory"]
    assert 0 < small["nbytes"] < full["nbytes"] and small["nbytes_dense"] == full["nbytes_dense"]
    assert small["by_modality"]["image"]["bits_per_value"] < 4
    assert sum(entry["nbytes"] for entry in small["by_modality"].values()) == small["held_nbytes"] < small["nbytes"]


def test_a_value_that_the_text_of_a_pdf_does_not_have_is_marked(folder, call, tmp_path):
    for layer, marked in (("Total: $42.50", False), ("Total: $47.50", True)):
        path = tmp_path / f"{marked}.pdf"
        path.write_bytes(scan_pdf(Image.open(folder / "invoice.png"), layer))
        out = call("ask", "--pdf", path, "What is the total?").stdout
        assert "$42.50" in out and (f"Unsure ({NOT_IN_TEXT}): check it" in out) is marked
        out = json.loads(call("ask", "--pdf", path, "--json", "What is the total?").stdout)["confidence"]
        assert out["supported"] is not marked and out["unsure"] is marked and ("advice" in out) is marked


def test_sampling_options_reach_the_answer(folder, call):
    asked = ("ask", "--image", folder / "invoice.png", "--dtype", "float32", "What is the total?")
    out = json.loads(call(*asked, "--json", "--logprobs", "2").stdout)
    assert out["answer"] == "$42.50" == "".join(one["token"] for one in out["logprobs"][:-1])
    assert all(len(one["top"]) == 2 and one["top"][0]["token"] == one["token"] for one in out["logprobs"])
    options = ("--temperature", "0.5", "--top-p", "0.001", "--seed", "3", "--stop", "2.5")
    assert call(*asked, *options).stdout.splitlines()[0] == "$4"
    assert_refused(call(*asked, "--logprobs", "2"), "--json")
    assert_refused(call(*asked, "--stop", ""), "stop must be")
    assert call(*asked, "--temperature", "3").returncode == 2


def test_an_answer_that_differs_says_where(folder, call, monkeypatch):
    """Of two answers to one question, one ends early: the verdict names the word and ``--json`` both texts."""
    from kvmm.models import generation

    run_generation = generation.Worker._generate

    def cut(worker):
        if worker.cache.policy.name == "oscar2":
            worker.max_new_tokens = 2
        run_generation(worker)

    monkeypatch.setattr(generation.Worker, "_generate", cut)
    options = ("ask", "--image", folder / "invoice.png", "--policy", "oscar2", "--compare", "What is the total?")
    result = call(*options)
    assert result.returncode == 0, result.stderr
    assert "\nDiffers from full precision at word 1; KV cache " in result.stdout
    out = json.loads(call(*options, "--json").stdout)
    assert out["identical"] is False and out["answer"] != out["full_precision"]["answer"] == "$42.50"
    assert out["first_difference"]["word"] == 1 and out["first_difference"]["token"] == 3


def test_the_text_layer_is_shown_on_request(folder, call):
    pages = ("--pdf", ROOT / "assets" / "samples" / "report.pdf")
    question = ("ask", *pages, "--max-new-tokens", 4, "Who is the author?")
    result = call(*question, "--show-text")
    assert result.returncode == 0 and "Author Daniel Foster" in result.stdout
    assert [f"Text layer of report.pdf, page {page}:" in result.stdout for page in (1, 2, 3, 4, 5)] == [True] * 4 + [
        False
    ]
    plain = call(*question).stdout.partition("\n")[2]
    assert "Text layer" not in plain and "Author Daniel" not in plain
    found = json.loads(call(*question, "--show-text", "--json").stdout)["pages"]
    assert [one["page"] for one in found] == [1, 2, 3, 4] and "Author Daniel Foster" in found[0]["text"]
    scan = call("ask", "--pdf", folder / "invoice.pdf", "--show-text", "What is the total?")
    assert scan.returncode == 0 and "Text layer" not in scan.stdout
    assert scan.stderr == "There is no text layer: the files are pictures.\n"


def test_the_nearest_passage_of_the_text_layer_is_told(call, tmp_path):
    path = tmp_path / "scan.pdf"
    for text, nearest in (("TOTAL $864.08", "$864.08"), ("TOTAL $364.08", None), ("TOTAL $12.50", None)):
        path.write_bytes(scan_pdf(load_image(SAMPLES / "invoice.png"), text))
        question = ("ask", "--pdf", path, "What is the total?")
        lines = call(*question).stdout.splitlines()
        assert lines[0] == "$364.08"
        assert [line for line in lines if "text has" in line] == ([f"The PDF's text has: {nearest}"] if nearest else [])
        told = json.loads(call(*question, "--json").stdout)
        assert told["answer"] == "$364.08" and told.get("nearest_text") == nearest


def on_terminal(*arguments: object) -> tuple[str, str, int]:
    """stdout through a pipe, and what a terminal gets on stderr."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "kvmm", *map(str, arguments)]
    env = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=follower, text=True)
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 4096):
            shown += chunk
    except OSError:  # nobody writes to it any more
        pass
    os.close(leader)
    out, _ = process.communicate(timeout=60)
    return out, shown.decode(), process.returncode


def test_ask_says_on_stderr_what_it_does(folder):
    out, shown, code = on_terminal("ask", "--image", folder / "invoice.png", "What is the total?")
    assert code == 0 and out.startswith("$42.50\n")
    places = [shown.find(step) for step in ("Reading the files", "Loading the default model", "Reading 1 page")]
    assert -1 < places[0] < places[1] < places[2]
    assert "$42.50" not in shown and "Reading" not in out and "\x1b" not in out


def test_ask_counts_the_pages_it_reads(folder):
    pages = ("--pdf", folder / "invoice.pdf", "--image", folder / "invoice.png", "--image", folder / "invoice.png")
    out, shown, code = on_terminal("ask", *pages, "What is the total?")
    assert code == 0 and "$42.50" in out.partition("\n")[0]
    # what is read at once may hold several small pages
    assert -1 < shown.find("Reading page 1 of 3") < shown.find("Reading page 3 of 3")


def test_long_commands_say_how_far_they_are(tmp_path):
    memo = ROOT / "assets" / "samples" / "memo.wav"
    options = ("--policy", "kivi4", "--audio", memo, "--seeds", 0, "--max-new-tokens", 3)
    out, shown, code = on_terminal("drift", *options)
    assert code == 0 and "Logit drift" in out and "Measuring" not in out
    assert -1 < shown.find("Loading the default model") < shown.find("Measuring kivi4") < shown.find("1 of 2")
    out, shown, code = on_terminal(
        "eval", "docvqa", "--data", "mini", "--policies", "bf16", "--limit", 1, "--out", tmp_path
    )
    assert code == 0 and "docvqa, tiny-omni" in out and "Loading" not in out
    assert -1 < shown.find("Loading the default model") < shown.find("docvqa: 1 question") < shown.rfind("docvqa")
    out, shown, code = on_terminal("report", tmp_path)
    assert code == 0 and "report.html" in out and "Reading the results" in shown


def test_quiet_says_nothing(folder):
    out, shown, code = on_terminal("ask", "--quiet", "--image", folder / "invoice.png", "What is the total?")
    assert (code, shown) == (0, "") and out.startswith("$42.50\n")


@pytest.mark.parametrize(
    "command", ["ask", "drift", "calibrate", "analyze norms", "analyze errors", "analyze drift", "analyze cost", ""]
)
def test_without_arguments_there_is_help_and_no_work(command, call):
    result = call(*command.split())
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert f"Usage: {' '.join(['kvmm', *command.split()])}" in result.stdout + result.stderr


@pytest.mark.parametrize("command", ["eval", "report", "plan"])
def test_what_is_missing_is_named(command, call):
    result = call(command)
    assert result.returncode == 2 and result.stdout == "" and "Missing" in result.stderr


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


def test_drafts_leave_the_answer_as_it_is_and_are_counted(folder, call):
    asked = ("ask", "--image", folder / "invoice.png", "--json", "What does it say?")
    plain, drafted = (json.loads(call(*asked, *more).stdout) for more in ((), ("--speculative", "lookup")))
    assert drafted["answer"] == plain["answer"] and "speculation" not in plain
    found = drafted["speculation"]
    assert found["calls"] + found["accepted"] + 1 >= drafted["tokens"] and 0 <= found["acceptance"] <= 1
    for more in (("--temperature", "1"), ("--logprobs", "2")):
        result = call(*asked, "--speculative", "lookup", *more)
        assert result.returncode == 2 and "--speculative is for the most likely tokens" in result.stderr
