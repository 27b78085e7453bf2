"""The conversations of a visitor: the list, and the buttons that make, branch, name, delete, save and open them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.context import LocalContext

from kvmm.errors import KVMMError
from kvmm.ui.session import Session
from kvmm.ui.sidebar import Sidebar
from kvmm.ui.signing import app_key, check_signature, sign
from kvmm.ui.toasts import failure, warn
from kvmm.ui.views import view
from kvmm.ui.visitors import Visitors, session_of

NEW = "New conversation"
DOWNLOAD = """(file) => {
  const link = document.createElement('a');
  link.href = file.url; link.download = file.orig_name; link.click();
}"""
CONFIRM = """(...values) => [
  window.confirm('Delete this conversation with everything in it?'), ...values.slice(1)]"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TalkList:
    """The components of the list."""

    fresh: gr.Button
    fork: gr.Button
    save: gr.Button
    load: gr.UploadButton
    rename: gr.Button
    delete: gr.Button
    saved: gr.DownloadButton
    talks: gr.Radio
    name: gr.Textbox
    confirmed: gr.Checkbox

    @property
    def outputs(self) -> list[Any]:
        """The components whose values :func:`listing` returns."""
        return [self.talks, self.name]


def listing(session: Session) -> tuple[Any, Any]:
    """The list as it stands, and the field for a name closed."""
    names = [((talk.title or NEW) + " …" * talk.is_busy, talk.id) for talk in session.talks]
    shown = session.talk.id if session.talk in session.talks else None
    radio = gr.Radio(names, value=shown, visible=len(names) > 1)
    return radio, gr.Textbox(visible=False)


def build_talk_list() -> TalkList:
    """Lay it out inside the current context."""
    with gr.Row(elem_id="talk-actions"):
        fresh = gr.Button(NEW, size="sm", elem_id="new-conversation")
        fork = gr.Button("Fork", size="sm", elem_id="fork")
        rename = gr.Button("Rename", size="sm", elem_id="rename")
        delete = gr.Button("Delete", size="sm", elem_id="delete")
        save = gr.Button("Save", size="sm", elem_id="save")
        load = gr.UploadButton("Open a saved one", size="sm", elem_id="load", file_types=[".kvmm"])
        saved = gr.DownloadButton("Saved", elem_id="saved", visible="hidden")
        confirmed = gr.Checkbox(False, visible=False)
    name = gr.Textbox(
        label="Name of this conversation",
        elem_id="rename-box",
        visible=False,
        max_lines=1,
        info="Press Enter to keep it.",
    )
    talks = gr.Radio([], label="Your conversations", elem_id="talks", visible=False)
    return TalkList(fresh, fork, save, load, rename, delete, saved, talks, name, confirmed)


