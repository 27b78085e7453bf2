"""The flow of a visitor's session and the start of app.py, without a browser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvmm.errors import KVMMError
from kvmm.ui.ask import escape_markdown, stats_html, verdict_html
from kvmm.ui.samples import load_samples
from kvmm.ui.session import Difference, Session, Turn, first_difference

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "full, kvmm, difference",
    [
        ("a b c", "a  b\nc", Difference(3, None)),
        ("a b c", "a x c", Difference(3, 2, "b", "x")),
        ("a b", "a b c", Difference(2, 3, "", "c")),
        ("", "", Difference(0, None)),
    ],
)
def test_first_difference(full, kvmm, difference):
    assert first_difference(full, kvmm) == difference


def test_the_verdict_shows_words_as_text():
    html = verdict_html(Difference(2, 1, "<b>", "&"))
    assert "<code>&lt;b&gt;</code>" in html and "<code>&amp;</code>" in html
    assert "Identical" in verdict_html(Difference(1, None))
    assert verdict_html(None) == "" and "measured" in stats_html(None)


def test_markdown_is_escaped():
    assert escape_markdown("[a](b) <i> *c*") == r"\[a\](b) \<i\> \*c\*"


def test_samples_with_missing_files_are_left_out(samples_folder, tmp_path):
    (sample,) = load_samples(samples_folder)
    assert sample.title == "Invoice: the total" and sample.kind == "image"
    assert load_samples(tmp_path) == []
    (tmp_path / "note.wav").touch(), (tmp_path / "page.png").touch()
    entries = [{"files": ["page.png", "note.wav"], "question": "", "title": "spoken"}]
    (tmp_path / "samples.json").write_text(json.dumps(entries))
    assert load_samples(tmp_path)[0].kind == "audio"


def run(session: Session, question: str, files=(), policy="bf16", **options):
    steps = list(session.ask(Turn(question, tuple(map(str, files))), policy, **options))
    return steps, steps[-1].progress


def test_sides_that_did_not_follow_read_the_media_again(model_and_processor, invoice):
    session = Session(*model_and_processor, max_new_tokens=32)
    steps, first = run(session, "What is the total?", [invoice])
    assert {step.side for step in steps} == {"kvmm"} and not any(step.reread for step in steps)
    assert first.text == "$1,274.94"

    steps, again = run(session, "What is the total?")
    assert not any(step.reread for step in steps) and again.text == first.text
    assert again.memory.by_modality["image"]["tokens"] == first.memory.by_modality["image"]["tokens"]

    # Comparison is switched on: only full precision has to read the page. With bf16 pages both then agree.
    steps, last = run(session, "What is the total?", compare=True)
    assert next(step.side for step in steps if step.reread) == "full"
    assert not any(step.reread for step in steps if step.side == "kvmm")
    # Another policy: kvmm reads again, full precision is in step and does not.
    steps, last = run(session, "What is the total?", policy="kivi4", compare=True)
    assert {step.side for step in steps if step.reread} == {"kvmm"}
    assert last.text == first.text and last.memory.ratio > 1.5


def test_an_error_leaves_the_session_as_it_was(model_and_processor, invoice, tmp_path):
    session = Session(*model_and_processor, max_new_tokens=32)
    bad = tmp_path / "page.png"
    bad.write_text("not a picture")
    with pytest.raises(KVMMError, match="text file"):
        run(session, "What is the total?", [bad])
    with pytest.raises(KVMMError):
        run(session, "")
    assert run(session, "What is the total?", [invoice])[1].text == "$1,274.94"
    with pytest.raises(KVMMError):
        run(session, "What is the total?", [bad])
    steps, progress = run(session, "What is the total?")
    assert progress.text == "$1,274.94" and not steps[-1].reread


def test_a_reset_forgets_and_ends_the_answer(model_and_processor, invoice):
    session = Session(*model_and_processor, max_new_tokens=32)
    with pytest.raises(KVMMError, match="ask a question"):
        session.measure_norms()
    answer = session.ask(Turn("What is the total?", (str(invoice),)), "bf16")
    next(answer)
    session.reset()
    assert list(answer)[-1].progress.done
    assert session.conversation is None and session.last is None
    _, progress = run(session, "What is the total?")
    assert "image" not in progress.memory.by_modality or not progress.memory.by_modality["image"]["tokens"]


def test_norms_of_the_last_prompt_are_kept_until_the_next_answer(model_and_processor, invoice):
    session = Session(*model_and_processor, max_new_tokens=32)
    run(session, "What is the total?", [invoice])
    report = session.measure_norms()
    assert session.measure_norms() is report
    assert report.modalities() == ["text", "image"] and len(report.tokens) == report.key.shape[2]
    run(session, "What is the tax?")
    assert session.measure_norms().key.shape[2] > report.key.shape[2]


def test_app_ends_with_one_line_and_code_2():
    command = [sys.executable, "app.py", "--model", "/no/such/folder"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "no model folder" in line


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--policy", "kivi9"], "kivi9"),
        (["--auth", "nobody"], "colon"),
        (["--max-pages", "0"], "--max-pages"),
        (["--port", "1", "--host", "203.0.113.1"], "cannot listen on 203.0.113.1:1"),
    ],
)
def test_app_names_the_argument_that_is_wrong(arguments, words, capsys, monkeypatch, model_and_processor):
    monkeypatch.syspath_prepend(ROOT)
    import app

    monkeypatch.setattr("kvmm.models.load_model", lambda *args, **kwargs: model_and_processor)
    assert app.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and words in line
