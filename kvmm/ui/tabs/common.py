"""Parts that several tabs share: their head with the sample question, long work, tables, errors as one line."""

from __future__ import annotations

import html
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvmm.samples import SampleQuestion
from kvmm.ui.chat.session import Desk, Session
from kvmm.ui.parts.events import AT_ONCE, ON_MODEL
from kvmm.ui.parts.sidebar import Sidebar, settings_of
from kvmm.ui.parts.views import frames, view
from kvmm.ui.server import running
from kvmm.ui.server.visitors import Visitors, session_of
from kvmm.ui.tabs.ask import begin
from kvmm.ui.worked import worked_sample

WAITING = "Waiting for other visitors' work to end …"
STOPPED = "Stopped before it began."
STALE = "The open conversation was asked something else since."
BUSY = "Your question is being answered; its figures follow."


class LongWork:
    """Long work of one kind, one at a time for each visitor; it can be stopped while it waits and while it runs."""

    def __init__(self) -> None:  # by desk, which the pages of a visitor share
        self._waiting: weakref.WeakSet[Desk] = weakref.WeakSet()
        self._running: weakref.WeakKeyDictionary[Desk, threading.Event] = weakref.WeakKeyDictionary()

    def __contains__(self, session: Session | None) -> bool:
        return session is not None and (session.desk in self._waiting or session.desk in self._running)

    def wait(self, session: Session) -> bool:
        """The visitor has asked for it; False if theirs waits or runs already."""
        if session in self:
            return False
        self._waiting.add(session.desk)
        return True

    def begin(self, session: Session | None) -> threading.Event | None:
        """Their turn has come: the event that stops it, or None if it was stopped while it waited."""
        if session is None or session.desk not in self._waiting or session.desk in self._running:
            return None
        self._waiting.discard(session.desk)
        event = self._running[session.desk] = threading.Event()
        running.began(event)
        with session.desk.lock:
            session.desk.long_works += 1
        return event

    def end(self, session: Session) -> None:
        """It is over."""
        event = self._running.pop(session.desk)
        event.set()
        running.ended(event)
        with session.desk.lock:
            session.desk.long_works -= 1

    def stop(self, session: Session | None) -> bool:
        """Stop it; True if it had not begun and so is over already."""
        if session is None:
            return False
        if (event := self._running.get(session.desk)) is not None:
            event.set()
        waited = session.desk in self._waiting
        self._waiting.discard(session.desk)
        return waited


def hint(text: str, name: str = "") -> str:
    """A line of plain text; ``text`` is escaped."""
    return f'<div class="hint"{f" id={name!r}" if name else ""}>{html.escape(text)}</div>'


def problem(error: Exception) -> str:
    """An error that the visitor can put right, as one line."""
    return f'<div class="hint problem">⚠️ {html.escape(" ".join(str(error).split()))}</div>'