def connect_talk_list(
    parts: TalkList,
    visitors: Visitors,
    session: gr.State,
    sidebar: Sidebar,
    shown: list[Any],
    box: gr.MultimodalTextbox,
    clears: list[Callable[..., Any]],
    watch: Callable[[Any], Any],
) -> list[Any]:
    """Connect the buttons.

    Args:
        shown: the components of :func:`view`.
        box: where questions are typed; what is in it stays.
        clears: events of the chats that begin a new conversation.
        watch: continues an event by following the open conversation's answer, if one is being written.

    Returns:
        the components whose values :func:`redraw` returns.
    """
    private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    at_once: dict[str, Any] = {**private, "queue": False}
    everything = [session, *shown, box, *parts.outputs]
    key = app_key()

    def change(do: Callable[[Session], None]) -> Callable[..., tuple[Any, ...]]:
        """An event that changes which conversation is open, or the list; an error is a toast."""

        def event(compare: bool, request: gr.Request) -> tuple[Any, ...]:
            state = session_of(visitors, request)
            try:
                do(state)
            except KVMMError as error:
                warn(error)
                if not state.is_gone:
                    return (gr.skip(),) * len(everything)
            return redraw(state, compare)

        return event

    def go_to(compare: bool, talk_id: str | None, request: gr.Request) -> tuple[Any, ...]:
        if talk_id is None:
            return (gr.skip(),) * len(everything)
        state = session_of(visitors, request)
        try:
            state.open(talk_id)
        except KVMMError as error:
            warn(error)
        return redraw(state, compare)

    def remove(confirmed: bool, compare: bool, request: gr.Request) -> tuple[Any, ...]:
        def delete(state: Session) -> None:
            files = state.talk.files
            state.delete()
            visitors.discard(state, files)

        return change(delete)(compare, request) if confirmed else (gr.skip(),) * len(everything)

    def ask_name(request: gr.Request) -> Any:
        state = session_of(visitors, request)
        if state.talk.is_empty:
            warn("Ask a question first: then the conversation can have a name.", 5)
            return gr.skip()
        return gr.Textbox(value=state.talk.title, visible=True, autofocus=True)

    def give_name(compare: bool, title: str, request: gr.Request) -> tuple[Any, ...]:
        return change(lambda state: state.rename(title))(compare, request)

    def write(request: gr.Request) -> Any:
        try:
            path = save_file(visitors, session_of(visitors, request), key)
        except KVMMError as error:
            raise failure(error) from error
        app = LocalContext.blocks.get(None)
        if line := too_large(path, None if app is None else app.max_file_size):
            warn(line, 10)
        return gr.DownloadButton(value=str(path))

    def read(path: str | None, compare: bool, model: str, request: gr.Request) -> tuple[Any, ...]:
        state = session_of(visitors, request)
        try:
            check_signature(path, key)
            settings = state.load(path, model)
        except KVMMError as error:
            warn(error, 8)
            return (gr.skip(),) * (len(everything) + len(sidebar.policies))
        finally:
            visitors.discard_upload(path)  # what it held is in memory
        visitors.keep_budget()
        return *redraw(state, compare), *sidebar.values(settings)

    for event in (parts.fresh.click, *clears):
        event(change(Session.reset), sidebar.compare, everything, **at_once)
    parts.fork.click(change(Session.fork), sidebar.compare, everything, **at_once)
    parts.rename.click(ask_name, None, parts.name, **at_once)
    parts.name.submit(give_name, [sidebar.compare, parts.name], everything, **at_once)
    parts.delete.click(remove, [parts.confirmed, sidebar.compare], everything, js=CONFIRM, **at_once)
    parts.save.click(write, None, parts.saved, **private).success(None, parts.saved, None, js=DOWNLOAD)
    parts.load.upload(read, [parts.load, sidebar.compare, sidebar.model], [*everything, *sidebar.policies], **private)
    watch(parts.talks.input(go_to, [sidebar.compare, parts.talks], everything, **at_once))
    return everything


def save_file(visitors: Visitors, session: Session, key: bytes) -> Path:
    """Write the open conversation to a signed file; the visitor's last one is deleted.

    Raises:
        KVMMError: there is nothing to save, or an answer is being written.
    """
    if session.talk.is_empty:
        raise KVMMError("There is nothing to save yet: ask a question first.")
    name = re.sub(r"[^\w-]+", "-", session.talk.title).strip("-") or "conversation"
    path = visitors.saving_folder(session) / f"{name}.kvmm"
    session.save(path)
    sign(path, key)
    return path


def too_large(path: Path, limit: int | None) -> str:
    """What a visitor should know about a saved file that this app would not take back; empty if it does.

    Args:
        path: the file.
        limit: bytes of the largest upload, None without a limit.
    """
    size = path.stat().st_size
    if limit is None or size <= limit:
        return ""
    return (
        f"The saved file has {size / 2**20:.1f} MiB, and this app opens files of at most {limit / 2**20:.1f} MiB. "
        f"To open it again, start the app with --max-upload {-(-size // 2**20)} or more."
    )


def redraw(session: Session, compare: bool) -> tuple[Any, ...]:
    """Everything on the page that belongs to the open conversation; what is typed in the box stays."""
    session.leave_deleted()
    busy = session.is_busy
    box = gr.MultimodalTextbox(submit_btn=not busy, stop_btn=busy)
    return session, *view(session.talk, compare), box, *listing(session)


__all__ = ["NEW", "TalkList", "build_talk_list", "connect_talk_list", "listing", "redraw", "save_file", "too_large"]
