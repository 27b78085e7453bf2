"""Messages of a chat as Gradio's Chatbot takes them."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvmm.errors import KVMMError
from kvmm.markdown_text import literal_markdown
from kvmm.samples import kind_of
from kvmm.ui.parts.previews import previews_html

NOT_ASKED = "*not asked*"


def user_messages(question: str, files: Sequence[str], *, links: bool = False) -> list[dict[str, Any]]:
    """Previews of pages and images in one bubble, one bubble for each other file, then the question.

    With ``links`` no file is displayed, because it may not be what it says.
    """
    messages, others = [], list(files)
    pictures = [] if links else [path for path in files if kind_of(path) in ("image", "pdf")]
    if pictures:
        try:
            messages.append({"role": "user", "content": [_html(previews_html(pictures))]})
            others = [path for path in files if path not in pictures]
        except (KVMMError, OSError):  # the answer will say what is wrong
            links = True
    for path in others:
        # The MIME type decides whether the browser shows a player or a link.
        file = {
            "path": path,
            "orig_name": Path(path).name,
            "mime_type": None if links else mimetypes.guess_type(path)[0],
        }
        messages.append({"role": "user", "content": [{"type": "file", "file": file}]})
    if question:
        messages.append({"role": "user", "content": [{"type": "text", "text": literal_markdown(question)}]})
    return messages


def _html(value: str) -> dict[str, Any]:
    """A block of HTML in a chat; what is written for it is trusted."""
    return {"type": "component", "component": "html", "value": value, "constructor_args": {}, "props": {"value": value}}


def bubble(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def note(title: str, text: str, *, pending: bool = False) -> dict[str, Any]:
    """A closed, collapsible note under an answer; with ``pending`` it spins until it is replaced."""
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "metadata": {"title": title, "status": "pending" if pending else "done"},
    }


__all__ = ["NOT_ASKED", "bubble", "note", "user_messages"]
