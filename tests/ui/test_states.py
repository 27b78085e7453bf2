"""Gradio's states of thousands of pages: bounded, and never that of a page with a conversation."""

from __future__ import annotations

import gradio as gr
import pytest

from kvmm.errors import KVMMError
from kvmm.ui import Models
from kvmm.ui.session import Session, Turn
from kvmm.ui.settings import Settings
from kvmm.ui.states import MAX_SPARE_STATES, MAX_STATES, UNUSED_SECONDS, SessionStates
from kvmm.ui.visitors import GRACE_SECONDS, IDLE_SECONDS, MAX_IDLE_VISITS, MAX_PAGES, Visitors


class House:
    """Visitors, the states of their pages, and a clock."""

    def __init__(self, models: Models, folder) -> None:
        self.time = 1e9
        self.visitors = Visitors(lambda desk: Session(models, desk), 1 << 40, folder, lambda: self.time)
        self.states = SessionStates(self.visitors.needed, lambda: self.time)
        self.visitors.at_clean_up.append(self.states.free_unused)
        with gr.Blocks() as blocks:
            self.kept = gr.State(None)
        self.states.set_blocks(blocks)

    def open(self, key: str, token: str | None = None, *, asked: bool = True) -> Session:
        """A page, with a question that fails before any model is asked."""
        session = self.visitors.session(key, token)
        self.states[key][self.kept._id] = session
        if asked:
            session.begin(Turn("x"), Settings(policy="kivi4")).cancel()
        return session


@pytest.fixture
def house(tmp_path) -> House:
    return House(Models({"none": lambda: pytest.fail("a model was loaded")}), tmp_path)


def test_thousands_of_pages_leave_those_with_a_conversation_alone(house):
    active = {f"active-{n}": house.open(f"active-{n}", f"token-{n}") for n in range(20)}
    house.states["looked"]
    for n in range(5000):
        house.time += 0.01
        house.states[f"flood-{n}"]
        if n % 3 == 0:
            house.open(f"visit-{n}", None, asked=False)
        assert len(house.states.session_data) <= MAX_SPARE_STATES + len(active)
    assert "looked" not in house.states and len(house.visitors._visits) <= MAX_IDLE_VISITS + len(active)
    for key, session in active.items():
        assert house.states[key][house.kept._id] is session is house.visitors.find(key)
        assert session.talk.exchanges
    assert set(house.states._used) == set(house.states.session_data)


def test_states_go_with_their_pages(house):
    session = house.open("page", "token")
    house.states["looked"]
    house.time += UNUSED_SECONDS + 1
    house.visitors.clean_up()
    assert "looked" not in house.states and house.states["page"][house.kept._id] is session
    house.visitors.closed("page")
    house.time += GRACE_SECONDS - 60
    house.visitors.clean_up()
    assert house.states["page"][house.kept._id] is session  # it may come back
    house.time += UNUSED_SECONDS + 1
    house.visitors.clean_up()
    assert house.visitors.find("page") is None and house.states.session_data == {}


def test_too_many_pages_with_a_conversation_are_refused_and_none_is_dropped(house, monkeypatch):
    monkeypatch.setattr("kvmm.ui.states.MAX_STATES", 120)
    sessions = {f"page-{n}": house.open(f"page-{n}", f"token-{n}") for n in range(120)}
    with pytest.raises(KVMMError, match="Too many pages"):
        house.states["one more"]
    assert all(house.states[key][house.kept._id] is session for key, session in sessions.items())
    house.visitors.closed("page-7")
    assert house.states["one more"] is house.states["one more"] and "page-7" not in house.states
    assert house.visitors.returned("page-7-again", "token-7").talk.exchanges  # the conversation is the server's
    assert MAX_STATES >= 1000


def test_visitors_who_said_nothing_are_forgotten(house):
    empty = house.open("empty", None, asked=False)
    house.open("asked", "token")
    house.time += IDLE_SECONDS + 1
    house.visitors.clean_up()
    assert house.visitors.find("empty") is None and house.visitors.find("asked") is not None
    again = house.visitors.session("empty")
    assert again is not empty and not again.is_gone  # nothing was lost, so nothing is said


def test_pages_of_one_visitor_are_bounded(house):
    first = house.open("page-0", "token")
    for n in range(1, 3 * MAX_PAGES):
        house.time += 1
        house.visitors.session(f"page-{n}", "token")
    (visit,) = house.visitors._visits
    assert len(visit.heard) == len(visit.sessions) == MAX_PAGES and first.talk in visit.desk.talks
    assert house.visitors.session("page-0", "token").is_gone  # it is told, and goes to the newest conversation
