"""Conversations of the app: answers that outlive their page, tabs, edits, names and files."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvmm.cache import KVMMCache
from kvmm.errors import KVMMError
from kvmm.markdown_text import literal_markdown
from kvmm.models.generation import Reading, Worker
from kvmm.models.prompting import text_of
from kvmm.ui import Models
from kvmm.ui.chat import streaming
from kvmm.ui.chat.session import Desk, Session, UserMessage
from kvmm.ui.chat.streaming import Answer
from kvmm.ui.chat.talk import CHANGED, JOINED, LOADING, SIDES, WARMING, Talk
from kvmm.ui.parts.bubbles import user_messages
from kvmm.ui.parts.talk_list import redraw
from kvmm.ui.parts.views import frames, reading_html
from kvmm.ui.settings import Settings
from kvmm.ui.tabs.ask import edited_text, exchange_at

TOTAL, TAX = "What is the total?", "What is the tax?"
KIVI = Settings(policy="kivi4")


@pytest.fixture
def session(model_and_processor) -> Session:
    return Session(Models.of(*model_and_processor), max_new_tokens=16)


def run(session: Session, question: str, *files, **settings):
    return list(session.ask(UserMessage(question, tuple(map(str, files))), Settings(**{"policy": "kivi4"} | settings)))


def finish(answer) -> None:
    answer.start()
    for _ in answer.watch():
        pass


def test_an_answer_is_cut_and_its_tokens_are_told(session, invoice):
    """On both sides; the app's own limit stays."""
    run(session, TOTAL, invoice, compare=True, max_tokens=3, logprobs=True)
    for side in SIDES:
        last = session.talk.last[side]
        assert last.tokens == len(last.choices) == 3 and last.text == "$1,"
        assert all(len(one.top) == 3 and one.top[0] == (one.token, one.logprob) for one in last.choices)
    with pytest.raises(KVMMError, match=r"^Max. tokens must be a whole number from 1 to 16.$"):
        run(session, TAX, max_tokens=17)
    run(session, TOTAL)
    assert session.last.text == "$1,274.94" and session.last.choices == ()


def test_both_sides_know_all_that_was_said(session, invoice):
    run(session, TOTAL, invoice)
    steps = run(session, TAX, policy="bf16", compare=True)
    reasons = {step.side: step.reread for step in steps}
    assert reasons == {"full": JOINED, "kvmm": CHANGED}
    twin, own = (session.talk._conversations[side] for side in ("full", "kvmm"))
    assert len(twin.messages) == len(own.messages) == 4 and twin.messages[:3] == own.messages[:3]
    run(session, TOTAL)
    steps = run(session, TAX, compare=True)  # full precision reads the one question it was not asked
    assert not any(step.reread for step in steps) and len(twin.messages) == 8
    assert [each.answered for each in session.talk.exchanges] == [True] * 4


def questions(session: Session) -> dict[str, list[str]]:
    """What either side knows it was asked."""
    sides = session.talk._conversations.items()
    return {side: [text_of(message) for message in talk.messages[::2]] for side, talk in sides}


@pytest.mark.parametrize("end", ["stop", "error", "close"])
def test_both_sides_forget_a_question_that_one_of_them_did_not_answer(session, monkeypatch, end):
    run(session, "Write one word.", compare=True)
    answer = session.begin(UserMessage(TAX), Settings(policy="kivi4", compare=True))
    if end == "error":
        monkeypatch.setattr("kvmm.models.conversation.Worker", worker_without_memory)
    steps = answer.updates()
    with contextlib.suppress(KVMMError):
        for step in steps:
            if step.side == "kvmm" and end == "close":
                steps.close()
            elif step.side == "kvmm":
                answer.stop.set()
    assert answer.last["full"].done and not answer.exchange.answered
    assert answer.last["full"].text in str(session.chats["full"]) and "⚠️" not in str(session.chats["full"])
    assert ("no memory" in str(session.chats["kvmm"])) == (end == "error")
    assert questions(session) == {"full": ["Write one word."], "kvmm": ["Write one word."]}
    monkeypatch.undo()
    run(session, TOTAL)
    run(session, "Write it again.", compare=True)
    assert questions(session)["full"] == questions(session)["kvmm"] == ["Write one word.", TOTAL, "Write it again."]


