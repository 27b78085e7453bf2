"""Answers that are compared: what each side has done before it is timed, and what is timed."""

from __future__ import annotations

import threading

import pytest
from PIL import Image

from kvmm.media import Media
from kvmm.models import Conversation, conversation, load_model
from kvmm.models.caches import DYNAMIC
from kvmm.models.warming import WARM_TOKENS, warm_up
from kvmm.ui.chat.session import Session, UserMessage
from kvmm.ui.models import Models
from kvmm.ui.settings import Settings


@pytest.fixture
def calls(monkeypatch):
    """Every answer that is generated: the cache's class, tokens read, whether pages were, the limit, tokens written."""
    found = []

    class Recorded(conversation.Worker):
        def __init__(self, model, cache, prompt, max_new_tokens, stop, *rest, **options):
            super().__init__(model, cache, prompt, max_new_tokens, stop, *rest, **options)
            self.read = prompt.ids.shape[1] - cache.get_seq_length()

        def run(self):
            super().run()
            found.append((type(self.cache).__name__, self.read, self.max_new_tokens))

    monkeypatch.setattr(conversation, "Worker", Recorded)
    return found


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.png"
    Image.new("RGB", (280, 280), "white").save(path)
    return path


def test_both_sides_of_the_app_are_warm_and_read_the_same(calls, page):
    session = Session(Models.of(*load_model(device="cpu")), max_new_tokens=3)
    list(session.ask(UserMessage("What is it?", (str(page), str(page))), Settings(compare=True)))
    caches, read, limits = zip(*calls, strict=True)
    assert caches == ("DynamicCache", "KVMMCache") * 2
    assert limits == (WARM_TOKENS, WARM_TOKENS, 3, 3)
    assert read[0] == read[1] > 60 and read[2] == read[3] > read[0] + 60  # with a page each, then with both
    assert session.talk.same_start
    calls.clear()
    list(session.ask(UserMessage("And now?"), Settings(compare=True)))  # warm already, and both hold the pages
    assert [limit for _, _, limit in calls] == [3, 3] and calls[0][1] == calls[1][1] < 60
    assert session.talk.same_start


def test_a_side_that_reads_everything_again_is_not_timed_beside_the_other(calls, page):
    session = Session(Models.of(*load_model(device="cpu")), max_new_tokens=3)
    list(session.ask(UserMessage("What is it?", (str(page),)), Settings()))
    calls.clear()
    list(session.ask(UserMessage("And now?"), Settings(compare=True)))
    (_, full, _), (_, packed, _) = calls[-2:]
    assert session.talk.same_start == (full == packed)


def test_warming_up_adds_nothing(calls, page):
    model, processor = load_model(device="cpu")
    sides = [Conversation(model, processor, policy) for policy in (DYNAMIC, "kivi2")]
    media = [Media("image", Image.open(page), "page.png")]
    stop = threading.Event()
    stop.set()
    warm_up(sides, media, stop)  # stopped: it is not warm
    warm_up(sides, media)
    assert [cache for cache, _, _ in calls][-2:] == ["DynamicCache", "KVMMCache"]
    assert all(side.cache is None and not side.messages for side in sides)
    calls.clear()
    warm_up(sides, media)
    assert calls == []
    warm_up(sides)  # another kind of prompt
    assert len(calls) == 2
