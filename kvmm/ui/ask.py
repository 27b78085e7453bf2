"""Tab "Ask": the chat beside full precision, what the cache costs while the answer streams, and the conversations."""

from __future__ import annotations

import importlib.util
import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from kvmm.analysis.plots import memory_by_modality, memory_over_tokens
from kvmm.errors import KVMMError
from kvmm.models.conversation import Progress
from kvmm.ui.answers import memory_note, stats_html, thumbnails_html, verdict_html
from kvmm.ui.bubbles import NOT_ASKED, bubble, escape_markdown, note, user_messages
from kvmm.ui.compare import mark_words
from kvmm.ui.samples import Sample
from kvmm.ui.session import Session, Turn
from kvmm.ui.settings import Settings
from kvmm.ui.sidebar import Sidebar, settings_of
from kvmm.ui.signing import app_key, check_signature, sign
from kvmm.ui.talk import Talk
from kvmm.ui.visitors import Visitors

TEXT_SECONDS = 0.06  # between two updates of the text ...
PLOT_SECONDS = 0.5  # ... and of the plots, which cost the browser more
FILE_TYPES = ["image", "audio", ".pdf"] + ["video"] * (importlib.util.find_spec("torchvision") is not None)
WELCOME = "### What is on your page?\nDrop an image, a PDF or a recording below and ask, or take one of these."
NEW = "New conversation"
DOWNLOAD = """(file) => {
  const link = document.createElement('a');
  link.href = file.url; link.download = file.orig_name; link.click();
}"""

logger = logging.getLogger(__name__)


# -- what happens ------------------------------------------------------------------------------------------------


def begin(message: dict[str, Any] | None, session: Session) -> bool:
    """Take a message from the textbox into the session; when that cannot be, say why in a toast and return False."""
    text = ((message or {}).get("text") or "").strip()
    files = tuple((message or {}).get("files") or ())
    if session.turn is not None or session.running:
        gr.Warning("The last question is still being answered: wait, or press stop.", duration=5)
        return False
    if not text and not files:
        gr.Warning("Type a question, or attach a recording that asks one.", duration=5)
        return False
    session.turn = Turn(text, files)
    session.stop.clear()
    for chat in session.chats.values():
        chat.extend(user_messages(text, files))
    return True


Frame = tuple[Any, ...]  # full, kvmm, verdict, stats, growth, bars, thumbnails


def view(talk: Talk, compare: bool) -> Frame:
    """Everything that a conversation shows, as it stands."""
    last = talk.last.get("kvmm")
    memory = None if last is None else last.memory
    verdict = verdict_html(talk.verdict)
    return (
        gr.Chatbot(talk.chats["full"], visible=compare),
        talk.chats["kvmm"],
        gr.HTML(verdict, visible=bool(verdict)),
        stats_html(last, talk.last.get("full"), talk.same_start),
        gr.Plot(memory_over_tokens(talk.growth) if talk.growth else None, visible=bool(talk.growth)),
        gr.Plot(memory_by_modality(memory) if memory else None, visible=memory is not None),
        thumbnails_html(talk.media),
    )


def answer(session: Session, settings: Settings) -> Iterator[Frame]:
    """Stream what :func:`view` shows while the question is answered; the chats are complete when it ends."""
    turn, epoch, talk = session.turn, session.epoch, session.talk
    if turn is None:  # refused, or another conversation was opened while this one waited for the model
        yield (gr.skip(),) * 7
        return
    session.turn, session.running = None, True
    compare = settings.compare
    heads = {side: len(chat) for side, chat in talk.chats.items()}
    last: dict[str, Progress] = {}
    shown_text = shown_plot = 0.0

    def show(side: str, *tail: dict[str, Any] | None) -> None:
        talk.chats[side][heads[side] :] = filter(None, tail)

    def frame(verdict: Any = None) -> Frame:
        nonlocal shown_plot
        progress, growth, bars = last.get("kvmm"), gr.skip(), gr.skip()
        if progress and progress.memory and time.monotonic() - shown_plot > PLOT_SECONDS:
            shown_plot = time.monotonic()
            growth = gr.Plot(memory_over_tokens(talk.growth), visible=True) if talk.growth else gr.skip()
            bars = gr.Plot(memory_by_modality(progress.memory), visible=True)
        stats = stats_html(progress, last.get("full"), talk.same_start) if progress else gr.skip()
        full = talk.chats["full"] if compare else gr.skip()
        said = gr.skip() if verdict is None else gr.HTML(verdict, visible=bool(verdict))
        return full, talk.chats["kvmm"], said, stats, growth, bars, gr.skip()

    def tail(progress: Progress, reread: str, text: str) -> list[dict[str, Any] | None]:
        before = note("Earlier pages read again", reread) if reread else None
        if progress.stopped:
            text = f"{text} *stopped*" if text else "*stopped*"
        if not progress.done:
            return [before, bubble(text) if text else None]
        # what a stopped answer held is dropped, so there is nothing to note
        return [before, bubble(text), None if progress.stopped else memory_note(progress)]

    try:
        for side in ("full", "kvmm") if compare else ("kvmm",):
            show(side, note("Reading" if turn.files else "Answering", "", pending=True))
        yield frame("")
        reasons: dict[str, str] = {}
        for step in session.ask(turn, settings):
            progress = last[step.side] = step.progress
            reasons[step.side] = step.reread
            show(step.side, *tail(progress, step.reread, progress.text))
            if session.epoch == epoch and (progress.done or time.monotonic() - shown_text > TEXT_SECONDS):
                shown_text = time.monotonic()
                yield frame()
        if talk.verdict is not None and talk.verdict.index is not None:
            marked = mark_words(last["full"].text, last["kvmm"].text)
            for side, text in zip(("full", "kvmm"), marked, strict=True):
                show(side, *tail(last[side], reasons[side], text))
        if not compare:
            # The full-precision column is hidden; this keeps the turn's place for when it is shown.
            show("full", bubble(NOT_ASKED))
        if session.epoch == epoch:
            yield view(talk, compare)
    except KVMMError as error:
        sent = user_messages(turn.question, turn.files, links=True)
        shown = len(user_messages(turn.question, turn.files))
        for side, chat in talk.chats.items():
            chat[heads[side] - shown : heads[side]] = sent
            show(side, bubble(f"⚠️ {escape_markdown(str(error))}"))
        if session.epoch == epoch:
            yield frame("")
    except Exception:
        logger.exception("an answer failed")
        for side in talk.chats:
            show(side, bubble("⚠️ The server could not answer this. The conversation is kept; try again."))
        if session.epoch == epoch:
            yield frame("")
    finally:
        if session.epoch == epoch:
            session.running = False


