"""Tab "Ask": the chat, the comparison with full precision, and what the cache costs while the answer streams."""

from __future__ import annotations

import html
import logging
import mimetypes
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from kvmm import policies
from kvmm.analysis.plots import format_bytes, memory_by_modality
from kvmm.errors import KVMMError
from kvmm.models.conversation import Progress
from kvmm.ui.samples import Sample, kind_of
from kvmm.ui.session import Difference, Session, Turn, first_difference

TEXT_SECONDS = 0.06  # between two updates of the text ...
PLOT_SECONDS = 0.5  # ... and of the plot, which costs the browser more
FILE_TYPES = ["image", "audio", ".pdf"]
WELCOME = "### What is on your page?\nDrop an image, a PDF or a recording below and ask, or take one of these."

logger = logging.getLogger(__name__)


# -- what is shown -----------------------------------------------------------------------------------------------


def escape_markdown(text: str) -> str:
    """``text`` so that a chat bubble shows it as it is: names and messages are data, not markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", text)


def user_messages(turn: Turn, *, links: bool = False) -> list[dict[str, Any]]:
    """One bubble a file, then the question. With ``links`` no file is displayed, because it may not be what it says."""
    messages = []
    for path in turn.files:
        # The MIME type decides whether the browser shows a picture, a player or a link.
        file = {
            "path": path,
            "orig_name": Path(path).name,
            "mime_type": None if links else mimetypes.guess_type(path)[0],
        }
        messages.append({"role": "user", "content": [{"type": "file", "file": file}]})
    if turn.question:
        messages.append({"role": "user", "content": [{"type": "text", "text": escape_markdown(turn.question)}]})
    return messages


def bubble(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def note(title: str, text: str) -> dict[str, Any]:
    """A closed, collapsible note under an answer."""
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "metadata": {"title": title, "status": "done"},
    }


def memory_note(progress: Progress) -> dict[str, Any] | None:
    """ "KV 412 KiB -> 38 KiB" with the table by modality inside."""
    report = progress.memory
    if report is None:
        return None
    rows = "\n".join(
        f"| {name} | {row['tokens']:,} | {format_bytes(row['nbytes_dense'])} | {format_bytes(row['nbytes'])} "
        f"| {row['bits_per_value']:.2f} |"
        for name, row in report.by_modality.items()
        if row["tokens"]
    )
    parts = ", ".join(f"{name} {format_bytes(n)}" for name, n in report.by_component.items() if n)
    return note(
        f"KV {format_bytes(report.nbytes_dense)} → {format_bytes(report.nbytes)}",
        f"| modality | tokens | bf16 | kvmm | bits a value |\n| --- | ---: | ---: | ---: | ---: |\n{rows}\n\n"
        f"Stored: {parts}. {progress.tokens} tokens in {progress.seconds:.2f} s.",
    )


def stats_html(progress: Progress | None, full: Progress | None = None) -> str:
    """The strip of figures. Before the first answer it says what will be there."""
    if progress is None or progress.memory is None:
        return '<div class="hint">The cache is measured while an answer streams: bytes, bits a value, speed.</div>'
    report = progress.memory
    share = min(100 * report.nbytes / max(report.nbytes_dense, 1), 100)
    packed, dense = format_bytes(report.nbytes), format_bytes(report.nbytes_dense)
    speed = f"{progress.tokens_per_second:.1f}"
    ttft = "…" if progress.ttft is None else f"{progress.ttft:.2f} s"
    beside = {"speed": "", "ttft": ""}
    if full is not None:
        beside["speed"] = f"<small>full precision {full.tokens_per_second:.1f}</small>"
        beside["ttft"] = "" if full.ttft is None else f"<small>full precision {full.ttft:.2f} s</small>"
    return f"""
