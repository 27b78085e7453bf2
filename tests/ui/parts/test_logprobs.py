"""The tokens of an answer with their probability, as HTML."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pytest

from kvmm.models.progress import Progress
from kvmm.models.sampling import Choice
from kvmm.serve.protocol import TokenLogprob
from kvmm.ui.parts.logprobs import MAX_SHOWN, NOT_TOLD, logprobs_html, percent, with_token_texts

expect = pytest.importorskip("playwright.sync_api").expect

LAYOUTS = [
    ("1280", {}),
    ("phone-390", {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}),
]
TEXTS = {1: "$1", 2: " <b>", 3: "\n", 4: "", 5: "\u202e"}
TOKENIZER = SimpleNamespace(decode=lambda ids, **_: TEXTS[ids[0]])


def progress(*choices: Choice, **more) -> Progress:
    shown = {"text": "x", "tokens": len(choices), "seconds": 1.0, "ttft": 0.1, "tokens_per_second": 1.0}
    return Progress(**shown, memory=None, done=True, stopped=False, choices=choices, **more)


def shown(tokenizer, **last: Progress) -> str:
    return logprobs_html({side: with_token_texts(one, tokenizer) for side, one in last.items()})


def tiles(html: str) -> list[tuple[str, str]]:
    return re.findall(r"<code>(.*?)</code><small>(.*?)</small>", html)


def test_every_token_is_text_with_its_share():
    choices = [Choice(token, math.log(p)) for token, p in ((1, 0.5), (2, 0.999), (3, 0.25), (4, 0.001), (5, 1.0))]
    html = shown(TOKENIZER, kvmm=progress(*choices))
    expected = [("$1", "50%"), ("␣&lt;b&gt;", "&gt;99%"), ("↵", "25%"), ("∅", "&lt;1%"), ("·", "&gt;99%")]
    assert tiles(html) == expected
    assert "<h4>" not in html and "<b>" not in html
    assert "--doubt:30%" in html and "--doubt:0%" in html


def test_what_was_nearly_said_stands_in_the_title():
    chosen = Choice(1, math.log(0.6), ((1, math.log(0.6)), (2, math.log(0.4))))
    assert 'title="Most likely: $1 60%, ␣&lt;b&gt; 40%"' in shown(TOKENIZER, kvmm=progress(chosen))


def test_both_sides_of_a_comparison_have_a_row():
    last = {"kvmm": progress(Choice(1, -0.1)), "full": progress(Choice(2, -0.2))}
    html = shown(TOKENIZER, **last)
    assert re.findall("<h4>(.*?)</h4>", html) == ["Full precision", "kvmm"]
    assert [text for text, _ in tiles(html)] == ["␣&lt;b&gt;", "$1"]


def test_nothing_where_nothing_was_asked_for():
    assert shown(None) == "" == shown(TOKENIZER, kvmm=progress())
    assert shown(TOKENIZER, kvmm=progress(Choice(1))) == ""


def test_a_server_tells_texts_or_nothing():
    told = progress(logprobs=(TokenLogprob("a&", b"a&", -0.5, ()),))
    assert tiles(shown(None, kvmm=told)) == [("a&amp;", "61%")]
    assert NOT_TOLD in shown(None, kvmm=progress(logprobs=()))


def test_a_long_answer_shows_its_beginning():
    html = shown(TOKENIZER, kvmm=progress(*[Choice(1, -0.1)] * (MAX_SHOWN + 7)))
    assert len(tiles(html)) == MAX_SHOWN and "and 7 more" in html


def test_shares_are_never_rounded_to_certainty():
    assert [percent(math.log(p)) for p in (1, 0.996, 0.994, 0.006, 0.004)] == [">99%", ">99%", "99%", "1%", "<1%"]
    assert percent(-math.inf) == "<1%" and percent(0.5) == ">99%"


@pytest.mark.parametrize("name, options", LAYOUTS)
def test_a_visitor_sees_the_tokens_of_an_answer(visit, screenshot, name, options):
    page = visit(**options)
    if options:
        expect(page.locator("#chat-kvmm")).to_be_visible()
        page.wait_for_timeout(1500)  # the page closes the sidebar once, after it has opened itself
        page.locator("#sidebar .toggle-button").click()
    page.get_by_role("button", name="Sampling").click()
    most, told, tokens = page.locator("#max-tokens input"), page.locator("#logprobs input"), "#logprobs-kvmm .token"
    expect(most).to_have_value("64")
    expect(page.locator("#seed textarea, #seed input")).to_have_value("")
    most.fill("4")
    most.press("Tab")
    told.check()
    page.wait_for_timeout(500)
    screenshot(page, f"logprobs-sidebar-{name}")
    if options:
        page.locator("#sidebar .toggle-button").click()
    expect(page.locator("#logprobs-box")).not_to_be_visible()
    page.get_by_text("Invoice: the total").click()
    expect(page.locator(tokens)).to_have_count(4)
    expect(page.locator(tokens).first).to_contain_text("%")
    expect(page.locator("#logprobs-full")).to_have_count(0)
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "the page scrolls sideways"
    screenshot(page, f"logprobs-{name}")
    visit.reload(page)
    expect(page.locator(tokens)).to_have_count(4)
    if not options:
        page.get_by_role("button", name="Sampling").click()
        expect(told).to_be_checked()
        expect(most).to_have_value("4")
    other = visit()  # somebody else
    expect(other.locator("#chat-kvmm")).to_be_visible()
    expect(other.locator(tokens)).to_have_count(0)
    page.locator("#new-conversation").evaluate("button => button.click()")
    expect(page.locator(tokens)).to_have_count(0)
    expect(page.locator("#logprobs-box")).not_to_be_visible()


def test_more_tokens_than_the_app_allows_are_refused_in_a_line(visit):
    page = visit()
    page.get_by_role("button", name="Sampling").click()
    page.locator("#max-tokens input").fill("65")
    page.locator("#max-tokens input").press("Tab")
    page.get_by_text("Invoice: the total").click()
    expect(page.locator("#chat-kvmm")).to_contain_text("Max. tokens must be a whole number from 1 to 64.")
