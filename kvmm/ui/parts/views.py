"""Values of the Ask tab's components: for a conversation at rest, and frame by frame during an answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from kvmm.analysis.plots import memory_by_modality, memory_over_tokens
from kvmm.models.generation import Reading
from kvmm.models.progress import Progress
from kvmm.ui.chat.session import Session
from kvmm.ui.chat.streaming import Answer
from kvmm.ui.chat.talk import Talk
from kvmm.ui.parts.answers import stats_html, thumbnails_html, verdict_html
from kvmm.ui.parts.logprobs import logprobs_html

PLOT_SECONDS = 0.5  # between two updates of the plots, which cost the browser more than the text

Frame = tuple[Any, ...]  # full, kvmm, reading, verdict, logprobs, stats, growth, bars, thumbnails
FRAME_SIZE = 9


def reading_html(reading: Reading | None, side: str = "kvmm") -> str:
    """A line and a bar: which page is being read. Empty once the answer begins."""
    if reading is None:
        return ""
    what = f"page {reading.page} of {reading.pages}" if reading.pages else "the prompt"
    line = f"Full precision reads {what}" if side == "full" else f"Reading {what}"
    share = 100 * reading.share
    return (
        f'<div class="reading" role="progressbar" aria-valuenow="{share:.0f}" aria-valuemin="0" aria-valuemax="100" '
        f'aria-label="{line}"><span>{line}</span><div class="bar"><i style="width:{share:.1f}%"></i></div></div>'
    )


def view(talk: Talk, compare: bool) -> Frame:
    """Values of the components for a conversation at rest."""
    last = talk.last.get("kvmm")
    memory = None if last is None else last.memory
    verdict = verdict_html(talk.verdict)
    tokens = logprobs_html(talk.last)
    chats = talk.chats
    return (
        gr.Chatbot(chats["full"], visible=compare),
        chats["kvmm"],
        _reading(talk.answer),
        gr.HTML(verdict, visible=bool(verdict)),
        gr.HTML(tokens, visible=bool(tokens)),
        "" if talk.models.remote and last is None else _stats(last, talk.last.get("full"), talk, talk.answered_by),
        gr.Plot(memory_over_tokens(talk.growth) if talk.growth else None, visible=bool(talk.growth)),
        gr.Plot(memory_by_modality(memory) if memory else None, visible=memory is not None),
        thumbnails_html(talk.media),
    )


def frames(session: Session) -> Iterator[Frame]:
    """Stream what :func:`view` shows while the open conversation is being answered; its answer is started if need be.

    It ends early when this page goes to another conversation.
    """
    talk = session.talk
    answer = talk.answer
    if answer is None or answer.done:
        yield (gr.skip(),) * FRAME_SIZE
        return
    compare = answer.settings.compare
    answer.start()
    by = answer.settings.answered_by(talk.models.default, bool(talk.models.remote))
    shown_plot = 0.0
    for _ in answer.watch():
        if session.talk is not talk or talk.answer is not answer:
            return
        progress, growth, bars = answer.last.get("kvmm"), gr.skip(), gr.skip()
        measured = progress is not None and progress.memory is not None
        if measured and time.monotonic() - shown_plot > PLOT_SECONDS:
            shown_plot = time.monotonic()
            growth = gr.Plot(memory_over_tokens(talk.growth), visible=True) if talk.growth else gr.skip()
            bars = gr.Plot(memory_by_modality(progress.memory), visible=True)
        told = measured or (progress is not None and (progress.key_norms or progress.usage) is not None)
        stats = _stats(progress, answer.last.get("full"), talk, by) if told else gr.skip()
        chats = talk.chats
        full = chats["full"] if compare else gr.skip()
        nothing = gr.HTML("", visible=False)
        yield full, chats["kvmm"], _reading(answer), nothing, nothing, stats, growth, bars, gr.skip()
    if session.talk is talk:
        yield view(talk, compare)


def _stats(progress: Progress | None, full: Progress | None, talk: Talk, by: str) -> str:
    return stats_html(progress, full, talk.same_start, by)


def _reading(answer: Answer | None) -> Any:
    shown = "" if answer is None else reading_html(answer.reading, answer.side)
    return gr.HTML(shown, visible=bool(shown))


__all__ = ["FRAME_SIZE", "Frame", "frames", "reading_html", "view"]
