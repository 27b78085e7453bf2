"""Put the page together: header, tabs, sessions, the documented ``ask`` endpoint, and how to launch it."""

from __future__ import annotations

import html
import tempfile
import weakref
from pathlib import Path
from typing import Any

import gradio as gr

from kvmm import policies
from kvmm.errors import KVMMError
from kvmm.ui.ask import build_ask, icon_of
from kvmm.ui.norms import build_norms
from kvmm.ui.samples import SAMPLES, load_samples
from kvmm.ui.session import Session, Turn
from kvmm.ui.theme import CSS_PATH, HEAD, header, theme

IDLE_SECONDS = 30 * 60  # a conversation nobody continues is dropped, and its cache with it
UPLOAD_SECONDS = 60 * 60  # age at which uploads are deleted; later than the conversation that shows them
MAX_FILE_SIZE = "50mb"
QUEUE_SIZE = 32


def build_demo(
    model: Any,
    processor: Any,
    *,
    policy: str = "balanced",
    model_name: str = "tiny-omni",
    max_pages: int | None = None,
    max_new_tokens: int = 256,
    samples_folder: Path = SAMPLES,
) -> gr.Blocks:
    """The app for one model, ready for ``queue`` and ``launch(**launch_options())``.

    Every visitor gets a :class:`~kvmm.ui.session.Session` of their own, made at their first question and dropped when
    their tab closes or after half an hour without a question. The model answers one question at a time.

    Args:
        model, processor: as :func:`kvmm.load_model` returns them.
        policy: preset that is selected first.
        model_name: shown in the header.
        max_pages: most pages taken from one PDF; ``None`` for the limit in :mod:`kvmm.media`.
        max_new_tokens: length limit of an answer.
        samples_folder: where ``samples.json`` is.

    Raises:
        KVMMError: ``policy`` is not a preset.
    """
    if policy not in policies():
        raise KVMMError(f"unknown policy {policy!r}: use one of {', '.join(policies())}")
    visitors: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()

    def new_session(request: gr.Request | None = None) -> Session:
        session = Session(model, processor, max_new_tokens=max_new_tokens, max_pages=max_pages)
        if request is not None and request.session_hash:
            visitors[request.session_hash] = session
        return session

    def leave(request: gr.Request) -> None:
        session = visitors.pop(request.session_hash, None)
        if session is not None:
            session.close()

    def ask(files: list[gr.FileData], question: str, policy: str = policy) -> dict:
        """Ask a question about images, PDFs and recordings, with a KV cache of one to two bits a value.

        Args:
            files: uploaded images, PDF documents or recordings.
            question: the question; empty when a recording asks it.
            policy: name of a cache policy, such as "balanced" or "small".

        Returns:
            The answer with the measured memory: answer, policy, memory, tokens, tokens_per_second, ttft.
        """
        if policy not in policies():
            raise gr.Error(f"unknown policy {policy!r}: use one of {', '.join(policies())}", print_exception=False)
        session = Session(model, processor, max_new_tokens=max_new_tokens, max_pages=max_pages)
        try:
            for _ in session.ask(Turn(question.strip(), tuple(file["path"] for file in files)), policy):
                pass
        except KVMMError as error:
            raise gr.Error(str(error), print_exception=False) from error
        last = session.last
        return {
            "answer": last.text,
            "policy": policy,
            "memory": last.memory.to_dict(),
            "tokens": last.tokens,
            "tokens_per_second": last.tokens_per_second,
            "ttft": last.ttft,
        }

    samples = load_samples(samples_folder)
    icons = tempfile.TemporaryDirectory(prefix="kvmm-icons-")
    parameter = next(model.parameters())
    device = f"{parameter.device.type.upper()} · {str(parameter.dtype).removeprefix('torch.')}"
    demo = gr.Blocks(title="kvmm", analytics_enabled=False, delete_cache=(600, UPLOAD_SECONDS), fill_width=True)
    demo.icons_folder = icons  # lives, and is deleted, with the app
    with demo:
        session = gr.State(None, time_to_live=IDLE_SECONDS, delete_callback=lambda s: s.close() if s else None)
        gr.HTML(header(html.escape(model_name), html.escape(device)), padding=False)
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab("Ask", id="ask"):
                build_ask(
                    new_session,
                    session,
                    samples,
                    {s.title: icon_of(s.files[0], s.kind, Path(icons.name)) for s in samples},
                    policy,
                )
            with gr.Tab("Token norms", id="norms") as norms_tab:
                layers = model.config.get_text_config(decoder=True).num_hidden_layers
                build_norms(session, norms_tab, layers)
        demo.unload(leave)
        gr.api(ask, api_name="ask", concurrency_id="model", concurrency_limit=1)
    return demo.queue(max_size=QUEUE_SIZE)


def launch_options(samples_folder: Path = SAMPLES) -> dict[str, Any]:
    """Arguments of ``launch`` that belong to the app: look, limits, no history, no analytics, no outside resources."""
    return {
        "theme": theme(),
        "css_paths": CSS_PATH,
        "head": HEAD,
        "allowed_paths": [str(samples_folder)],
        "max_file_size": MAX_FILE_SIZE,
        "run_history": False,
        "footer_links": ["api"],
        "share": False,
        "ssr_mode": False,
        "enable_monitoring": False,
    }
