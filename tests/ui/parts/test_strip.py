"""The strip of key norms beside the answer: its pictures, its size, its share of the time, and that it is live."""

from __future__ import annotations

import base64
import io
import re
import time

import numpy as np
import pytest
from PIL import Image

from kvmm.analysis.plots import MODALITY_COLORS
from kvmm.cache.key_norms import KeyNormRecorder, KeyNorms
from kvmm.media import load_media
from kvmm.modality import IMAGE, TEXT
from kvmm.models import Conversation
from kvmm.ui.parts import strip
from kvmm.ui.parts.strip import ANSWER_COLOR, MAX_COLUMNS, MAX_ROWS, strip_html
from tests.ui.conftest import drawn_width

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect


def norms(layers: int, tokens: int, answer: int = 0) -> KeyNorms:
    key = np.random.default_rng(0).uniform(1, 2, (layers, tokens)).astype(np.float16)
    modality = np.full(tokens, IMAGE, np.int8)
    modality[:4] = modality[-answer - 4 :] = TEXT
    return KeyNorms(tuple(range(layers)), key, modality, answer)


def pictures(page: str) -> list[np.ndarray]:
    found = re.findall(r"data:image/png;base64,([^\"]+)", page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]


def rgb(color: str) -> list[int]:
    return list(bytes.fromhex(color.removeprefix("#")))


def test_a_column_is_a_token_and_a_row_a_layer():
    given = norms(3, 40, answer=5)
    given.key[1, 20] = 50.0  # one token stands out in one layer
    given.key[2, 30] = np.nan
    ribbon, cells = pictures(strip_html(given))
    assert ribbon.shape == (1, 40, 3) and cells.shape == (3, 40, 3)
    assert ribbon[0, 0].tolist() == rgb(MODALITY_COLORS["text"])
    assert ribbon[0, 20].tolist() == rgb(MODALITY_COLORS["image"])
    assert ribbon[0, -1].tolist() == rgb(ANSWER_COLOR) and ribbon[0, -6].tolist() == rgb(MODALITY_COLORS["text"])
    assert cells[1, 20].tolist() == rgb(strip._CIVIDIS[-1]), "the brightest"
    assert cells[0, 30].tolist() == list(strip._NO_NORM), "the last layer is on top, and has no norm there"


def test_long_prompts_of_many_layers_stay_small():
    given = norms(28, 32_000)
    given.key[0, 12_345] = 60.0
    page = strip_html(given)
    ribbon, cells = pictures(page)
    assert cells.shape == (MAX_ROWS, MAX_COLUMNS, 3) and ribbon.shape == (1, MAX_COLUMNS, 3)
    column = 12_345 * MAX_COLUMNS // 32_000
    assert cells[-1, column].tolist() == rgb(strip._CIVIDIS[-1]), "a bin shows its largest norm"
    assert len(page) < 12_000 and "about 125.0 per column" in page and "32,000 tokens" in page


def test_nothing_before_there_is_something():
    assert strip_html(None) == strip_html(KeyNorms()) == ""


def test_it_takes_less_than_two_hundredths_of_an_answer(model_and_processor, invoice, monkeypatch):
    spent = []

    def timed(function):
        def call(*args):
            begin = time.thread_time()
            try:
                return function(*args)
            finally:
                spent.append(time.thread_time() - begin)

        return call

    monkeypatch.setattr(KeyNormRecorder, "collect", timed(KeyNormRecorder.collect))
    conversation = Conversation(*model_and_processor, "balanced", key_norms=True)
    draw, begin = timed(strip_html), time.process_time()
    lengths = []
    for progress in conversation.ask("What is the total?", load_media(invoice), max_new_tokens=48):
        draw(progress.key_norms)
        lengths.append(0 if progress.key_norms is None else len(progress.key_norms))
    total = time.process_time() - begin
    assert len(progress.key_norms) > 300 and lengths == sorted(lengths)
    assert progress.key_norms.answer == progress.tokens - 1 and np.isfinite(progress.key_norms.key).all()
    assert sum(spent) < 0.02 * total, (sum(spent), total)


def test_conversations_record_nothing_by_default(model_and_processor):
    conversation = Conversation(*model_and_processor, "balanced")
    *_, last = conversation.ask("What is it?", max_new_tokens=4)
    assert last.key_norms is None


def test_a_fork_and_a_second_question_go_on(model_and_processor, invoice):
    conversation = Conversation(*model_and_processor, "balanced", key_norms=True)
    *_, first = conversation.ask("What is the total?", load_media(invoice), max_new_tokens=16)
    twin = conversation.fork()
    *_, second = conversation.ask("What is the tax?", max_new_tokens=16)
    *_, other = twin.ask("Who is it for?", max_new_tokens=16)
    known = len(first.key_norms)
    for later in (second, other):
        assert len(later.key_norms) > known and np.isfinite(later.key_norms.key).all()
        np.testing.assert_array_equal(later.key_norms.key[:, :known], first.key_norms.key)


@pytest.mark.parametrize(
    "name, options",
    [("1280", {}), ("phone-390", {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True})],
)
def test_the_strip_is_beside_the_answer(visit, screenshot, name, options):
    page = visit(**options)
    page.get_by_text("Invoice: the total").click()
    live = page.locator("#norm-strip")
    expect(live).to_be_visible()
    expect(page.locator("#chat-kvmm")).to_contain_text("$1,274.94")
    expect(live).to_have_attribute("data-answer", re.compile(r"[1-9]"))
    before = int(live.get_attribute("data-tokens"))
    expect(live.locator("img")).to_have_count(2)
    expect(live).to_contain_text("image")
    assert drawn_width(live.locator("img").last) == MAX_COLUMNS
    page.wait_for_timeout(600)
    screenshot(page, f"strip-{name}")
    page.locator("#ask-box").get_by_test_id("textbox").fill("What is the tax?")
    page.locator("#ask-box").get_by_test_id("submit-button").click()
    expect(page.locator("#chat-kvmm")).to_contain_text("$94.44")
    expect(live).not_to_have_attribute("data-tokens", str(before))
    assert int(live.get_attribute("data-tokens")) > before