<div class="stats" id="stats">
  <div class="stat wide"><span>KV cache</span><strong data-stat="kv">{packed}</strong>
    <div class="bar"><i style="width:{share:.1f}%"></i></div><small>of {dense} in bf16</small></div>
  <div class="stat"><span>Smaller by</span><strong data-stat="ratio">{report.ratio:.1f}×</strong></div>
  <div class="stat"><span>Bits a value</span><strong data-stat="bits">{report.bits_per_value:.2f}</strong></div>
  <div class="stat"><span>Tokens a second</span><strong data-stat="speed">{speed}</strong>{beside["speed"]}</div>
  <div class="stat"><span>First token after</span><strong data-stat="ttft">{ttft}</strong>{beside["ttft"]}</div>
</div>"""


def verdict_html(difference: Difference | None) -> str:
    if difference is None:
        return ""
    if difference.index is None:
        words = "1 word" if difference.words == 1 else f"{difference.words} words"
        text = f"<b>Identical</b><span>{words}, the same as full precision</span>"
        return f'<div class="verdict same" id="verdict">{text}</div>'

    def word(text: str) -> str:
        return f"<code>{html.escape(text)}</code>" if text else "the end of the answer"

    return (
        f'<div class="verdict differs" id="verdict"><b>Differs</b><span>from word {difference.index}: '
        f"full precision has {word(difference.full)}, kvmm {word(difference.kvmm)}</span></div>"
    )


def policy_html(name: str) -> str:
    return f'<div class="policy-line">{html.escape(policies()[name])}</div>'


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
        chat.extend(user_messages(session.turn))
    return True


def answer(session: Session, policy: str, compare: bool) -> Iterator[tuple[Any, Any, Any, Any, Any]]:
    """Stream ``(chat-full, chat-kvmm, verdict, stats, plot)``; the session's chats are complete when it ends."""
    turn, epoch = session.turn, session.epoch
    if turn is None:  # refused, or a new conversation began while this one waited for the model
        yield (gr.skip(),) * 5
        return
    session.turn, session.running = None, True
    heads = {side: len(chat) for side, chat in session.chats.items()}
    last: dict[str, Progress] = {}
    shown_text = shown_plot = 0.0

    def show(side: str, *tail: dict[str, Any]) -> None:
        session.chats[side][heads[side] :] = tail

    def frame(verdict: Any = None, *, final: bool = False) -> tuple[Any, Any, Any, Any, Any]:
        nonlocal shown_plot
        progress, plot = last.get("kvmm"), gr.skip()
        if progress and progress.memory and (final or time.monotonic() - shown_plot > PLOT_SECONDS):
            shown_plot = time.monotonic()
            plot = gr.Plot(memory_by_modality(progress.memory), visible=True)
        stats = stats_html(progress, last.get("full")) if progress else gr.skip()
        full = session.chats["full"] if compare else gr.skip()
        said = gr.skip() if verdict is None else gr.HTML(verdict, visible=bool(verdict))
        return full, session.chats["kvmm"], said, stats, plot

    try:
        yield frame("")
        for step in session.ask(turn, policy, compare=compare):
            if session.epoch != epoch:
                return
            progress = last[step.side] = step.progress
            tail = [note("Earlier pages read again", f"With {policy}, from the start.")] if step.reread else []
            text = progress.text
            if progress.stopped:
                text = f"{text} *stopped*" if text else "*stopped*"
            if progress.done:
                # The cache of a stopped answer is dropped, so there is nothing to note.
                tail += [bubble(text), None if progress.stopped else memory_note(progress)]
            elif text:
                tail.append(bubble(text))
            show(step.side, *filter(None, tail))
            if progress.done or time.monotonic() - shown_text > TEXT_SECONDS:
                shown_text = time.monotonic()
                yield frame()
        if session.epoch != epoch:
            return
        both = compare and "full" in last and not (last["full"].stopped or last["kvmm"].stopped)
        verdict = verdict_html(first_difference(last["full"].text, last["kvmm"].text)) if both else ""
        if not compare:
            # The full-precision column is hidden; this keeps the turn's place for when it is shown.
            show("full", bubble("*not asked*"))
        yield frame(verdict, final=True)
    except KVMMError as error:
        sent = user_messages(turn, links=True)
        for side, chat in session.chats.items():
            chat[heads[side] - len(sent) : heads[side]] = sent
        for side in session.chats:
            show(side, bubble(f"⚠️ {escape_markdown(str(error))}"))
        yield frame("")
    except Exception:
        logger.exception("an answer failed")
        for side in session.chats:
            show(side, bubble("⚠️ The server could not answer this. The conversation is kept; try again."))
        yield frame("")
    finally:
        if session.epoch == epoch:
            session.running = False