# -- the tab -----------------------------------------------------------------------------------------------------


def build_ask(
    visitors: Visitors, session: gr.State, sidebar: Sidebar, samples: list[Sample], icons: dict[str, str]
) -> list[Any]:
    """Lay out the tab inside the current context, connect it, and return the components of :func:`view`."""
    key = app_key()
    with gr.Row(equal_height=False):
        with gr.Column(scale=8, min_width=320):
            with gr.Row(elem_id="chats", equal_height=True):
                options: dict[str, Any] = {
                    "height": 520,
                    "layout": "bubble",
                    "feedback_options": None,
                    "latex_delimiters": [],
                    "allow_tags": False,
                    "buttons": ["copy"],
                    "min_width": 260,
                    "group_consecutive_messages": True,
                }
                full = gr.Chatbot(label="Full precision", elem_id="chat-full", visible=False, **options)
                chat = gr.Chatbot(
                    label=f"kvmm · {sidebar.policy.value}",
                    elem_id="chat-kvmm",
                    placeholder=WELCOME,
                    examples=[
                        {
                            "text": sample.question,
                            "display_text": sample.title,
                            "files": [str(path) for path in sample.files],
                            "icon": icons[sample.title],
                        }
                        for sample in samples
                    ],
                    **options,
                )
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
            with gr.Row(elem_id="talk-actions"):
                fresh = gr.Button(NEW, size="sm", elem_id="new-conversation")
                fork = gr.Button("Fork", size="sm", elem_id="fork")
                save = gr.Button("Save", size="sm", elem_id="save")
                load = gr.UploadButton("Open a saved one", size="sm", elem_id="load", file_types=[".kvmm"])
                saved = gr.DownloadButton("Saved", elem_id="saved", visible="hidden")
            talks = gr.Radio([], label="Your conversations", elem_id="talks", visible=False)
        with gr.Column(scale=4, min_width=290):
            stats = gr.HTML(stats_html(None), elem_id="stats-box", padding=False)
            growth = gr.Plot(label="KV memory as tokens arrive", elem_id="growth-plot", visible=False)
            bars = gr.Plot(label="KV memory by modality", elem_id="memory-plot", visible=False)
            thumbnails = gr.HTML(elem_id="thumbnails", padding=False)

    shown = [full, chat, verdict, stats, growth, bars, thumbnails]
    private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    at_once: dict[str, Any] = {**private, "queue": False}

    def start(message: Any, state: Session | None, request: gr.Request) -> tuple[Any, ...]:
        state = state or visitors.session(request.session_hash)
        visitors.keep_until_left(state, (message or {}).get("files") or ())
        if not begin(message, state):
            return state, gr.skip(), gr.skip(), gr.skip()
        waiting = gr.MultimodalTextbox(value=None, submit_btn=False, stop_btn=True)
        queued = note("Waiting for the model", "", pending=True)  # shown until this one's turn comes
        return state, state.chats["full"], [*state.chats["kvmm"], queued], waiting

    def start_sample(state: Session | None, event: gr.SelectData, request: gr.Request) -> tuple[Any, ...]:
        # The browser sends the example's place only; the files are named here, so it cannot ask for other paths.
        sample = samples[int(event.index)]
        return start({"text": sample.question, "files": [str(path) for path in sample.files]}, state, request)

    def stream(state: Session | None, *values: Any) -> Iterator[Frame]:
        try:
            if state is not None:
                yield from answer(state, settings_of(*values))
        finally:
            visitors.keep_budget()

    def ready(state: Session | None) -> tuple[Any, Any]:
        if state is None or state.turn is not None or state.running:
            return gr.skip(), gr.skip()  # another conversation was opened and has asked its first question already
        return gr.MultimodalTextbox(submit_btn=True, stop_btn=False), listing(state)

    def listing(state: Session) -> Any:
        names = [(talk.title or NEW, i) for i, talk in enumerate(state.talks)]
        return gr.Radio(names, value=state.talks.index(state.talk), visible=len(names) > 1)

    def redraw(state: Session, compare: bool) -> tuple[Any, ...]:
        free = gr.MultimodalTextbox(value=None, submit_btn=True, stop_btn=False)
        return state, *view(state.talk, compare), free, listing(state)

    def change(do: Callable[[Session], None]) -> Callable[..., tuple[Any, ...]]:
        """An event that changes which conversation is open; an error is a toast."""

        def event(state: Session | None, compare: bool) -> tuple[Any, ...]:
            if state is None:
                return (gr.skip(),) * 10
            try:
                do(state)
            except KVMMError as error:
                gr.Warning(str(error), duration=6)
                return (gr.skip(),) * 10
            return redraw(state, compare)

        return event

    def go_to(state: Session | None, compare: bool, index: int | None) -> tuple[Any, ...]:
        if state is None or index is None or not 0 <= index < len(state.talks):
            return (gr.skip(),) * 10
        state.open(index)
        return redraw(state, compare)

    def write(state: Session | None) -> Any:
        try:
            if state is None:
                raise KVMMError("There is nothing to save yet: ask a question first.")
            name = re.sub(r"[^\w-]+", "-", state.talk.title).strip("-") or "conversation"
            path = visitors.folder(state) / f"{name}.kvmm"
            state.save(path)
            sign(path, key)
        except KVMMError as error:
            raise gr.Error(str(error), duration=6, print_exception=False) from error
        return gr.DownloadButton(value=str(path))

    def read(
        path: str | None, state: Session | None, compare: bool, model: str, request: gr.Request
    ) -> tuple[Any, ...]:
        state = state or visitors.session(request.session_hash)
        try:
            check_signature(path, key)
            settings = state.load(path, model)
        except KVMMError as error:
            gr.Warning(str(error), duration=8)
            return (gr.skip(),) * (10 + len(sidebar.policies))
        finally:
            Path(path).unlink(missing_ok=True)  # it is in the upload folder, and what it held is in memory
        visitors.keep_budget()
        return *redraw(state, compare), *sidebar.values(settings)

    def stop(state: Session | None) -> None:
        if state is not None:
            state.stop.set()

    def connect(event: Any, fn: Any, inputs: list[Any]) -> None:
        event(fn, inputs, [session, full, chat, box], concurrency_limit=None, **private).success(
            stream, [session, *sidebar.inputs], shown, concurrency_id="model", concurrency_limit=1, **private
        ).then(ready, session, [box, talks], **at_once)

    connect(box.submit, start, [box, session])
    connect(chat.example_select, start_sample, [session])
    box.stop(stop, session, None, **at_once)
    everything = [session, *shown, box, talks]
    for event in (fresh.click, chat.clear, full.clear):
        event(change(Session.reset), [session, sidebar.compare], everything, **at_once)
    fork.click(change(Session.fork), [session, sidebar.compare], everything, **at_once)
    save.click(write, session, saved, **private).success(None, saved, None, js=DOWNLOAD)
    load.upload(read, [load, session, sidebar.compare, sidebar.model], [*everything, *sidebar.policies], **private)
    talks.input(go_to, [session, sidebar.compare, talks], everything, **at_once)
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


def icon_of(path: Path, kind: str, folder: Path) -> str:
    """A picture for the example: the file itself, the first page of a PDF, or a drawn wave for a recording."""
    if kind == "image":
        return str(path)
    target = folder / f"{path.stem}-{kind}.{'png' if kind == 'pdf' else 'svg'}"
    if kind == "pdf":
        from kvmm.media import load_pdf

        page = load_pdf(path)[0].copy()
        page.thumbnail((320, 320))
        page.save(target)
    else:
        bars = "".join(
            f'<rect x="{8 + 7 * i}" y="{32 - h}" width="4" height="{2 * h}" rx="2" fill="#009E73"/>'
            for i, h in enumerate((5, 11, 20, 13, 24, 15, 8))
        )
        target.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">{bars}</svg>', encoding="utf-8")
    return str(target)


__all__ = ["answer", "begin", "build_ask", "icon_of", "view"]
