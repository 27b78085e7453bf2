"""Tab "Ask": the chat beside full precision, what the cache costs while the answer streams, and the conversations."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import gradio as gr
from gradio.context import Context

from kvmm.errors import KVMMError
from kvmm.samples import Sample
from kvmm.ui.answers import stats_html
from kvmm.ui.cookie import token_of_request, visitor_key
from kvmm.ui.markdown import literal_text
from kvmm.ui.session import Session, Turn
from kvmm.ui.settings import Settings
from kvmm.ui.sidebar import Sidebar, settings_of
from kvmm.ui.talk import Talk
from kvmm.ui.talk_list import build_talk_list, connect_talk_list, listing, redraw
from kvmm.ui.toasts import warn
from kvmm.ui.views import FRAME_SIZE, Frame, frames
from kvmm.ui.visitors import Visitors, session_of

FILE_TYPES = ["image", "audio", ".pdf"] + ["video"] * (importlib.util.find_spec("torchvision") is not None)
READING = 8  # questions whose files are read at the same time
WELCOME = "### What is on your page?\nDrop an image, a PDF or a recording below and ask, or take one of these."
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
        session.begin(Turn(text, files), settings)
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


def build_ask(
    visitors: Visitors, session: gr.State, sidebar: Sidebar, samples: list[Sample], icons: dict[str, str]
) -> list[Any]:
    """Lay out the tab inside the current context, connect it, and return the components of a frame."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=8, min_width=320):
            with gr.Row(elem_id="chats", equal_height=True):
                full = gr.Chatbot(label="Full precision", elem_id="chat-full", visible=False, **CHAT_OPTIONS)
                chat = gr.Chatbot(
                    label=f"kvmm · {sidebar.policy.value}",
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
            reading = gr.HTML(elem_id="reading-box", padding=False, visible=False)
            verdict = gr.HTML(elem_id="verdict-box", padding=False, visible=False)
            box = gr.MultimodalTextbox(
                show_label=False,
                placeholder="Ask about a page, a picture or a recording",
                file_types=FILE_TYPES,
                file_count="multiple",
                sources=["upload", "microphone"],
                elem_id="ask-box",
                max_lines=6,
                autofocus=True,
            )
            parts = build_talk_list()
        with gr.Column(scale=4, min_width=290):
            stats = gr.HTML(stats_html(None), elem_id="stats-box", padding=False)
            growth = gr.Plot(label="KV memory as tokens arrive", elem_id="growth-plot", visible=False)
            bars = gr.Plot(label="KV memory by modality", elem_id="memory-plot", visible=False)
            thumbnails = gr.HTML(elem_id="thumbnails", padding=False)

    shown = [full, chat, reading, verdict, stats, growth, bars, thumbnails]
    private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    at_once: dict[str, Any] = {**private, "queue": False}

    everything = [session, *shown, box, *parts.outputs]
    unchanged = (gr.skip(),) * (len(shown) - 2)

    def started(state: Session) -> tuple[Any, ...]:
        chats, asked = state.chats, gr.MultimodalTextbox(value=None, submit_btn=False, stop_btn=True)
        return state, chats["full"], chats["kvmm"], *unchanged, asked, *(gr.skip(),) * len(parts.outputs)

    def start(request: gr.Request, message: Any, *values: Any) -> tuple[Any, ...]:
        state = session_of(visitors, request)
        visitors.keep_until_left(state, (message or {}).get("files") or ())
        if not begin(message, state, settings_of(*values)):
            if state.is_gone:  # the page goes to another conversation, and shows it
                return redraw(state, settings_of(*values).compare)
            return state, *(gr.skip(),) * (len(everything) - 1)
        return started(state)

    def start_sample(event: gr.SelectData, request: gr.Request, *values: Any) -> tuple[Any, ...]:
        # The browser sends the example's place only; the files are named here, so it cannot ask for other paths.
        sample = samples[int(event.index)]
        message = {"text": sample.question, "files": [str(path) for path in sample.files]}
        return start(request, message, *values)

    def ask_again(request: gr.Request, index: Any, question: str | None, values: tuple[Any, ...]) -> tuple[Any, ...]:
        state = session_of(visitors, request)
        try:
            place = exchange_at(state.talk, index)
            state.ask_again(-1 if place is None else place, question, settings_of(*values))
        except KVMMError as error:
            warn(error)
            if state.is_gone:
                return redraw(state, settings_of(*values).compare)
            shown_as_it_was = state.chats["full"], state.chats["kvmm"]  # the browser shows the edit already
            return state, *shown_as_it_was, *(gr.skip(),) * (len(everything) - 3)
        box_as_it_is = gr.MultimodalTextbox(submit_btn=False, stop_btn=True)
        return *started(state)[: 1 + len(shown)], box_as_it_is, *(gr.skip(),) * len(parts.outputs)

    def edit(event: gr.EditData, request: gr.Request, *values: Any) -> tuple[Any, ...]:
        return ask_again(request, event.index, edited_text(event.value), values)

    def retry(event: gr.RetryData, request: gr.Request, *values: Any) -> tuple[Any, ...]:
        return ask_again(request, event.index, None, values)

    def stream(request: gr.Request) -> Iterator[Frame]:
        state = visitors.find(request.session_hash)
        try:
            if state is None:
                yield (gr.skip(),) * FRAME_SIZE
            else:
                yield from frames(state)
        finally:
            visitors.keep_budget()

    def prepare(request: gr.Request) -> None:
        """Read the files before it is this question's turn: who waits for the model does not wait for them."""
        state = visitors.find(request.session_hash)
        answer = None if state is None else state.talk.answer
        if answer is not None:
            answer.prepare()

    def ready(message: Any, request: gr.Request) -> tuple[Any, ...]:
        state = visitors.find(request.session_hash)
        return (gr.skip(),) * 3 if state is None else freed(message, state)

    def freed(message: Any, state: Session) -> tuple[Any, ...]:
        if state.is_busy:  # another conversation was opened and has asked its question already
            return gr.skip(), *listing(state)
        value = None
        answer = state.talk.answer
        typed = bool(message and (message.get("text") or message.get("files")))
        if answer is not None and answer.stopped and not answer.returned and not typed:
            answer.returned = True
            value = {"text": answer.turn.question, "files": list(answer.turn.files)}
        free = {"submit_btn": True, "stop_btn": False} | ({} if value is None else {"value": value})
        return gr.MultimodalTextbox(**free), *listing(state)

    def stop(message: Any, request: gr.Request) -> tuple[Any, ...]:
        state = visitors.find(request.session_hash)
        if state is None:
            return (gr.skip(),) * 5
        state.stop()
        if state.is_busy:  # it has begun, and its last frame follows
            return (gr.skip(),) * 5
        return state.chats["full"], state.chats["kvmm"], *freed(message, state)

    def come_back(request: gr.Request) -> tuple[Any, ...]:
        """The page was loaded: show what its visitor had open before."""
        state = visitors.returned(request.session_hash, token_of_request(request, visitor_key()))
        if state is None:
            return (gr.skip(),) * (len(everything) + 1 + len(sidebar.policies) + 1)
        settings = state.desk.settings or settings_of(*(part.value for part in sidebar.inputs))
        return *redraw(state, settings.compare), settings.model, *sidebar.values(settings), settings.compare

    def watch(event: Any) -> Any:
        """Follow an answer that is being written already, or whose page was reloaded before its turn."""
        return event.then(stream, None, shown, concurrency_limit=None, **private).then(
            ready, box, [box, *parts.outputs], **at_once
        )

    def connect(event: Any, fn: Any, inputs: list[Any]) -> None:
        asked = event(fn, [*inputs, *sidebar.inputs], everything, concurrency_limit=None, **private)
        asked.success(prepare, None, None, concurrency_id="files", concurrency_limit=READING, **private).success(
            stream, None, shown, concurrency_id="model", concurrency_limit=1, **private
        ).then(ready, box, [box, *parts.outputs], **at_once)

    connect(box.submit, start, [box])
    connect(chat.example_select, start_sample, [])
    connect(chat.edit, edit, [])
    connect(chat.retry, retry, [])
    box.stop(stop, box, [full, chat, box, *parts.outputs], **at_once)
    connect_talk_list(parts, visitors, session, sidebar, shown, box, [chat.clear, full.clear], watch)
    watch(
        Context.root_block.load(
            come_back, None, [*everything, sidebar.model, *sidebar.policies, sidebar.compare], **at_once
        )
    )
    for component in sidebar.policies:
        component.change(
            lambda *values: gr.Chatbot(label=f"kvmm · {settings_of(*values).label}"), sidebar.inputs, chat, **at_once
        )
    sidebar.compare.change(
        lambda on, state: gr.Chatbot(visible=on, value=state.chats["full"] if state else []),
        [sidebar.compare, session],
        full,
        **at_once,
    )
    return shown


__all__ = ["begin", "build_ask", "edited_text", "exchange_at"]
