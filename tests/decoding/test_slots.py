"""Who may decode next."""

from __future__ import annotations

import threading

from kvmm import decoding
from kvmm.decoding import client
from kvmm.decoding.slots import Slots
from kvmm.ui.chat.session import Session
from kvmm.ui.chat.talk import UserMessage
from kvmm.ui.parts.previews import previews_html
from tests.decoding.processes import wait_until


class Asking:
    """A thread that wants a place."""

    def __init__(self, slots: Slots, owner: str | None, order: list[str | None]) -> None:
        def take() -> None:
            if slots.acquire(owner, self.stop):
                order.append(owner)

        before, self.stop = slots.waiting, threading.Event()
        self.thread = threading.Thread(target=take, daemon=True)
        self.thread.start()
        assert wait_until(lambda: slots.waiting == before + 1 or not self.thread.is_alive())


def test_one_visitor_takes_two_places_and_leaves_one_for_another():
    slots, order = Slots(4, per_owner=2, reserved=1), []
    asking = [Asking(slots, "a", order) for _ in range(5)]
    assert order == ["a", "a"] and slots.waiting == 3
    other = Asking(slots, "b", order)
    other.thread.join(30)
    assert order == ["a", "a", "b"]
    for one in asking:
        one.stop.set()
        one.thread.join(30)
    assert slots.waiting == 0 and order == ["a", "a", "b"]


def test_the_reserve_is_for_what_has_no_owner():
    slots, order = Slots(4, per_owner=2, reserved=1), []
    for owner in ("a", "a", "b"):
        assert slots.acquire(owner)
    late = Asking(slots, "c", order)
    assert slots.waiting == 1
    assert slots.acquire(None), "an answer whose turn has come"
    slots.release("a")
    assert slots.waiting == 1, "four are taken by three and the one without an owner"
    slots.release(None)
    late.thread.join(30)
    assert order == ["c"]


def test_a_free_place_goes_to_who_has_the_fewest():
    slots, order = Slots(4, per_owner=2, reserved=1), []
    for owner in ("a", "b", "b"):
        assert slots.acquire(owner)
    first = Asking(slots, "a", order)
    second = Asking(slots, "c", order)
    slots.release("b")
    second.thread.join(30)
    assert order == ["c"], "who came later, and has none"
    first.stop.set()
    first.thread.join(30)
    assert order == ["c"]


def test_files_are_read_as_those_of_their_visitor(tmp_path, monkeypatch):
    owners = []
    acquire = client.PARENT.slots.acquire
    monkeypatch.setattr(
        client.PARENT.slots, "acquire", lambda owner, stop: owners.append(owner) or acquire(owner, stop)
    )
    from PIL import Image

    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.png")
    sessions = [Session(None), Session(None)]
    for session in sessions:
        session.talk.load(UserMessage("?", (str(tmp_path / "a.png"),)), threading.Event())
    assert owners == [session.desk.id for session in sessions] and len(set(owners)) == 2
    previews_html([str(tmp_path / "a.png")])
    assert owners[2:] == ["kvmm.ui.parts.previews"] and decoding.owner() is None
