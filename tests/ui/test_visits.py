"""Three visits of an hour each by a simulated clock: nothing is lost in between, and nothing is left afterwards."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvmm.errors import KVMMError
from kvmm.ui import Models
from kvmm.ui.session import Session, Turn
from kvmm.ui.settings import Settings
from kvmm.ui.talk import Talk
from kvmm.ui.talk_list import redraw
from kvmm.ui.uploads import PREFIX
from kvmm.ui.visitors import FILE_SECONDS, GRACE_SECONDS, Visitors

TOTAL, TAX, DATE = "What is the total?", "What is the tax?", "What is the date?"


class House:
    """The app's visitors, their clock, and the clean-up that runs every ten minutes of it."""

    def __init__(self, models: Models, folder: Path) -> None:
        self.time = os.stat(folder).st_ctime
        self.folder = folder
        self.visitors = Visitors(
            lambda desk: Session(models, desk, max_new_tokens=16, now=self.now), 1 << 40, folder, self.now
        )

    def now(self) -> float:
        return self.time

    def wait(self, minutes: float) -> None:
        while minutes > 0:
            step = min(minutes, 10)
            self.time, minutes = self.time + 60 * step, minutes - step
            self.visitors.clean_up([path for path in self.folder.rglob("*") if path.is_file()])

    def upload(self, path: Path, name: str) -> str:
        """A file as the browser sends it."""
        target = self.folder / f"{PREFIX}{name}" / path.name
        target.parent.mkdir()
        shutil.copyfile(path, target)
        return str(target)


@pytest.fixture
def house(model_and_processor, tmp_path) -> House:
    (tmp_path / "uploads").mkdir()
    return House(Models.of(*model_and_processor), tmp_path / "uploads")


def ask(house: House, session: Session, question: str, *files: str, **settings) -> str:
    house.visitors.keep_until_left(session, files)
    answer = session.begin(Turn(question, files), Settings(**{"policy": "kivi4"} | settings))
    answer.start()
    for _ in answer.watch():
        pass
    assert answer.error is None and not answer.stopped
    return answer.last["kvmm"].text


def shown(session: Session) -> str:
    return str(session.chats)


def test_three_visits_of_an_hour_lose_nothing_and_leave_nothing(house, invoice, tmp_path):
    visitors = house.visitors
    icon, unsent = house.upload(invoice, "icon"), house.upload(invoice, "unsent")
    visitors.kept = {Path(icon).resolve()}

    # the first hour: questions, a reload, another policy
    page = house.upload(invoice, "page")
    session = visitors.session("page-1", "token")
    assert ask(house, session, TOTAL, page) == "$1,274.94"
    house.wait(25)
    assert ask(house, session, TAX) == "$94.44"
    visitors.closed("page-1")
    session = visitors.returned("page-2", "token")
    assert session.talk.answered == 2 and "$94.44" in shown(session)
    assert session.desk.settings == Settings(policy="kivi4")
    house.wait(45)
    assert "2024" in ask(house, session, DATE, policy="balanced")
    assert len(session.conversation.messages) == 6 and "Earlier pages read again" in shown(session)
    assert not Path(unsent).exists() and Path(icon).exists() and Path(page).exists()
    visitors.closed("page-2")

    # the second: back in time, a long pause with the page open, a saved file, an edit
    house.wait(GRACE_SECONDS / 60 - 5)
    assert visitors.returned("stranger", "another token") is None and visitors.returned("stranger", None) is None
    session = visitors.returned("page-3", "token")
    assert session.talk.answered == 3 and Path(page).exists()
    house.wait(40)
    assert visitors.cache_nbytes() == 0 and len(session.conversation.messages) == 6
    assert ask(house, session, TAX, policy="balanced") == "$94.44" and visitors.cache_nbytes() > 0
    before = session.chats
    saved = visitors.folder(session) / "talk.kvmm"
    session.save(saved)
    session.ask_again(1, TOTAL, Settings(policy="balanced")).start()
    for _ in session.talk.answer.watch():
        pass
    assert session.talk.answered == 2 and [talk.answered for talk in session.talks] == [4, 2]
    house.wait(20)
    visitors.closed("page-3")

    # the third: the saved file is opened, one conversation gets a name, one is deleted
    house.wait(20)
    session = visitors.returned("page-4", "token")
    assert [talk.answered for talk in session.talks] == [4, 2] and session.talk is session.talks[1]
    session.open(session.talks[0].id)
    assert session.chats == before
    session.rename("March")
    session.load(saved, None)
    assert session.chats == before
    house.wait(60)
    (opened,) = session.talk.files
    assert Path(opened).read_bytes() == Path(page).read_bytes() and opened != page
    files = session.talk.files
    session.delete()
    visitors.discard(session, files)
    assert not Path(opened).exists() and Path(page).exists() and saved.exists()
    assert [talk.title for talk in session.talks] == ["March", TOTAL]
    session.open(session.talks[0].id)
    assert session.chats == before and ask(house, session, TAX, policy="balanced") == "$94.44"

    # for good
    visitors.closed("page-4")
    house.wait(GRACE_SECONDS / 60 + 10)
    assert visitors.returned("page-5", "token") is None
    assert visitors.sessions == [] and visitors.cache_nbytes() == 0
    assert [path for path in house.folder.rglob("*") if path.is_file()] == [Path(icon)]
    assert not session.talk.conversations


