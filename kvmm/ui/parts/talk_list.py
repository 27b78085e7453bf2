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
from kvmm.ui.chat.session import Session
from kvmm.ui.parts.events import AT_ONCE, HIDDEN
from kvmm.ui.parts.sidebar import Sidebar
from kvmm.ui.parts.toasts import failure, warn
from kvmm.ui.parts.views import view
from kvmm.ui.server.signing import app_key, check_signature, sign
from kvmm.ui.server.visitors import Visitors, session_of

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
        """The list, and the field for a name; what follows an answer draws the list alone (:func:`listing`)."""
        return [self.talks, self.name]


def listing(session: Session) -> Any:
    """The list as it stands."""
    names = [((talk.title or NEW) + " …" * talk.is_busy, talk.id) for talk in session.talks]
    shown = session.talk.id if session.talk in session.talks else None
    return gr.Radio(names, value=shown, visible=len(names) > 1)


def name_field(session: Session) -> Any:
    """The field for a name: as it is while the conversation that is being named is the open one, else closed."""
    return gr.skip() if session.naming == session.talk.id else gr.Textbox(visible=False)


def build_talk_list(files: bool = True) -> TalkList:
    """Lay it out inside the current context; ``files``: whether conversations can be saved and opened."""
    with gr.Row(elem_id="talk-actions"):
        fresh = gr.Button(NEW, size="sm", elem_id="new-conversation")
        fork = gr.Button("Fork", size="sm", elem_id="fork")
        rename = gr.Button("Rename", size="sm", elem_id="rename")
        delete = gr.Button("Delete", size="sm", elem_id="delete")
        save = gr.Button("Save", size="sm", elem_id="save", visible=files)
        load = gr.UploadButton("Open a saved one", size="sm", elem_id="load", file_types=[".kvmm"], visible=files)
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
        the components that :func:`redraw` returns values of.
    """
    outputs = [session, *shown, box, *parts.outputs]
    events = _Events(visitors, sidebar, outputs)
    for event in (parts.fresh.click, *clears):
        event(events.change(Session.reset), sidebar.compare, outputs, **AT_ONCE)
    parts.fork.click(events.change(Session.fork), sidebar.compare, outputs, **AT_ONCE)
    parts.rename.click(events.ask_name, None, parts.name, **AT_ONCE)
    parts.name.submit(events.give_name, [sidebar.compare, parts.name], outputs, **AT_ONCE)
    parts.delete.click(events.remove, [parts.confirmed, sidebar.compare], outputs, js=CONFIRM, **AT_ONCE)
    parts.save.click(events.write, None, parts.saved, **HIDDEN).success(None, parts.saved, None, js=DOWNLOAD)
    opened = [*outputs, sidebar.model, *sidebar.kept]
    parts.load.upload(events.read, [parts.load, sidebar.compare, sidebar.model], opened, **HIDDEN)
    watch(parts.talks.input(events.go_to, [sidebar.compare, parts.talks], outputs, **AT_ONCE))
    return outputs


class _Events:
    """The events of the list; each returns values of ``outputs`` (:func:`redraw`), if it does not say otherwise."""

    def __init__(self, visitors: Visitors, sidebar: Sidebar, outputs: list[Any]) -> None:
        self.visitors, self.sidebar, self.outputs, self.key = visitors, sidebar, outputs, app_key()

    def change(self, do: Callable[[Session], None]) -> Callable[..., tuple[Any, ...]]:
        """An event that changes which conversation is open, or the list; an error is a toast."""

        def event(compare: bool, request: gr.Request) -> tuple[Any, ...]:
            state = session_of(self.visitors, request)
            try:
                do(state)
            except KVMMError as error:
                warn(error)
                if not state.is_gone:
                    return (gr.skip(),) * len(self.outputs)
            return redraw(state, compare)

        return event

    def go_to(self, compare: bool, talk_id: str | None, request: gr.Request) -> tuple[Any, ...]:
        if talk_id is None:
            return (gr.skip(),) * len(self.outputs)
        state = session_of(self.visitors, request)
        try:
            state.open(talk_id)
        except KVMMError as error:
            warn(error)
        return redraw(state, compare)

    def remove(self, confirmed: bool, compare: bool, request: gr.Request) -> tuple[Any, ...]:
        def delete(state: Session) -> None:
            files = state.talk.files
            state.delete()
            self.visitors.discard(state, files)

        return self.change(delete)(compare, request) if confirmed else (gr.skip(),) * len(self.outputs)

    def ask_name(self, request: gr.Request) -> Any:
        state = session_of(self.visitors, request)
        if state.talk.is_empty:
            warn("Ask a question first: then the conversation can have a name.", 5)
            return gr.skip()
        state.naming = state.talk.id
        return gr.Textbox(value=state.talk.title, visible=True, autofocus=True)

    def give_name(self, compare: bool, title: str, request: gr.Request) -> tuple[Any, ...]:
        return self.change(lambda state: state.give_name(title))(compare, request)

    def write(self, request: gr.Request) -> Any:
        try:
            path = save_file(self.visitors, session_of(self.visitors, request), self.key)
        except KVMMError as error:
            raise failure(error) from error
        app = LocalContext.blocks.get(None)
        if line := too_large(path, None if app is None else app.max_file_size):
            warn(line, 10)
        return gr.DownloadButton(value=str(path))

    def read(self, path: str | None, compare: bool, model: str, request: gr.Request) -> tuple[Any, ...]:
        state = session_of(self.visitors, request)
        try:
            check_signature(path, self.key)
            settings = state.load(path, model)
        except KVMMError as error:
            warn(str(error).replace(path, Path(path).name) if path else error, 8)  # not where it is on the server
            return (gr.skip(),) * (len(self.outputs) + 1 + len(self.sidebar.kept))
        finally:
            self.visitors.discard_upload(path)  # what it held is in memory
        self.visitors.keep_budget()
        return *redraw(state, compare), settings.model or model, *self.sidebar.values(settings)


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
    """A warning about a saved file that is too large for this app to open again; empty if it is not.

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
    """Values of all components of the open conversation; text in the box stays, and a name that is being typed."""
    session.leave_deleted()
    busy = session.is_busy
    box = gr.MultimodalTextbox(submit_btn=not busy, stop_btn=busy)
    return session, *view(session.talk, compare), box, listing(session), name_field(session)


__all__ = [
    "NEW",
    "TalkList",
    "build_talk_list",
    "connect_talk_list",
    "listing",
    "name_field",
    "redraw",
    "save_file",
    "too_large",
]
