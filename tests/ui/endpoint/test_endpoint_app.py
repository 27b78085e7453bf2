"""The app in front of a server, in a real browser: answers, what the server tells, and nothing it cannot show."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import pytest

from kvmm.ui import Endpoint, EndpointModels, build_demo, launch_options
from tests.ui.endpoint.fake_server import ANSWER, FakeServer, event, logged

expect = pytest.importorskip("playwright.sync_api").expect


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with contextlib.closing(FakeServer()) as fake:
        yield fake


@pytest.fixture(scope="module")
def url(server, samples_folder, tmp_path_factory) -> Iterator[str]:
    before = os.environ.get("GRADIO_TEMP_DIR")
    os.environ["GRADIO_TEMP_DIR"] = str(tmp_path_factory.mktemp("uploads"))
    demo = build_demo(EndpointModels(Endpoint(server.url, "secret")), samples_folder=samples_folder)
    _, local, _ = demo.launch(prevent_thread_lock=True, quiet=True, **launch_options(samples_folder))
    yield local
    demo.close()
    if before is None:
        del os.environ["GRADIO_TEMP_DIR"]
    else:
        os.environ["GRADIO_TEMP_DIR"] = before


def ask(page, question: str) -> None:
    box = page.locator("#ask-box")
    box.get_by_test_id("textbox").fill(question)
    box.get_by_test_id("submit-button").click()


def test_a_sample_is_asked_and_what_the_server_tells_is_shown(visit, screenshot, server):
    server.chunks, server.status, server.between = list(ANSWER), 200, lambda number: None
    page = visit()
    expect(page.get_by_role("tab", name="Ask")).to_be_visible()
    expect(page.get_by_role("tab", name="Planner")).to_be_visible()
    for name in ("Token norms", "Errors", "Methods", "Evaluate"):
        expect(page.get_by_role("tab", name=name)).to_have_count(0)
    expect(page.locator("#endpoint-hint")).to_contain_text("needs the app without --endpoint")
    expect(page.locator("#scope")).to_have_text("")
    for hidden in ("#compare", "#policy", "#save", "#load"):
        expect(page.locator(hidden)).not_to_be_visible()
    expect(page.locator("#kvmm-header")).to_contain_text(server.url)
    page.get_by_text("Invoice: the total").click()
    expect(page.locator("#chat-kvmm")).to_contain_text("$1,274.94")
    expect(page.locator("[data-stat=kv]")).to_have_text("100 B")
    expect(page.locator("[data-stat=ratio]")).to_have_text("4.0×")
    expect(page.locator("[data-stat=cached]")).to_have_text("64")
    expect(page.locator("#chat-kvmm .thought-group .title", has_text="KV 400 B → 100 B")).to_have_count(1)
    expect(page.locator("#thumbnails .thumb")).to_have_count(1)
    page.get_by_role("button", name="Sampling").click()
    page.locator("#stop-texts textarea").fill("END\n\\n\\n")
    ask(page, "And the date?")
    expect(page.locator("#chat-kvmm").get_by_text("$1,274.94")).to_have_count(2)
    assert len(server.asked[-1][0]["messages"]) == 3
    assert "stop" not in server.asked[-2][0] and server.asked[-1][0]["stop"] == ["END", "\n\n"]
    screenshot(page, "endpoint-1280")
    visit.reload(page)
    expect(page.locator("#chat-kvmm").get_by_text("$1,274.94")).to_have_count(2)
    expect(page.locator("[data-stat=kv]")).to_have_text("100 B")


def test_tokens_are_asked_for_and_shown(visit, screenshot, server):
    entry = {"token": "$1,274.94", "logprob": -0.5, "top_logprobs": []}
    server.chunks = [logged("$1,274.94", {"content": [entry]}), *ANSWER[3:]]
    page = visit()
    page.get_by_role("button", name="Sampling").click()
    expect(page.locator("#max-tokens input")).to_have_value("256")
    page.locator("#max-tokens input").fill("7")
    page.locator("#logprobs input").check()
    ask(page, "What is the total?")
    expect(page.locator("#logprobs-kvmm .token")).to_have_count(1)
    expect(page.locator("#logprobs-kvmm .token")).to_contain_text("61%")
    body = server.asked[-1][0]
    assert (body["max_tokens"], body["logprobs"], body["top_logprobs"]) == (7, True, 3)
    screenshot(page, "endpoint-logprobs-1280")
    server.chunks = list(ANSWER)  # of a server without them
    ask(page, "Once more?")
    expect(page.locator("#logprobs-box")).to_contain_text("told no log-probabilities")
    page.locator("#logprobs input").uncheck()
    ask(page, "And now?")
    expect(page.locator("#chat-kvmm").get_by_text("$1,274.94")).to_have_count(3)
    expect(page.locator("#logprobs-box")).not_to_be_visible()


def test_stop_and_errors_leave_a_page_that_goes_on(visit, server):
    server.chunks = [event(f"word{i} ") for i in range(3000)]
    server.between = lambda number: time.sleep(0.01)
    server.gone.clear()
    page = visit()
    ask(page, "Count.")
    expect(page.locator("#chat-kvmm")).to_contain_text("word5")
    page.locator("#ask-box .stop-button").click()
    expect(page.locator("#chat-kvmm")).to_contain_text("stopped")
    assert server.gone.wait(10), "the server writes on"
    expect(page.locator("#ask-box").get_by_test_id("textbox")).to_have_value("Count.")
    server.chunks, server.between = ANSWER[:1], lambda number: None
    ask(page, "What is the total?")
    expect(page.locator("#chat-kvmm")).to_contain_text("went away in the middle of the answer: ask again")
    server.chunks = list(ANSWER)
    ask(page, "Once more?")
    expect(page.locator("#chat-kvmm")).to_contain_text("$1,274.94")