def worker_without_memory(model, cache, *options):
    """A worker that fails on the quantised side."""
    if isinstance(cache, KVMMCache):
        raise KVMMError("There is no memory left.")
    return Worker(model, cache, *options)


def test_an_answer_needs_no_page_and_several_may_watch(session, invoice):
    other = Session(session.models, session.desk, max_new_tokens=16)
    assert other.talk is session.talk
    answer = session.begin(UserMessage(TOTAL, (str(invoice),)), KIVI)
    with pytest.raises(KVMMError, match="still being answered"):
        other.begin(UserMessage(TAX), KIVI)
    watched = frames(session)
    next(watched)
    watched.close()  # the page is gone
    *_, last = frames(other)
    assert answer.done and other.talk.last["kvmm"].text == "$1,274.94" and "$1,274.94" in str(last[1])
    other.reset()
    assert session.talk is not other.talk and session.talks is other.talks
    finish(other.begin(UserMessage("Write one word."), KIVI))
    assert session.talk.answered == other.talk.answered == 1
    other.delete()
    assert other.talk is session.talk and len(session.talks) == 1
    session.delete()
    assert session.talk.is_empty and other.is_gone
    redraw(other, False)
    assert other.talk is session.talk


def test_a_page_changes_no_other_conversation_than_the_one_it_shows(session):
    kept, shown = session.talk, Talk(session.models, max_new_tokens=16)
    kept.begin(UserMessage(TOTAL)), shown.begin(UserMessage(TAX))
    session.talks.append(shown)
    page = Session(session.models, session.desk, max_new_tokens=16)
    for each in (session, page):
        each.open(shown.id)
    session.delete()
    actions = [page.delete, page.fork, lambda: page.rename("x"), lambda: page.begin(UserMessage(TOTAL), KIVI)]
    actions += [lambda: page.ask_again(0, None, KIVI), lambda: page.open(shown.id)]
    for action in actions:
        with pytest.raises(KVMMError, match="deleted on another page"):
            action()
    assert session.talks == [kept] and kept.title == TOTAL and not kept.is_busy and page.talk is shown
    redraw(page, False)
    assert page.talk is kept
    page.reset()  # an empty conversation, which another page's new one drops from the list
    empty = page.talk
    session._add(Talk(session.models, max_new_tokens=16))
    page.begin(UserMessage(TAX), KIVI)
    assert page.talk is empty and empty in session.talks and session.talk.is_empty


def test_a_name_is_given_to_the_conversation_it_was_typed_for(session):
    """Also when it arrives after another one was opened, or its place was taken by a branch."""
    named, other = session.talk, Talk(session.models, max_new_tokens=16)
    named.begin(UserMessage(TOTAL)), other.begin(UserMessage(TAX))
    session.talks.append(other)
    session.naming = named.id
    with pytest.raises(KVMMError, match="Type a name"):
        session.give_name(" ")
    session.ask_again(0, TOTAL, KIVI)
    branch = session.talk
    assert branch is not named and session.naming == branch.id and session.talks == [branch, other]
    session.open(other.id)
    session.give_name("March")
    assert [talk.title for talk in session.talks] == ["March", TAX] and session.naming is None
    session.naming = branch.id
    session.talks.remove(branch)
    with pytest.raises(KVMMError, match="deleted on another page"):
        session.give_name("April")
    assert other.title == TAX


def at_once(count: int, do) -> list:
    """What ``do`` returned, or the error it raised, in threads that begin together."""
    barrier, results = threading.Barrier(count), []

    def run() -> None:
        barrier.wait(10)
        try:
            results.append(do())
        except KVMMError as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return results


