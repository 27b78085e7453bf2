"""Wrong input to every command: one line that says what to do, or the usage, and exit code 2; never a traceback."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from kvmm.cli import run

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "assets" / "samples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "notes.png").write_text("words")
    (folder / "damaged.pdf").write_text("%PDF-1.7 and then nothing")
    (folder / "cut.pdf").write_bytes((SAMPLES / "report.pdf").read_bytes()[:900])
    (folder / "empty.wav").touch()
    (folder / "bad.yaml").write_text("image: [")
    (folder / "bad.jsonl").write_text('{"question": ')
    return folder


ONE_LINE = [
    ("ask --policy nothing Why?", "Unknown policy 'nothing'"),
    ("ask --image {}/gone.png Why?", "There is no file"),
    ("ask --image {}/notes.png Why?", "is a text file, not an image"),
    ("ask --image {} Why?", "is a folder: give a file"),
    ("ask --pdf {}/damaged.pdf Why?", "is damaged"),
    ("ask --pdf {}/cut.pdf Why?", "is damaged"),
    ("ask --audio {}/empty.wav Why?", "is an empty file"),
    ("ask --video {}/notes.png Why?", "is a text file"),
    ("ask --key-bits -1 Why?", "not -1"),
    ("ask --policy kivi2 --group-size -4 Why?", "-4"),
    ("ask --residual-length -1 Why?", "0 or more, not -1"),
    ("ask --num-sink-tokens -1 Why?", "0 or more, not -1"),
    ("ask --policy {}/bad.yaml Why?", "cannot be read as YAML"),
    ("ask --image {}/notes.png", "There is no question"),
    ("ask nowhere.pdf", "nowhere.pdf stands where the question does: give the file with --pdf"),
    ("ask {}/notes.png", "notes.png stands where the question does: give the file with --image"),
    ("ask --quiet {}/cut.pdf Why?", "give the file with --pdf"),
    ("ask Why? {}/empty.wav", "give the file with --audio"),
    ("app --cache-budget -3", "--cache-budget"),
    ("app --data {}/gone", "is no folder"),
    ("app --auth nobody", "with a colon"),
    ("app --auth '' --host 256.0.0.1", "with a colon"),  # such as an unset variable; the host keeps it from serving
    ("calibrate --out {}/gone/x.safetensors", "does not exist"),
    ("calibrate --out {}/x.bin", "end in .safetensors"),
    ("calibrate --out {0}/x.safetensors --data {0}/gone", "no such file"),
    ("calibrate --out {0}/x.safetensors --data {0}/bad.jsonl", "Line 1 of"),
    ("drift --policy nothing", "Unknown policy"),
    ("drift --image {}/notes.png", "is a text file"),
    ("drift --pdf {}/damaged.pdf", "is damaged"),
    ("drift --policy kivi2 --out {}", "cannot be written: name another file with --out"),
    ("drift --policy kivi2 --out {}/notes.png/report.json", "cannot be written: name another file with --out"),
    ("eval nothing", "There is no task nothing"),
    ("eval docvqa --data {}/gone", "does not exist"),
    ("eval docvqa --data {}/notes.png", "is not JSON"),
    ("eval docvqa --data mini --engine nothing", "There is no engine"),
    ("eval docvqa --data mini --policies nothing", "Unknown policy"),
    ("report {}", "There are no results"),
    ("report {}/gone", "does not exist"),
    ("plan --model nothing", "No folder and no built-in model"),
    ("plan --model Qwen3-8B --policy nothing", "Unknown policy"),
    ("plan --model Qwen3-8B --budget -5GiB", "is no amount of memory"),
    ("analyze norms --image {}/notes.png", "is a text file"),
    ("analyze norms --question Why? --out {}/notes.png", "cannot be written: name another folder with --out"),
    ("analyze errors --policy nothing", "Unknown policy"),
    ("analyze drift --policy kivi2 --out {}/notes.png/report", "cannot be written: name another folder with --out"),
    ("analyze cost --budget much", "is no amount of memory"),
]

USAGE = [
    ("--nothing", "No such option: --nothing"),
    ("nothing", "No such command 'nothing'"),
    ("polices", "Did you mean 'policies'"),
    ("ask --max-new-tokens -3 Why?", "Invalid value for '--max-new-tokens'"),
    ("ask --key-bits many Why?", "Invalid value for '--key-bits'"),
    ("ask Why? When?", "unexpected extra argument"),
    ("app --port 99999999", "Invalid value for '--port'"),
    ("app --max-pages 0", "Invalid value for '--max-pages'"),
    ("calibrate --model {}", "Missing option '--out'"),
    ("calibrate --out x.safetensors --limit 0", "Invalid value for '--limit'"),
    ("drift --seeds -1", "Invalid value for '--seeds'"),
    ("eval docvqa --limit -1", "Invalid value for '--limit'"),
    ("report {} --failures -1", "Invalid value for '--failures'"),
    ("plan --model Qwen3-8B --context -1", "Invalid value for '--context'"),
    ("policies nothing", "unexpected extra argument"),
    ("analyze nothing", "No such command 'nothing'"),
    ("analyze norms --scale 99", "Invalid value for '--scale'"),
    *((f"{name} --nothing", "No such option: --nothing") for name in ("ask", "app", "drift", "eval", "plan", "report")),
]


@pytest.mark.parametrize("command, match", ONE_LINE, ids=[command for command, _ in ONE_LINE])
def test_a_mistake_is_one_line(command, match, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    code = run(shlex.split(command.format(folder)))
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    (line,) = err.splitlines()
    assert line.startswith("kvmm: ") and match in line
    assert sorted(folder.iterdir()) == before  # and nothing was written


@pytest.mark.parametrize("command, match", USAGE, ids=[command for command, _ in USAGE])
def test_a_wrong_call_shows_the_usage(command, match, folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code = run(shlex.split(command.format(folder)))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.lstrip().startswith("Usage: kvmm") and match in err and "Traceback" not in err