def test_a_question_whose_page_closes_before_its_turn_is_answered(house):
    session = house.visitors.session("page-1", "token")
    first = session.begin(Turn("Write one word."), Settings(policy="kivi4"))
    session._add(Talk(session.models, max_new_tokens=16))
    second = session.begin(Turn("Write one word."), Settings(policy="kivi4"))
    house.visitors.closed("page-1")  # with it, the events that would have started them
    until = time.monotonic() + 60
    while not (first.done and second.done) and time.monotonic() < until:
        time.sleep(0.05)
    assert [talk.answered for talk in session.talks] == [1, 1] and not any(talk.is_busy for talk in session.talks)


def test_questions_of_closed_pages_are_answered_one_at_a_time(house, monkeypatch):
    """Each holds its pages and its prompt while it answers: a thousand closed pages hold what one does."""
    guard, now, most = threading.Lock(), [], []
    go = threading.Event()
    ask_talk = Talk.ask

    def counted(self, *args, **kwargs):
        with guard:
            now.append(self)
            most.append(len(now))
        go.wait(60)
        try:
            yield from ask_talk(self, *args, **kwargs)
        finally:
            with guard:
                now.remove(self)

    monkeypatch.setattr(Talk, "ask", counted)
    settings, answers = Settings(None, "balanced", None, None), []
    for n in range(5):
        session = house.visitors.session(f"page-{n}", f"visitor-{n}")
        answers.append(session.begin(Turn(TOTAL), settings))
        house.visitors.closed(f"page-{n}")
    answers[1].cancel()  # that one waits, and so do others
    answers[2].start()  # its page is open again
    until = time.monotonic() + 30
    while not answers[1].done and time.monotonic() < until:
        time.sleep(0.02)
        go.set() if len(most) >= 3 else None
    while not all(answer.done for answer in answers) and time.monotonic() < until:
        time.sleep(0.02)
    assert all(answer.done for answer in answers) and answers[1].exchange.stopped
    assert max(most) <= 3  # one alone, the one that is stopped, the one that is watched


def test_a_page_without_a_token_is_gone_when_it_closes(house, invoice):
    page = house.upload(invoice, "page")
    session = house.visitors.session("page-1")
    ask(house, session, TOTAL, page)
    house.visitors.closed("page-1")
    assert house.visitors.sessions == [] and not Path(page).exists() and house.visitors.cache_nbytes() == 0


def test_a_page_whose_connection_ended_goes_on_where_it_was(house):
    visitors = house.visitors
    first, second = (visitors.session(key, "token") for key in ("page-1", "page-2"))
    ask(house, first, "Write one word.")
    second.reset()
    shown = first.talk
    visitors.closed("page-1")  # it sleeps, while the other has another conversation open
    assert visitors.find("page-1") is first and visitors.sessions == [second]
    waiting = first.begin(Turn("Write it again."), Settings(policy="kivi4"))
    visitors.find("page-1").stop()
    assert waiting.done and waiting.stopped
    house.wait(60)
    assert visitors.session("page-1", "token") is first and first.talk is shown and len(visitors.sessions) == 2