def test_two_pages_cannot_ask_or_start_at_once(session, monkeypatch):
    def slowly(make):
        return lambda *args, **options: (time.sleep(0.2), make(*args, **options))[1]

    monkeypatch.setattr("kvmm.ui.chat.session.Answer", slowly(Answer))
    results = at_once(3, lambda: Session(session.models, session.desk).begin(UserMessage(TOTAL), KIVI))
    assert sum(isinstance(each, KVMMError) for each in results) == 2 and len(session.talk.exchanges) == 1
    made = []
    monkeypatch.setattr(streaming, "threading", SimpleNamespace(Thread=slowly(lambda **_: made.append(1) or Unstarted)))
    at_once(3, session.talk.answer.start)
    assert made == [1]


class Unstarted:
    """A thread that never runs."""

    @staticmethod
    def start() -> None:
        pass


def test_stop_while_files_are_loaded_keeps_the_question(session, invoice, monkeypatch):
    begun, wait = threading.Event(), threading.Event()
    monkeypatch.setattr("kvmm.ui.chat.talk.load_media", lambda *a, **k: (begun.set(), wait.wait(30), [])[2])
    answer = session.begin(UserMessage(TOTAL, (str(invoice),)), Settings(policy="kivi4", compare=True))
    answer.start()
    begun.wait(10)
    session.stop()
    finish(answer)
    wait.set()
    assert answer.stopped and session.talk.answered == 0 and session.talk.conversation is None
    assert "stopped" in str(session.chats["full"]) and TOTAL in str(session.chats["kvmm"])


@pytest.mark.parametrize("where", [LOADING, WARMING])
def test_stop_while_the_model_is_made_ready(model_and_processor, invoice, monkeypatch, where):
    wait = threading.Event()

    def load():
        return where == LOADING and wait.wait(30), model_and_processor

    models = Models({"slow": lambda: load()[1]})
    if where == WARMING:
        models.get()
        monkeypatch.setattr("kvmm.ui.chat.talk.is_warm", lambda *_: False)
        monkeypatch.setattr("kvmm.ui.chat.talk.warm_up", lambda *_: wait.wait(30))
    session = Session(models, max_new_tokens=16)
    answer = session.begin(UserMessage(TOTAL, (str(invoice),)), Settings(policy="kivi4", compare=True))
    answer.start()
    until = time.monotonic() + 20
    while where not in str(session.chats["full"]) or where not in str(session.chats["kvmm"]):
        assert time.monotonic() < until and not answer.done
        time.sleep(0.02)
    session.stop()
    finish(answer)
    assert not wait.is_set() and answer.stopped and session.talk.answered == 0
    assert all("stopped" in str(chat) and where not in str(chat) for chat in session.chats.values())
    wait.set()
    monkeypatch.undo()
    assert run(session, TOTAL, invoice)[-1].progress.text == "$1,274.94"


def test_stop_while_another_model_prepares_what_was_said(session, invoice, model_and_processor, monkeypatch):
    run(session, TOTAL, invoice)
    model, processor = model_and_processor
    session.models._loaders["other"] = lambda: (model, copy.copy(processor))
    begun, wait = threading.Event(), threading.Event()
    monkeypatch.setattr("kvmm.models.prompting.encode", lambda *_: (begun.set(), wait.wait(30)))
    answer = session.begin(UserMessage(TAX), Settings(model="other", policy="kivi4"))
    answer.start()
    assert begun.wait(20)
    session.stop()
    finish(answer)
    assert not wait.is_set() and answer.stopped and session.talk.answered == 1
    wait.set()
    monkeypatch.undo()
    assert run(session, TAX, model="other")[-1].progress.text == "$94.44"


def test_a_question_that_waits_for_its_turn_is_stopped_at_once(session):
    for end in (Session.stop, Session.delete):
        talk, answer = session.talk, session.begin(UserMessage(TAX), Settings(policy="kivi4", compare=True))
        end(session)
        assert answer.done and answer.stopped and answer.stop.is_set() and not session.is_busy
        assert "stopped" in str(talk.chats["kvmm"]) and "Waiting" not in str(talk.chats)
        finish(answer)  # its turn comes
        assert talk.conversation is None and not talk.last and not answer.exchange.answered
    finish(session.begin(UserMessage("Write one word."), KIVI))
    assert session.talk.answered == 1


