"""Gradio's state of every open page, bounded: what nobody needs goes, and never that of a page with a conversation.

A state is about 0.3 MB, and Gradio keeps the newest 10 000 whoever they belong to. A page without a conversation loses
nothing with its state: the next event makes another one like it. Making one takes the event loop 15 ms, in which nobody
else is served, so one client makes only so many in a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any

from gradio.state_holder import SessionState, StateHolder
from starlette.exceptions import HTTPException

from kvmm.errors import KVMMError
from kvmm.ui.clients import Rate, current_client

MAX_STATES = 1000
MAX_SPARE_STATES = 100  # of pages without a conversation
UNUSED_SECONDS = 10 * 60  # after which the state of a page without a conversation goes
NEW_PER_SECOND = 3  # states that one client makes ...
NEW_AT_ONCE = 60  # ... and after it was quiet: a class that opens the page together, behind one address


class SessionStates(StateHolder):
    """States by page.

    Args:
        needed: the pages that are open with a conversation, and those that are closed and may come back.
        now: the time in seconds since the epoch.
    """

    def __init__(self, needed: Callable[[], tuple[Collection[str], Collection[str]]], now: Callable[[], float]) -> None:
        super().__init__()
        self.needed, self.now = needed, now
        self._new = Rate(NEW_PER_SECOND, NEW_AT_ONCE, now)
        self._used: dict[str, float] = {}  # when, by page; those used longest ago first

    def __getitem__(self, session_id: str) -> SessionState:
        """The state of a page, made now if it has none.

        Raises:
            KVMMError: ``MAX_STATES`` pages are open, each with a conversation.
            HTTPException: 429, the client whose request this is opens pages too fast.
        """
        with self.lock:
            if session_id not in self.session_data:
                client = current_client()
                if client is not None and not self._new.takes(client):
                    raise HTTPException(429, "Too many pages are opened from your address: try again in a few seconds.")
                if len(self.session_data) >= MAX_SPARE_STATES:
                    self._make_room()
                self.session_data[session_id] = SessionState(self.blocks)
            self._used.pop(session_id, None)
            self._used[session_id] = self.now()
            return self.session_data[session_id]

    def update(self, session_id: str) -> None:
        """Nothing: there is always room for the page that is used now."""

    def delete_state(self, session_id: str, expired_only: bool = False) -> None:
        """Gradio's, of a page that may be freed meanwhile."""
        with contextlib.suppress(KeyError):
            super().delete_state(session_id, expired_only)

    def free_unused(self) -> int:
        """Drop the states that nobody needs any more; returns how many."""
        opened, closed = self.needed()
        with self.lock:
            until = self.now() - UNUSED_SECONDS
            gone = [key for key, when in self._used.items() if when < until and key not in opened and key not in closed]
            self._drop(gone)
        return len(gone)

    def _make_room(self) -> None:
        """Drop states used longest ago: of pages without a conversation, then of those that are closed."""
        opened, closed = self.needed()
        spare = [key for key in self._used if key not in opened and key not in closed]
        if len(spare) >= MAX_SPARE_STATES:
            self._drop(spare[: MAX_SPARE_STATES // 10])
        elif len(self.session_data) >= MAX_STATES:
            gone = [*spare, *(key for key in self._used if key in closed)][: MAX_STATES // 10]
            if not gone:
                raise KVMMError("Too many pages are open here: try again later.")
            self._drop(gone)

    def _drop(self, keys: list[str]) -> None:
        for key in keys:
            self.session_data.pop(key, None)
            self._used.pop(key, None)


def bound_states(app: Any) -> None:
    """Keep the states of an app that is being started as its ``visitors`` need them."""
    blocks = app.get_blocks()
    app.state_holder = states = SessionStates(blocks.visitors.needed, blocks.visitors.now)
    states.set_blocks(blocks)
    blocks.visitors.at_clean_up.append(states.free_unused)


__all__ = ["MAX_STATES", "SessionStates", "bound_states"]
