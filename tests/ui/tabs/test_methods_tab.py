"""Tab "Methods" without a browser: what the visitor can press afterwards."""

from __future__ import annotations

from types import SimpleNamespace

from kvmm.ui import Models, build_demo
from kvmm.ui.chat.session import Session, UserMessage
from kvmm.ui.settings import Settings
from kvmm.ui.tabs import methods


def test_the_buttons_come_back_when_the_conversation_was_deleted_meanwhile(
    model_and_processor, samples_folder, monkeypatch
):
    models = Models.of(*model_and_processor)
    demo = build_demo(models, samples_folder=samples_folder)
    inside = {f.fn.__name__: f.fn for f in demo.fns.values() if getattr(f.fn, "__module__", "") == methods.__name__}
    session = Session(models, max_new_tokens=4)
    list(session.ask(UserMessage("Write one word."), Settings(policy="kivi4")))

    def deleted_meanwhile(*args, **kwargs):
        session.delete()
        yield SimpleNamespace(rows=[], total=2, done=False)

    monkeypatch.setattr(methods, "iter_methods", deleted_meanwhile)
    assert inside["wait"](session)[1].visible
    *_, last = inside["compare"](session, ["kivi4", "kivi2"])
    start, stop, as_csv, as_json, line = last[:5]
    assert start.visible and not stop.visible and not as_csv.visible and not as_json.visible and line == ""
