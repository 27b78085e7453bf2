"""Tab "Ask": the chat beside full precision, what the cache costs while the answer streams, and the conversations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.context import Context

from kvmm.errors import KVMMError
from kvmm.markdown_text import literal_text
from kvmm.samples import SampleQuestion
from kvmm.ui.chat.session import Session, UserMessage
from kvmm.ui.chat.talk import Talk
from kvmm.ui.parts.answers import stats_html
from kvmm.ui.parts.events import AT_ONCE, HIDDEN
from kvmm.ui.parts.model_notes import scope_html
from kvmm.ui.parts.sidebar import Sidebar, settings_of
from kvmm.ui.parts.talk_list import TalkList, build_talk_list, connect_talk_list, listing, name_field, redraw
from kvmm.ui.parts.toasts import warn
from kvmm.ui.parts.views import FRAME_SIZE, Frame, frames
from kvmm.ui.server.cookie import token_of_request, visitor_key
from kvmm.ui.server.visitors import Visitors, session_of
from kvmm.ui.settings import Settings

FILE_TYPES = ["image", "audio", "video", ".pdf"]
TOGETHER = 16  # questions that a server answers at the same time
READING = 8  # questions that read their files at the same time
WELCOME = "### What is on your page?\nDrop an image, a PDF, a recording or a video below and ask, or take one of these."
CHAT_OPTIONS: dict[str, Any] = {
    "height": 520,
    "layout": "bubble",
    "feedback_options": None,
    "latex_delimiters": [],
    "allow_tags": False,
    "buttons": ["copy"],
    "min_width": 260,
    # Gradio cannot edit a text that shares a group with a file.
    "group_consecutive_messages": False,
}


def begin(message: dict[str, Any] | None, session: Session, settings: Settings) -> bool:
    """Take a message from the textbox into the session; when that cannot be, say why in a toast and return False."""
    text = ((message or {}).get("text") or "").strip()
    files = tuple((message or {}).get("files") or ())
    try:
        session.begin(UserMessage(text, files), settings)
    except KVMMError as error:
        warn(error, 5)
        return False
    return True


def exchange_at(talk: Talk, index: Any, side: str = "kvmm") -> int | None:
    """Which question the message ``index`` of a chat belongs to; None if there is none."""
    left = index[0] if isinstance(index, (list, tuple)) else index
    for i, exchange in enumerate(talk.exchanges):
        left -= len(exchange.messages(side))
        if left < 0:
            return i
    return None


def edited_text(value: Any) -> str:
    """The text of an edited bubble, as its author would write it."""
    if isinstance(value, list):
        value = next((block for block in value if not isinstance(block, dict) or block.get("type") == "text"), "")
    if isinstance(value, dict):
        value = value.get("text") or ""
    return literal_text(str(value))


@dataclass(frozen=True)
class AskTab:
    """The components of the tab: two chats, the textbox, the list of conversations, and what the cache costs."""

    full: gr.Chatbot
    chat: gr.Chatbot
    reading: gr.HTML
    verdict: gr.HTML
    logprobs: gr.HTML
    box: gr.MultimodalTextbox
    scope: gr.HTML
    talks: TalkList
    stats: gr.HTML
    growth: gr.Plot
    bars: gr.Plot
    thumbnails: gr.HTML
    names_policy: bool = True  # above the chat; a server's is its own

    @property
    def shown(self) -> list[Any]:
        """The components of a frame (:func:`kvmm.ui.parts.views.view`)."""
        return [
            *(self.full, self.chat, self.reading, self.verdict, self.logprobs),
            *(self.stats, self.growth, self.bars, self.thumbnails),
        ]


def build_ask(
    visitors: Visitors,
    session: gr.State,
    sidebar: Sidebar,
    samples: list[SampleQuestion],
    icons: dict[str, str],
    *,
    remote: bool = False,
) -> list[Any]:
    """Lay out the tab inside the current context, connect it, and return the components of a frame; ``remote``: a
    server answers, several questions at once."""
    tab = _lay_out(sidebar, None if remote else sidebar.policy.value, samples, icons)
    _Events(visitors, session, sidebar, samples, tab, TOGETHER if remote else 1).connect()
    return tab.shown


def _lay_out(sidebar: Sidebar, policy: str | None, samples: list[SampleQuestion], icons: dict[str, str]) -> AskTab:
    """Lay out the tab inside the current context."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=8, min_width=320):
            with gr.Row(elem_id="chats", equal_height=True):
                full = gr.Chatbot(label="Full precision", elem_id="chat-full", visible=False, **CHAT_OPTIONS)
                chat = _kvmm_chat(policy, samples, icons)
            reading = gr.HTML(elem_id="reading-box", padding=False, visible=False)
            verdict = gr.HTML(elem_id="verdict-box", padding=False, visible=False)
            logprobs = gr.HTML(elem_id="logprobs-box", padding=False, visible=False)
            box = gr.MultimodalTextbox(
                show_label=False,
                placeholder="Ask about your file",
                file_types=FILE_TYPES,
                file_count="multiple",
                sources=["upload", "microphone"],
                elem_id="ask-box",
                max_lines=6,
                autofocus=True,
            )
            told = scope_html(sidebar.model.value, sidebar.model_names) if policy else ""
            scope = gr.HTML(told, elem_id="scope", padding=False)
            talks = build_talk_list(files=policy is not None)
        with gr.Column(scale=4, min_width=290):
            stats = gr.HTML(stats_html(None) if policy else "", elem_id="stats-box", padding=False)
            growth = gr.Plot(label="KV memory as tokens arrive", elem_id="growth-plot", visible=False)
            bars = gr.Plot(label="KV memory by modality", elem_id="memory-plot", visible=False)
            thumbnails = gr.HTML(elem_id="thumbnails", padding=False)
    answer = full, chat, reading, verdict, logprobs
    return AskTab(*answer, box, scope, talks, stats, growth, bars, thumbnails, policy is not None)