def test_an_edit_branches_only_where_an_answer_would_be_lost(session, invoice, tmp_path):
    bad = tmp_path / "notes.png"
    bad.write_text("no picture")
    run(session, TOTAL, invoice)
    with pytest.raises(KVMMError):
        run(session, TAX, bad)
    assert [each.answered for each in session.talk.exchanges] == [True, False] and "text file" in str(session.chats)
    with pytest.raises(KVMMError, match="not there"):
        session.ask_again(2, TAX, KIVI)
    held = session.conversation.cache.get_seq_length()
    with pytest.raises(KVMMError):
        list(session.ask_again(1, "Again?", KIVI).updates())
    assert len(session.talks) == 1 and session.talk.exchanges[1].message.question == "Again?"
    finish(session.ask_again(0, "What is the invoice number?", KIVI))
    first, second = session.talks
    assert first.title == f"{TOTAL} (before the edit)" and second.title == "What is the invoice number?"
    assert first.answered == second.answered == 1 and len(first.exchanges) == 2 and session.talk is second
    assert session.last.text == "INV-40712" and session.last.memory.by_modality["image"]["tokens"] > 100
    assert second.exchanges[0].media == first.exchanges[0].media and not second.answer._reasons["kvmm"]
    assert abs(session.conversation.cache.get_seq_length() - held) < 20
    finish(session.ask_again(0, None, Settings(policy="balanced")))  # tried again
    assert len(session.talks) == 3 and session.conversation.policy.name != first.conversation.policy.name
    with pytest.raises(KVMMError, match="name"):
        session.rename("  ")


def test_full_precision_caches_are_never_copied(session, invoice, monkeypatch):
    run(session, TOTAL, invoice, compare=True)
    talk = session.talk
    held = {side: talk._conversations[side].cache for side in ("full", "kvmm")}
    monkeypatch.setattr(type(held["full"]), "__deepcopy__", lambda *_: pytest.fail("a copy"), raising=False)
    session.fork()
    fork = session.talk._conversations
    assert fork["full"].cache is None and len(fork["full"].messages) == 2 and talk._conversations["full"].cache
    assert fork["kvmm"].cache.get_seq_length() == held["kvmm"].get_seq_length()
    session.open(talk.id)
    session.ask_again(0, TAX, Settings(policy="kivi4", compare=True))
    branch = session.talk._conversations
    assert branch["full"].cache is held["full"] and branch["kvmm"].cache.get_seq_length() > 100
    assert talk._conversations["full"].cache is None and talk._conversations["kvmm"].cache is held["kvmm"]
    assert [len(side.messages) for side in talk.conversations] == [2, 2]
    finish(session.talk.answer)
    assert session.talk.last["full"].text == "$94.44" and session.talk.same_start
    session.open(talk.id)
    assert session.talk is talk
    assert run(session, TOTAL, compare=True)[-1].progress.text == "$1,274.94"


def test_stop_texts_end_both_answers_and_are_saved(session, invoice, tmp_path):
    updates = run(session, TOTAL, invoice, compare=True, stop=(",", "never said"), seed=5)
    assert {update.side: update.progress.text for update in updates} == {"full": "$1", "kvmm": "$1"}
    assert session.talk.exchanges[0].answered and not updates[-1].progress.stopped
    session.save(tmp_path / "a.kvmm")
    settings = Session(session.models, max_new_tokens=16).load(tmp_path / "a.kvmm", None)
    assert (settings.stop, settings.seed) == ((",", "never said"), 5)
    with pytest.raises(KVMMError, match=r"^stop must be up to"):
        run(session, TAX, stop=("",))


