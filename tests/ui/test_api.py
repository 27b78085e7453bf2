"""The documented endpoints without a browser: what a call leaves behind."""

from __future__ import annotations

import gradio as gr
import pytest

from kvmm.errors import KVMMError
from kvmm.ui import Models
from kvmm.ui.api import build_api
from kvmm.ui.chat.session import Session
from kvmm.ui.server.visitors import Visitors


@pytest.fixture
def visitors(model_and_processor, tmp_path) -> Visitors:
    models = Models.of(*model_and_processor)
    return Visitors(lambda desk: Session(models, desk, max_new_tokens=4), 1 << 40, tmp_path)


@pytest.fixture
def endpoints(visitors) -> dict:
    with gr.Blocks() as demo:
        build_api(visitors, visitors.session().models.names, "kivi4")
    visitors.leave(visitors.sessions[0])
    return {block.api_name: block.fn for block in demo.fns.values()}


@pytest.mark.parametrize("name, step", [("ask", "last"), ("compare", "talk"), ("analyze_norms", "measure_norms")])
@pytest.mark.parametrize("error, raised", [(KVMMError("no"), gr.Error), (RuntimeError("no"), RuntimeError)])
def test_a_call_that_fails_leaves_no_session(visitors, endpoints, monkeypatch, name, step, error, raised):
    original = getattr(Session, step)

    def fail(session: Session) -> object:
        if session._talk.answered:
            raise error
        return original.fget(session)

    monkeypatch.setattr(Session, step, property(fail) if isinstance(original, property) else fail)
    with pytest.raises(raised, match="no"):
        endpoints[name](None, "Write one word.")
    assert visitors.sessions == [] and visitors.cache_nbytes() == 0


def test_a_call_leaves_no_session(visitors, endpoints):
    assert endpoints["ask"](None, "Write one word.")["answer"]
    assert visitors.sessions == []
