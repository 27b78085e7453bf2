"""The flow of a visitor's session and the start of app.py, without a browser."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvmm.errors import KVMMError
from kvmm.models.difference import Difference
from kvmm.samples import load_samples
from kvmm.ui import Models
from kvmm.ui.chat.session import Session, UserMessage
from kvmm.ui.parts.answers import stats_html, verdict_html
from kvmm.ui.parts.compare import mark_words
from kvmm.ui.parts.views import view
from kvmm.ui.settings import Settings
from kvmm.ui.tabs.common import LongWork

ROOT = Path(__file__).resolve().parents[3]


def test_words_that_differ_are_marked_in_both_answers():
    def m(word):
        return f'<mark class="differs">{word}</mark>'

    assert mark_words("the total is 12 euro", "the  total was 12") == (
        f"the total {m('is')} 12 {m('euro')}",
        f"the  total {m('was')} 12",
    )
    assert mark_words("- a\n- b", "a\nb")[0] == "- a\n- b"  # the bullets stay bullets
    assert mark_words("```x```", "y") == ("```x```", "y")


def test_the_verdict_shows_words_as_text():
    html = verdict_html(Difference(2, 1, "<b>", "&"))
    assert "<code>&lt;b&gt;</code>" in html and "<code>&amp;</code>" in html
    assert "Identical" in verdict_html(Difference(1, None))
    assert verdict_html(None) == "" and "measured" in stats_html(None)


def test_samples_with_missing_files_are_left_out(samples_folder, tmp_path):
    (sample,) = load_samples(samples_folder)
    assert sample.title == "Invoice: the total" and sample.kind == "image"
    assert load_samples(tmp_path) == []
    (tmp_path / "note.wav").touch(), (tmp_path / "page.png").touch()
    entries = [{"files": ["page.png", "note.wav"], "question": "", "title": "spoken"}]
    (tmp_path / "samples.json").write_text(json.dumps(entries))
    assert load_samples(tmp_path)[0].kind == "audio"


@pytest.fixture
def session(model_and_processor) -> Session:
    return Session(Models.of(*model_and_processor), max_new_tokens=32)


def run(session: Session, question: str, files=(), **settings):
    settings = Settings(**{"policy": "bf16"} | settings)
    steps = list(session.ask(UserMessage(question, tuple(map(str, files))), settings))
    return steps, steps[-1].progress


def test_sides_that_did_not_follow_read_the_media_again(session, invoice):
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


def test_an_error_leaves_the_session_as_it_was(session, invoice, tmp_path):
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


@pytest.mark.parametrize("end", ["stop", "error"])
def test_tokens_stay_those_of_the_model_that_said_them(session, invoice, model_and_processor, monkeypatch, end):
    """The next question goes to a model with another vocabulary, which does not answer it."""

    def fail(*_):
        raise KVMMError("There is no memory left.")

    def tokens() -> str:
        return view(session.talk, compare=False)[4].value

    model, processor = model_and_processor
    other = copy.copy(processor)
    other.tokenizer = copy.copy(processor.tokenizer)
    other.tokenizer.decode = lambda ids, **_: "another vocabulary"
    session.models._loaders["other"] = lambda: (model, other)
    first = Settings(policy="bf16", max_tokens=3, logprobs=True)
    list(session.ask(UserMessage("What is the total?", (str(invoice),)), first))
    shown = tokens()
    assert "<code>1</code>" in shown and "another" not in shown
    if end == "error":
        monkeypatch.setattr("kvmm.models.conversation.Worker", fail)
    answer = session.begin(UserMessage("What is the tax?"), Settings(model="other", policy="bf16", logprobs=True))
    try:
        for step in answer.updates():
            if not step.waits_for:
                answer.stop.set()
    except KVMMError:
        assert end == "error"
    assert session.conversation.processor is other and session.talk.answered == 1
    assert tokens() == shown


def test_a_reset_forgets_and_ends_the_answer(session, invoice):
    with pytest.raises(KVMMError, match="ask a question"):
        session.measure_norms()
    answer = session.ask(UserMessage("What is the total?", (str(invoice),)), Settings(policy="bf16"))
    next(answer)
    session.reset()
    assert list(answer)[-1].progress.done
    assert session.conversation is None and session.last is None
    _, progress = run(session, "What is the total?")
    assert "image" not in progress.memory.by_modality or not progress.memory.by_modality["image"]["tokens"]


def test_norms_of_the_last_prompt_are_kept_until_the_next_answer(session, invoice):
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
    assert line.startswith("kvmm: ") and "no model folder" in line


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--policy", "kivi9"], "kivi9"),
        (["--auth", "nobody"], "colon"),
        (["--cache-budget", "much"], "--cache-budget"),
        (["--port", "1", "--host", "203.0.113.1"], "cannot listen on 203.0.113.1:1"),
    ],
)
def test_app_names_the_argument_that_is_wrong(arguments, words, capsys, monkeypatch, model_and_processor):
    monkeypatch.syspath_prepend(ROOT)
    import app

    monkeypatch.setattr("kvmm.models.load_model", lambda *args, **kwargs: model_and_processor)
    assert app.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvmm: ") and words in line


@pytest.mark.parametrize("option", ["--max-pages", "--max-upload", "--max-new-tokens", "--port"])
def test_app_says_what_numbers_it_takes(option, capsys, monkeypatch):
    import app

    monkeypatch.setenv("COLUMNS", "120")
    assert app.main([option, "0"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    assert "Usage: app.py" in err and f"Invalid value for '{option}'" in err and "1" in err.partition(option)[2]


def test_long_work_is_stopped_while_it_waits_and_while_it_runs(model_and_processor):
    work, session = LongWork(), Session(Models.of(*model_and_processor))
    assert work.begin(session) is None  # nobody asked
    assert work.wait(session) and not work.wait(session) and session in work
    assert work.stop(session) and session not in work
    assert work.begin(session) is None  # its place in the queue comes up later
    assert work.wait(session)
    event = work.begin(session)
    assert not work.wait(session) and work.begin(session) is None  # a second click
    assert not work.stop(session) and event.is_set()
    work.end(session)
    assert work.wait(session) and not work.begin(session).is_set()


def test_long_work_is_one_for_all_pages_of_a_visitor(model_and_processor):
    work, session = LongWork(), Session(Models.of(*model_and_processor))
    page, stranger = Session(session.models, session.desk), Session(session.models)
    assert work.wait(session) and not work.wait(page) and page in work
    event = work.begin(session)
    assert not work.wait(page) and work.begin(page) is None and stranger not in work and work.wait(stranger)
    assert not work.stop(page) and event.is_set()
    work.end(session)
    assert page not in work