def test_every_visible_turn_is_saved_with_its_files(session, invoice, tmp_path):
    bad = tmp_path / "notes.png"
    bad.write_text("no picture")
    run(session, TOTAL, invoice, compare=True)
    with pytest.raises(KVMMError):
        run(session, TAX, bad)
    answer = session.begin(UserMessage(TAX), KIVI)
    answer.stop.set()
    finish(answer)
    run(session, TAX, policy="bf16")
    session.rename("mine")
    for dropped in (False, True):
        if dropped:
            assert session.conversation.free_cache()
        session.save(tmp_path / "a.kvmm")
        (tmp_path / f"in-{dropped}").mkdir()
        other = Session(session.models, max_new_tokens=16)
        other.folder = lambda dropped=dropped: tmp_path / f"in-{dropped}"
        assert other.load(tmp_path / "a.kvmm", None).policy == "bf16"
        talk = other.talk
        assert [each.tails for each in talk.exchanges] == [each.tails for each in session.talk.exchanges]
        assert [each.answered for each in talk.exchanges] == [True, False, False, True]
        assert [Path(path).name for path in talk.files] == ["march.png", "notes.png"] and talk.title == "mine"
        assert Path(talk.files[0]).read_bytes() == invoice.read_bytes() and talk.exchanges[1].as_links
        assert len(talk.media) == 1 and len(talk.conversation.messages) == 4
    run(other, TOTAL, policy="bf16")
    assert other.last.text == "$1,274.94"


@pytest.mark.parametrize("asked", [0, 1])
def test_a_stopped_question_is_saved_with_the_policy_that_holds_the_cache(session, tmp_path, asked):
    if asked:
        run(session, TOTAL, policy="balanced")
    answer = session.begin(UserMessage(TAX), Settings(policy="kivi2"))
    answer.stop.set()
    finish(answer)
    session.save(tmp_path / "a.kvmm")
    other = Session(session.models, max_new_tokens=16)
    assert other.load(tmp_path / "a.kvmm", None).policy == "kivi2"
    assert other.conversation.policy.name == session.conversation.policy.name == "kivi2"
    opened = other.conversation
    run(other, TAX, policy="balanced")
    assert other.conversation is not opened and other.conversation.policy.name == "balanced"


def test_errors_alone_are_saved(session, tmp_path):
    with pytest.raises(KVMMError, match="ask a question"):
        session.save(tmp_path / "none.kvmm")
    with pytest.raises(KVMMError):
        run(session, TAX, tmp_path / "gone.png")
    session.save(tmp_path / "a.kvmm")
    other = Session(session.models, max_new_tokens=16)
    other.load(tmp_path / "a.kvmm", None)
    assert other.talk.exchanges[0].message.question == TAX and "⚠️" in str(other.chats)


def test_bubbles_are_found_and_edited_texts_are_plain(session, invoice):
    talk = session.talk
    talk.begin(UserMessage("a_b", (str(invoice),))).tails["kvmm"] = [{"role": "assistant", "content": []}] * 2
    talk.begin(UserMessage("c"))
    first = len(talk.exchanges[0].messages("kvmm"))
    assert [exchange_at(talk, i) for i in (0, first - 1, first, (first + 1,))] == [0, 0, 1, None]
    for text in ("a_b *c* \\d $1", "plain", "see http://host"):
        assert edited_text([{"type": "text", "text": literal_markdown(text)}]) == text == edited_text(text)


def test_the_bubbles_of_a_question_are_made_once(session, invoice, monkeypatch):
    made = []
    monkeypatch.setattr(
        "kvmm.ui.chat.talk.user_messages",
        lambda question, files, links: made.append(links) or user_messages(question, files, links=links),
    )
    exchange = session.talk.begin(UserMessage(TOTAL, (str(invoice),)))
    first = session.chats
    assert session.chats == first and made == [False]
    exchange.as_links = True
    assert session.chats["full"] != first["full"] and session.chats["kvmm"] != first["kvmm"] and made == [False, True]


def test_the_bar_says_which_page_is_read():
    html = reading_html(Reading(2, 4, 0.3))
    assert "Reading page 2 of 4" in html and 'aria-valuenow="30"' in html and "width:30.0%" in html
    assert "Full precision reads page 1 of 4" in reading_html(Reading(1, 4, 0.0), "full")
    assert "page" not in reading_html(Reading(0, 0, 0.5)) and reading_html(None) == ""


def test_desks_are_not_shared_by_accident(model_and_processor):
    models = Models.of(*model_and_processor)
    assert Session(models).talks is not Session(models).talks and Desk().talks is not Desk().talks