def test_a_page_that_was_away_for_too_long_is_told(house):
    visitors = house.visitors
    session = visitors.session("page-1", "token")
    ask(house, session, "Write one word.")
    visitors.closed("page-1")
    house.wait(GRACE_SECONDS / 60 + 10)
    assert visitors.find("page-1") is None
    before = set(house.folder.iterdir())
    with pytest.raises(KVMMError, match="forgotten"):
        visitors.folder(session)
    assert set(house.folder.iterdir()) == before
    back = visitors.session("page-1", "token")
    for action in (lambda: back.begin(Turn(TAX), Settings()), back.delete, lambda: back.rename("x")):
        with pytest.raises(KVMMError, match="forgotten"):
            action()
    assert back.is_gone and back.talk.is_empty
    redraw(back, False)
    ask(house, back, "Write one word.")
    assert back.talk.answered == 1 and visitors._forgotten == {}


def test_a_page_that_is_never_heard_of_again_is_closed(house, invoice):
    session = house.visitors.session("page-1", "token")
    ask(house, session, "Write one word.")
    house.wait(23 * 60)
    assert house.visitors.find("page-1") is session and session.talk.answered == 1
    house.wait(2 * 60)
    assert house.visitors.sessions == []


def test_equal_uploads_of_two_visitors_and_files_that_are_new_stay(house, invoice):
    page, new = house.upload(invoice, "page"), house.upload(invoice, "new")
    first, second = (house.visitors.session(key, key) for key in ("a", "b"))
    for session in (first, second):
        session.talk.begin(Turn(TOTAL, (page,)))
        house.visitors.keep_until_left(session, [page])
    house.visitors.closed("a")
    house.wait(FILE_SECONDS / 60 - 10)
    assert Path(new).exists() and house.visitors.sessions == [second] and Path(page).exists()
    house.visitors.closed("b")
    house.wait(50)
    assert not Path(new).exists() and not Path(page).exists()


def test_a_clean_up_that_fails_is_not_the_last_one(house, caplog):
    third, calls = threading.Event(), []

    def made() -> list[str]:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("the disk is full")
        if len(calls) == 3:
            third.set()
        return []

    with caplog.at_level(logging.ERROR, logger="kvmm.ui.visitors"):
        house.visitors.clean_up_regularly(made, seconds=0.01)
        assert third.wait(10), "the thread ended"
    assert "a clean-up failed" in caplog.text and "the disk is full" in caplog.text


def test_a_file_that_cannot_be_deleted_does_not_keep_the_others(house, invoice, monkeypatch):
    stuck, other = Path(house.upload(invoice, "stuck")), Path(house.upload(invoice, "other"))
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == stuck:
            raise PermissionError("read-only")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    house.time += FILE_SECONDS + 60
    house.visitors.clean_up([stuck, other])
    assert stuck.exists() and not other.exists()
    session = house.visitors.session("a")
    third = Path(house.upload(invoice, "third"))
    house.visitors.keep_until_left(session, [stuck, third])
    house.visitors.leave(session)
    assert stuck.exists() and not third.exists()


def test_nobody_waits_while_the_files_of_others_are_deleted(house, monkeypatch):
    """Large folders are deleted outside the lock and the event loop; they are gone at once all the same."""
    inside, over, deleted = threading.Event(), threading.Event(), []

    def slow(path, ignore_errors=False):
        inside.set()
        assert over.wait(20)
        deleted.append(threading.current_thread())

    monkeypatch.setattr("kvmm.ui.visitors.shutil.rmtree", slow)
    session = house.visitors.session("page", "token")
    folder = house.visitors.folder(session)
    (folder / "answers.jsonl").write_text("{}")
    house.visitors.leave(session)  # returns before anything is deleted
    assert inside.wait(20) and not folder.exists() and not deleted
    with ThreadPoolExecutor(1) as pool:  # another visitor, served by another thread
        assert pool.submit(house.visitors.session, "other", "another").result(20)
    over.set()
    house.visitors._deleting.shutdown()
    assert deleted and deleted[0] is not threading.current_thread()