def table_html(columns: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
    """A table of HTML cells; it scrolls sideways by itself where the page is narrow, and its first column stays."""
    return sections_html(columns, [("", rows)], name)


def sections_html(columns: Sequence[str], sections: Sequence[tuple[str, Sequence[Sequence[str]]]], name: str) -> str:
    """The same in sections, each under its title; a section without rows is left out, and so is an empty title."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = ""
    for title, rows in sections:
        if title and rows:
            body += f'<tr class="part-of"><th colspan="{len(columns)}"><span>{html.escape(title)}</span></th></tr>'
        body += "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="table-scroll" tabindex="0"><table class="outliers" id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def is_busy(session: Session | None) -> bool:
    """Whether a question of the visitor waits for its answer, or is being answered."""
    return session is not None and session.is_busy


def has_prompt(session: Session | None) -> bool:
    """Whether the open conversation has been answered once."""
    return session is not None and session.last is not None and session.conversation is not None


@dataclass(frozen=True)
class Page:
    """The parts of the page that tabs need.

    Attributes:
        visitors: all sessions.
        session: the state that holds the visitor's.
        sidebar: its values are the settings.
        sample: what "use the sample" asks; None without samples.
        chat: the components of the Ask tab, which follow an answer.
    """

    visitors: Visitors
    session: gr.State
    sidebar: Sidebar
    sample: SampleQuestion | None
    chat: Sequence[Any]


@dataclass(frozen=True)
class Head:
    """The top of a tab: lines of text, and the button that asks the sample's question; empty until it is opened.

    Attributes:
        meaning: a plain sentence on what the figures say; it stands below every line.
    """

    message: gr.HTML
    button: gr.Button
    meaning: str
    has_sample: bool

    def worked(self, session: Session | None, detail: str = "") -> tuple[Any, Any]:
        """Values of ``outputs`` over a worked sample, when the visitor has nothing of their own yet; ``detail`` is HTML
        below the line that says so."""
        sample = worked_sample()
        line = (
            f"<b>A worked sample</b>: “{html.escape(sample.question)}” about {html.escape(sample.file)}, with "
            f"{html.escape(sample.model)}. "
        )
        line += BUSY if is_busy(session) else "Ask something, and this page shows your own prompt."
        return self._with_meaning(f'<div class="hint">{line}</div>{detail}'), gr.Button(visible=self.has_sample)

    def waits(self, session: Session, what: str, earlier: Any | None) -> tuple[Any, Any]:
        """The same while ``what`` is about to be measured, over the ``earlier`` figures; None: over a worked sample."""
        count = session.last.memory.tokens if session.last is not None and session.last.memory else 0
        now = f"Measuring {count:,} tokens: {what} …" if count else f"Measuring {what} …"
        whose = "a worked sample" if earlier is None else "the prompt before"
        text = f"{BUSY if is_busy(session) else now} Until then you see those of {whose}."
        bar = '<div class="bar"><i class="moving"></i></div>'
        return self._with_meaning(f'<div class="progress" id="measuring">{bar}{hint(text)}</div>'), gr.Button(
            visible=False
        )

    def say(self, line: str) -> tuple[Any, Any]:
        """Values of ``outputs`` with a prompt; ``line`` is HTML."""
        return self._with_meaning(line), gr.Button(visible=False)

    def _with_meaning(self, line: str) -> str:
        return f'{line}<div class="hint meaning">{html.escape(self.meaning)}</div>'

    @property
    def outputs(self) -> list[Any]:
        """The components that ``worked``, ``waits`` and ``say`` return values of."""
        return [self.message, self.button]


class Earlier:
    """The last figures of each conversation, shown until those of its next prompt are there."""

    def __init__(self) -> None:
        self._reports: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def keep(self, session: Session, report: Any) -> None:
        """``report`` is what the open conversation shows now."""
        self._reports[session.talk] = report

    def of(self, session: Session | None) -> Any | None:
        """The last figures of the open conversation."""
        return None if session is None else self._reports.get(session.talk)


def build_head(page: Page, name: str, meaning: str) -> Head:
    """Lay out the top of a tab; ``meaning`` is a plain sentence on what its figures say."""
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
    return Head(message, button, meaning, page.sample is not None)


def connect(
    page: Page,
    tab: gr.Tab,
    head: Head,
    at_once: Callable[..., tuple[Any, ...]],
    measure: Callable[..., Iterator[tuple[Any, ...]]] | None,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    triggers: Sequence[Any] = (),
    sliders: Sequence[tuple[gr.Slider, Callable[[Any], int]]] = (),
) -> None:
    """When the tab is opened, and after its sample was asked: show existing figures, then measure missing ones.

    Args:
        at_once: ``at_once(session, *inputs)`` returns values of ``outputs`` without the model, which may be answering.
        measure: ``measure(session, *inputs)`` yields them when the model's turn has come; None where nothing is
            measured by itself. It is not called before there is a prompt.
        outputs: those of ``head`` first.
        triggers: other events that do the same.
        sliders: each with the function that counts its places in a model's text configuration; they follow the model
            of the open conversation.
    """

    def run(state: Session | None, *values: Any) -> Iterator[tuple[Any, ...]]:
        if has_prompt(state):
            yield from measure(state, *values)
        else:
            yield (gr.skip(),) * len(outputs)

    def places(state: Session | None, *values: float) -> Any:
        if state is None:
            return gr.skip() if len(sliders) == 1 else (gr.skip(),) * len(sliders)
        config = state.model.config.get_text_config(decoder=True)
        lasts = [max(count(config) - 1, 1) for _, count in sliders]
        moved = [gr.Slider(maximum=last, value=min(value, last)) for last, value in zip(lasts, values, strict=True)]
        return moved[0] if len(moved) == 1 else moved

    def show(event: Any) -> None:
        if sliders:
            components = [slider for slider, _ in sliders]
            event(places, [page.session, *components], components, **AT_ONCE)
        shown = event(at_once, [page.session, *inputs], outputs, **AT_ONCE)
        if measure is not None:
            shown.then(run, [page.session, *inputs], outputs, show_progress="hidden", **ON_MODEL)

    def ask_sample(request: gr.Request, state: Session | None, *values: Any) -> Iterator[tuple[Any, ...]]:
        state = session_of(page.visitors, request)
        message = {"text": page.sample.question, "files": [str(path) for path in page.sample.files]}
        if not begin(message, state, settings_of(*values)):
            if state.is_gone:
                state.leave_deleted()
                yield state, *view(state.talk, settings_of(*values).compare)
            else:
                yield state, *(gr.skip(),) * len(page.chat)
            return
        try:
            for frame in frames(state):
                yield state, *frame
        finally:
            page.visitors.keep_budget()

    for trigger in (tab.select, *triggers):
        show(trigger)
    asked = head.button.click(
        ask_sample, [page.session, *page.sidebar.inputs], [page.session, *page.chat], show_progress="hidden", **ON_MODEL
    )
    show(asked.success)


__all__ = [
    "BUSY",
    "STALE",
    "STOPPED",
    "WAITING",
    "Earlier",
    "Head",
    "LongWork",
    "Page",
    "build_head",
    "connect",
    "has_prompt",
    "hint",
    "is_busy",
    "problem",
    "sections_html",
    "table_html",
]
