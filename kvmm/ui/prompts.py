"""What the tabs that look at a prompt share: a sample that is one click away, and errors as one line."""

from __future__ import annotations

import html
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvmm.ui.ask import begin
from kvmm.ui.cookie import session_of
from kvmm.ui.samples import Sample
from kvmm.ui.session import Session
from kvmm.ui.sidebar import Sidebar, settings_of
from kvmm.ui.views import frames
from kvmm.ui.visitors import Visitors

PRIVATE: dict[str, Any] = {"api_visibility": "private"}
AT_ONCE: dict[str, Any] = {**PRIVATE, "queue": False, "show_progress": "hidden"}
ON_MODEL: dict[str, Any] = {**PRIVATE, "concurrency_id": "model", "concurrency_limit": 1}
# Long work takes the model's lock a step at a time, so that other visitors' questions are answered in between.
LONG: dict[str, Any] = {**PRIVATE, "concurrency_id": "long", "concurrency_limit": 2, "show_progress": "hidden"}
WAITING = "Waiting for other visitors' work to end …"
STOPPED = "Stopped before it began."
STALE = "The open conversation was asked something else since."


class LongWork:
    """Long work of one kind, one at a time for each visitor; it can be stopped while it waits and while it runs."""

    def __init__(self) -> None:
        self._waiting: weakref.WeakSet[Session] = weakref.WeakSet()
        self._running: weakref.WeakKeyDictionary[Session, threading.Event] = weakref.WeakKeyDictionary()

    def __contains__(self, session: Session | None) -> bool:
        return session is not None and (session in self._waiting or session in self._running)

    def wait(self, session: Session) -> bool:
        """The visitor has asked for it; False if theirs waits or runs already."""
        if session in self:
            return False
        self._waiting.add(session)
        return True

    def begin(self, session: Session | None) -> threading.Event | None:
        """Their turn has come: the event that stops it, or None if it was stopped while it waited."""
        if session is None or session not in self._waiting or session in self._running:
            return None
        self._waiting.discard(session)
        event = self._running[session] = threading.Event()
        return event

    def end(self, session: Session) -> None:
        """It is over."""
        self._running.pop(session).set()

    def stop(self, session: Session | None) -> bool:
        """Stop it; True if it had not begun and so is over already."""
        if session is None:
            return False
        if (event := self._running.get(session)) is not None:
            event.set()
        waited = session in self._waiting
        self._waiting.discard(session)
        return waited


def hint(text: str, name: str = "") -> str:
    """A line of plain text; ``text`` is escaped."""
    return f'<div class="hint"{f" id={name!r}" if name else ""}>{html.escape(text)}</div>'


def problem(error: Exception) -> str:
    """An error that the visitor can put right, as one line."""
    return f'<div class="hint problem">⚠️ {html.escape(" ".join(str(error).split()))}</div>'


def table_html(columns: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
    """A table of HTML cells; it scrolls sideways by itself where the page is narrow."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="table-scroll" tabindex="0"><table class="outliers" id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def has_prompt(session: Session | None) -> bool:
    """Whether the open conversation has been answered once."""
    return session is not None and session.last is not None and session.conversation is not None


@dataclass(frozen=True)
class Page:
    """The parts of the page that tabs need.

    Attributes:
        visitors: all sessions.
        session: the state that holds the visitor's.
        sidebar: whose values are the settings.
        sample: what "use the sample" asks; None without samples.
        chat: the components of the Ask tab, which follow an answer.
    """

    visitors: Visitors
    session: gr.State
    sidebar: Sidebar
    sample: Sample | None
    chat: Sequence[Any]


@dataclass(frozen=True)
class Head:
    """The top of a tab: a line of text, and the button that asks the sample's question; empty until it is opened."""

    message: gr.HTML
    button: gr.Button
    text: str
    has_sample: bool

    def empty(self) -> tuple[Any, Any]:
        """Values of ``outputs`` before there is a prompt."""
        return hint(self.text), gr.Button(visible=self.has_sample)

    def say(self, line: str) -> tuple[Any, Any]:
        """Values of ``outputs`` with a prompt; ``line`` is HTML."""
        return line, gr.Button(visible=False)

    @property
    def outputs(self) -> list[Any]:
        """The components whose values ``empty`` and ``say`` return."""
        return [self.message, self.button]


def build_head(page: Page, name: str, text: str) -> Head:
    """Lay out the top of a tab; ``text`` says what to do before there is a prompt."""
    message = gr.HTML(padding=False, elem_id=f"{name}-summary")
    title = page.sample.title if page.sample else ""
    button = gr.Button(
        f"Use the sample: {title}",
        variant="primary",
        size="sm",
        elem_id=f"{name}-sample",
        elem_classes="use-sample",
        visible=False,
    )
    return Head(message, button, text, page.sample is not None)


def connect(
    page: Page,
    tab: gr.Tab,
    head: Head,
    refresh: Callable[..., tuple[Any, ...]],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    is_ready: Callable[..., bool] = lambda *_: True,
    triggers: Sequence[Any] = (),
) -> None:
    """Run ``refresh(session, *inputs)`` when the tab is opened, and after its sample was asked.

    Args:
        outputs: those of ``head`` first.
        is_ready: with the arguments of ``refresh``, whether it returns at once; else the page says that it measures.
        triggers: other events that run it.
    """

    def run(state: Session | None, *values: Any) -> Iterator[tuple[Any, ...]]:
        if has_prompt(state) and not is_ready(state, *values):
            count = state.last.memory.tokens if state.last.memory else 0
            line = hint(f"Measuring {count:,} tokens …" if count else "Measuring …")
            yield *head.say(line), *(gr.skip(),) * (len(outputs) - 2)
        yield refresh(state, *values)

    def ask_sample(request: gr.Request, state: Session | None, *values: Any) -> Iterator[tuple[Any, ...]]:
        state = session_of(page.visitors, request)
        message = {"text": page.sample.question, "files": [str(path) for path in page.sample.files]}
        if not begin(message, state, settings_of(*values)):
            yield state, *(gr.skip(),) * len(page.chat)
            return
        try:
            for frame in frames(state):
                yield state, *frame
        finally:
            page.visitors.keep_budget()

    arguments = (run, [page.session, *inputs], outputs)
    for trigger in (tab.select, *triggers):
        trigger(*arguments, show_progress="minimal", **ON_MODEL)
    head.button.click(
        ask_sample, [page.session, *page.sidebar.inputs], [page.session, *page.chat], show_progress="hidden", **ON_MODEL
    ).success(*arguments, show_progress="minimal", **ON_MODEL)


__all__ = [
    "AT_ONCE",
    "LONG",
    "ON_MODEL",
    "PRIVATE",
    "STALE",
    "STOPPED",
    "WAITING",
    "Head",
    "LongWork",
    "Page",
    "build_head",
    "connect",
    "has_prompt",
    "hint",
    "problem",
    "table_html",
]