def _kvmm_chat(policy: str | None, samples: list[SampleQuestion], icons: dict[str, str]) -> gr.Chatbot:
    """The chat over the packed cache, with the samples as examples."""
    return gr.Chatbot(
        label=f"kvmm · {policy}" if policy else "The server's answers",
        elem_id="chat-kvmm",
        placeholder=WELCOME,
        editable="user",
        examples=[
            {
                "text": sample.question,
                "display_text": sample.title,
                "files": [str(path) for path in sample.files],
                "icon": icons[sample.title],
            }
            for sample in samples
        ],
        **CHAT_OPTIONS,
    )


class _Events:
    """The events of the tab; each handler returns values of :attr:`outputs`, if it does not say otherwise."""

    def __init__(
        self,
        visitors: Visitors,
        session: gr.State,
        sidebar: Sidebar,
        samples: list[SampleQuestion],
        tab: AskTab,
        together: int = 1,
    ) -> None:
        self.together = together  # questions that are answered at once
        self.visitors, self.session, self.sidebar, self.samples, self.tab = visitors, session, sidebar, samples, tab
        self.outputs = [session, *tab.shown, tab.box, *tab.talks.outputs]
        self._unchanged = (gr.skip(),) * (len(tab.shown) - 2)

    def _started(self, state: Session) -> tuple[Any, ...]:
        chats, asked = state.chats, gr.MultimodalTextbox(value=None, submit_btn=False, stop_btn=True)
        return state, chats["full"], chats["kvmm"], *self._unchanged, asked, *(gr.skip(),) * len(self.tab.talks.outputs)

    def start(self, request: gr.Request, message: Any, *values: Any) -> tuple[Any, ...]:
        state = session_of(self.visitors, request)
        self.visitors.keep_until_left(state, (message or {}).get("files") or ())
        if not begin(message, state, settings_of(*values)):
            if state.is_gone:  # the page goes to another conversation, and shows it
                return redraw(state, settings_of(*values).compare)
            return state, *(gr.skip(),) * (len(self.outputs) - 1)
        return self._started(state)

    def start_sample(self, event: gr.SelectData, request: gr.Request, *values: Any) -> tuple[Any, ...]:
        # The browser sends the example's place only; the files are named here, so it cannot ask for other paths.
        sample = self.samples[int(event.index)]
        message = {"text": sample.question, "files": [str(path) for path in sample.files]}
        return self.start(request, message, *values)

    def _ask_again(
        self, request: gr.Request, index: Any, question: str | None, values: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        state = session_of(self.visitors, request)
        try:
            place = exchange_at(state.talk, index)
            state.ask_again(-1 if place is None else place, question, settings_of(*values))
        except KVMMError as error:
            warn(error)
            if state.is_gone:
                return redraw(state, settings_of(*values).compare)
            shown_as_it_was = state.chats["full"], state.chats["kvmm"]  # the browser shows the edit already
            return state, *shown_as_it_was, *(gr.skip(),) * (len(self.outputs) - 3)
        box_as_it_is = gr.MultimodalTextbox(submit_btn=False, stop_btn=True)
        return (
            *self._started(state)[: 1 + len(self.tab.shown)],
            box_as_it_is,
            gr.skip(),
            name_field(state),  # a branch may have been opened
        )

    def edit(self, event: gr.EditData, request: gr.Request, *values: Any) -> tuple[Any, ...]:
        return self._ask_again(request, event.index, edited_text(event.value), values)

    def retry(self, event: gr.RetryData, request: gr.Request, *values: Any) -> tuple[Any, ...]:
        return self._ask_again(request, event.index, None, values)

    def stream(self, request: gr.Request) -> Iterator[Frame]:
        state = self.visitors.find(request.session_hash)
        try:
            if state is None:
                yield (gr.skip(),) * FRAME_SIZE
            else:
                yield from frames(state)
        finally:
            self.visitors.keep_budget()

    def prepare(self, request: gr.Request) -> None:
        """Read the question's files while it waits for the model."""
        state = self.visitors.find(request.session_hash)
        answer = None if state is None else state.talk.answer
        if answer is not None:
            answer.prepare()

    def ready(self, message: Any, request: gr.Request) -> tuple[Any, ...]:
        state = self.visitors.find(request.session_hash)
        return (gr.skip(),) * 2 if state is None else self._freed(message, state)

    def _freed(self, message: Any, state: Session) -> tuple[Any, ...]:
        if state.is_busy:  # another conversation was opened and has asked its question already
            return gr.skip(), listing(state)
        value = None
        answer = state.talk.answer
        typed = bool(message and (message.get("text") or message.get("files")))
        if answer is not None and answer.stopped and not answer.returned and not typed:
            answer.returned = True
            value = {"text": answer.message.question, "files": list(answer.message.files)}
        free = {"submit_btn": True, "stop_btn": False} | ({} if value is None else {"value": value})
        return gr.MultimodalTextbox(**free), listing(state)

    def stop(self, message: Any, request: gr.Request) -> tuple[Any, ...]:
        state = self.visitors.find(request.session_hash)
        if state is None:
            return (gr.skip(),) * 4
        state.stop()
        if state.is_busy:  # it has begun, and its last frame follows
            return (gr.skip(),) * 4
        return state.chats["full"], state.chats["kvmm"], *self._freed(message, state)

    def come_back(self, request: gr.Request) -> tuple[Any, ...]:
        """The page was loaded: show what its visitor had open before."""
        state = self.visitors.returned(request.session_hash, token_of_request(request, visitor_key()))
        if state is None:
            return (gr.skip(),) * (len(self.outputs) + 1 + len(self.sidebar.kept) + 1)
        settings = state.desk.settings or settings_of(*(part.value for part in self.sidebar.inputs))
        return *redraw(state, settings.compare), settings.model, *self.sidebar.values(settings), settings.compare

    def watch(self, event: Any) -> Any:
        """Follow an answer that is being generated, or that still waits after its page was reloaded."""
        tab = self.tab
        return event.then(self.stream, None, tab.shown, concurrency_limit=None, **HIDDEN).then(
            self.ready, tab.box, [tab.box, tab.talks.talks], **AT_ONCE
        )

    def _connect_question(self, event: Any, handler: Any, inputs: list[Any]) -> None:
        """``handler`` takes a question; its files are read, and its answer is streamed when the model is free."""
        tab = self.tab
        asked = event(handler, [*inputs, *self.sidebar.inputs], self.outputs, concurrency_limit=None, **HIDDEN)
        asked.success(self.prepare, None, None, concurrency_id="files", concurrency_limit=READING, **HIDDEN).success(
            self.stream, None, tab.shown, concurrency_id="model", concurrency_limit=self.together, **HIDDEN
        ).then(self.ready, tab.box, [tab.box, tab.talks.talks], **AT_ONCE)

    def connect(self) -> None:
        """Connect the components of the tab and those of the sidebar that act on it."""
        tab, sidebar = self.tab, self.sidebar
        self._connect_question(tab.box.submit, self.start, [tab.box])
        self._connect_question(tab.chat.example_select, self.start_sample, [])
        self._connect_question(tab.chat.edit, self.edit, [])
        self._connect_question(tab.chat.retry, self.retry, [])
        tab.box.stop(self.stop, tab.box, [tab.full, tab.chat, tab.box, tab.talks.talks], **AT_ONCE)
        clears = [tab.chat.clear, tab.full.clear]
        connect_talk_list(tab.talks, self.visitors, self.session, sidebar, tab.shown, tab.box, clears, self.watch)
        settings = [sidebar.model, *sidebar.kept, sidebar.compare]
        self.watch(Context.root_block.load(self.come_back, None, [*self.outputs, *settings], **AT_ONCE))
        for component in sidebar.policies if tab.names_policy else ():
            component.change(
                lambda *values: gr.Chatbot(label=f"kvmm · {settings_of(*values).label}"),
                sidebar.inputs,
                tab.chat,
                **AT_ONCE,
            )
        names = sidebar.model_names
        if tab.names_policy:
            sidebar.model.change(lambda name: scope_html(name, names), sidebar.model, tab.scope, **AT_ONCE)
        sidebar.compare.change(
            lambda on, state: gr.Chatbot(visible=on, value=state.chats["full"] if state else []),
            [sidebar.compare, self.session],
            tab.full,
            **AT_ONCE,
        )


__all__ = ["begin", "build_ask", "edited_text", "exchange_at"]