def build_ask(
    new_session: Any, session: gr.State, samples: list[Sample], icons: dict[str, str], default_policy: str
) -> dict[str, Any]:
    """Lay out the tab inside the current context, connect it, and return the components other parts need."""
    names = policies()
    with gr.Row(equal_height=False):
        with gr.Column(scale=8, min_width=340):
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
                    label=f"kvmm · {default_policy}",
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
            fresh = gr.Button("New conversation", size="sm", elem_id="new-conversation")
        with gr.Column(scale=4, min_width=300):
            policy = gr.Dropdown(
                list(names), value=default_policy, label="Cache policy", elem_id="policy", filterable=False
            )
            line = gr.HTML(policy_html(default_policy), elem_id="policy-line", padding=False)
            compare = gr.Checkbox(False, label="Compare with full precision", elem_id="compare", container=False)
            stats = gr.HTML(stats_html(None), elem_id="stats-box", padding=False)
            plot = gr.Plot(label="KV memory by modality", elem_id="memory-plot", visible=False)

    private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    at_once: dict[str, Any] = {**private, "queue": False}

    def start(message: Any, state: Session | None, request: gr.Request) -> tuple[Any, ...]:
        state = state or new_session(request)
        if not begin(message, state):
            return state, gr.skip(), gr.skip(), gr.skip()
        waiting = gr.MultimodalTextbox(value=None, submit_btn=False, stop_btn=True)
        return state, state.chats["full"], state.chats["kvmm"], waiting

    def start_sample(state: Session | None, event: gr.SelectData, request: gr.Request) -> tuple[Any, ...]:
        # The browser sends the example's place only; the files are named here, so it cannot ask for other paths.
        sample = samples[int(event.index)]
        return start({"text": sample.question, "files": [str(path) for path in sample.files]}, state, request)

    def ready(state: Session | None) -> Any:
        if state is not None and (
            state.turn is not None or state.running
        ):  # a new conversation has already asked its first question
            return gr.skip()
        return gr.MultimodalTextbox(submit_btn=True, stop_btn=False)

    def clear(state: Session | None) -> tuple[Any, ...]:
        if state is not None:
            state.reset()
        box_value = gr.MultimodalTextbox(value=None, submit_btn=True, stop_btn=False)
        return (
            state,
            [],
            [],
            gr.HTML("", visible=False),
            stats_html(None),
            gr.Plot(value=None, visible=False),
            box_value,
        )

    def stop(state: Session | None) -> None:
        if state is not None:
            state.stop.set()

    def connect(event: Any, fn: Any, inputs: list[Any]) -> None:
        event(fn, inputs, [session, full, chat, box], concurrency_limit=None, **private).success(
            answer,
            [session, policy, compare],
            [full, chat, verdict, stats, plot],
            concurrency_id="model",
            concurrency_limit=1,
            **private,
        ).then(ready, session, box, **at_once)

    connect(box.submit, start, [box, session])
    connect(chat.example_select, start_sample, [session])
    box.stop(stop, session, None, **at_once)
    for event in (fresh.click, chat.clear, full.clear):
        event(clear, session, [session, full, chat, verdict, stats, plot, box], **at_once)
    policy.change(lambda name: (policy_html(name), gr.Chatbot(label=f"kvmm · {name}")), policy, [line, chat], **at_once)
    compare.change(
        lambda on, state: gr.Chatbot(visible=on, value=state.chats["full"] if state else []),
        [compare, session],
        full,
        **at_once,
    )
    return {"policy": policy, "chat": chat, "box": box}


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


__all__ = ["answer", "begin", "build_ask", "icon_of", "kind_of"]
