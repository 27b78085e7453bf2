"""Gradio's states of thousands of pages: bounded, and never that of a page with a conversation."""

from __future__ import annotations

import asyncio

import gradio as gr
import pytest
from starlette.exceptions import HTTPException

from kvmm.errors import KVMMError
from kvmm.ui import Models
from kvmm.ui.clients import MAX_BUCKETS, ClientAddress, Rate, address_of
from kvmm.ui.session import Session, Turn
from kvmm.ui.settings import Settings
from kvmm.ui.states import MAX_SPARE_STATES, MAX_STATES, NEW_AT_ONCE, NEW_PER_SECOND, UNUSED_SECONDS, SessionStates
from kvmm.ui.visitors import GRACE_SECONDS, IDLE_SECONDS, MAX_IDLE_VISITS, MAX_PAGES, Visitors
from tests.ui import event_loop


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


def test_one_client_opens_only_so_many_pages_in_a_second(house):
    def calls(address: str, count: int, keys: str = "page") -> list[int]:
        async def gradio(scope, receive, send):
            for n in range(count):
                try:
                    house.states[f"{keys} {address} {n}"]
                    statuses.append(200)
                except HTTPException as error:
                    assert "\n" not in error.detail and "try again" in error.detail
                    statuses.append(error.status_code)
            later.append(asyncio.create_task(worker()))

        async def worker():  # of the queue: goes on after the request that started it
            await started.wait()
            house.states[f"{keys} {address} of the queue"]

        async def request():
            nonlocal started
            started = asyncio.Event()
            await ClientAddress(gradio)({"type": "http", "client": (address, 1)}, None, None)
            started.set()
            await asyncio.gather(*later)

        statuses, later, started = [], [], None
        event_loop.run(request())
        return statuses

    found = calls("10.0.0.1", NEW_AT_ONCE + 20)
    assert found == [200] * NEW_AT_ONCE + [429] * 20
    assert calls("10.0.0.1", NEW_AT_ONCE) == [200] * NEW_AT_ONCE  # its pages are known
    assert calls("10.0.0.2", 20) == [200] * 20
    house.time += 2
    assert calls("10.0.0.1", 2 * NEW_PER_SECOND + 1, "new") == [200] * 2 * NEW_PER_SECOND + [429]
    house.time += 3600
    assert calls("10.0.0.1", NEW_AT_ONCE + 1, "later") == [200] * NEW_AT_ONCE + [429]


def test_clients_that_are_quiet_are_forgotten():
    clock = [0.0]
    rate = Rate(1.0, 2, lambda: clock[0])
    for n in range(10 * MAX_BUCKETS):
        clock[0] += 0.01
        assert rate.takes(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}")
        assert len(rate._buckets) <= MAX_BUCKETS
    assert not all(rate.takes("10.0.0.1") for _ in range(3))


def test_an_address_is_a_client():
    def of(host: str) -> str:
        return address_of({"client": (host, 5)})

    assert of("10.1.2.3") == of("::ffff:10.1.2.3") == "10.1.2.3"
    assert of("2001:db8::1") == of("2001:db8::ffff:1%eth0") != of("2001:db8:0:1::1")
    assert of("::1") == "::1" and of("testclient") == "testclient" and address_of({"client": None}) == ""
