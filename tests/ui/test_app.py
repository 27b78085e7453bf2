"""What a visitor does, in a real browser."""

from __future__ import annotations

import base64
import functools
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kvmm.media import load_image
from kvmm.models.confidence import ConfidenceMap
from kvmm.models.loading import TINY_MODEL
from kvmm.policy import policies
from tests.media.files import scan_pdf

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

QUESTION = "What is the total?"


def ask(page, question: str, *files: Path) -> None:
    box = page.locator("#ask-box")
    if files:
        with page.expect_file_chooser() as chooser:
            box.get_by_test_id("upload-button").click()
        chooser.value.set_files([str(path) for path in files])
        expect(box.locator(".thumbnail-item")).to_have_count(len(files))
    box.get_by_test_id("textbox").fill(question)
    box.get_by_test_id("submit-button").click()


def answers(page, chat: str = "chat-kvmm"):
    """What the model said, the notes about memory included."""
    return page.locator(f"#{chat} [data-testid=bot]")


def notes(page, chat: str = "chat-kvmm"):
    return page.locator(f"#{chat} .thought-group .title", has_text="KV ")


def unsure(page, chat="chat-kvmm"):
    return page.locator(f"#{chat} .thought-group .title", has_text="Unsure")


def number(page, stat: str) -> float:
    return float(re.search(r"[\d.,]+", page.locator(f"[data-stat={stat}]").inner_text())[0].replace(",", ""))


def test_an_invoice_is_asked_and_the_memory_is_shown(visit, screenshot, invoice):
    page = visit()
    expect(page.get_by_role("heading", name="kvmm", exact=True)).to_be_visible()
    expect(page.get_by_text("Invoice: the total")).to_be_visible()
    expect(page.get_by_text("gone", exact=True)).to_have_count(0)  # a sample whose file is missing
    expect(page.locator("#scope")).to_contain_text("tiny-omni is the smallest model")
    screenshot(page, "start-1280")
    ask(page, QUESTION, invoice)
    expect(page.locator("#chat-kvmm")).to_contain_text("$1,274.94")
    expect(notes(page)).to_have_count(1)
    expect(unsure(page)).to_have_count(0)
    plot = page.locator("#memory-plot .js-plotly-plot")
    expect(plot).to_be_visible()
    expect(plot.locator(".ytick").filter(has_text="image")).to_have_count(1)
    expect(plot.locator(".bartext").filter(has_text=re.compile(r"[\d.]+ KiB · [\d.]+ bits"))).to_have_count(2)
    assert number(page, "ratio") > 1.5
    assert 0 < number(page, "bits") < 16
    assert number(page, "speed") > 0
    screenshot(page, "answer-1280")

    # A follow-up needs no upload: the page is in the cache.
    ask(page, QUESTION)
    expect(notes(page)).to_have_count(2)
    expect(page.locator("#chat-kvmm").get_by_text("$1,274.94")).to_have_count(2)
    expect(page.locator("#memory-plot .ytick").filter(has_text="image")).to_have_count(1)

    page.locator("#new-conversation").click()
    expect(notes(page)).to_have_count(0)
    expect(page.get_by_text("Invoice: the total")).to_be_visible()


def test_an_answer_that_may_well_be_wrong_is_marked(visit, screenshot, invoice, monkeypatch):
    """With what to do inside; the next answer that is sure has none."""
    found = ConfidenceMap.confidence
    doubted = lambda self, logprobs: replace(found(self, logprobs), probability=0.41, unsure=True)  # noqa: E731
    page = visit()
    with monkeypatch.context() as patched:
        patched.setattr(ConfidenceMap, "confidence", doubted)
        ask(page, QUESTION, invoice)
        expect(unsure(page)).to_have_count(1)
    unsure(page).click()
    expect(page.locator("#chat-kvmm")).to_contain_text("right about 41% of the time")
    expect(page.locator("#chat-kvmm")).to_contain_text("--model Qwen/")
    screenshot(page, "unsure-1280")
    ask(page, QUESTION)
    expect(notes(page)).to_have_count(2)
    expect(unsure(page)).to_have_count(1)


def test_a_value_that_the_text_of_a_pdf_does_not_have_is_marked(visit, screenshot, invoice, tmp_path):
    """The picture in both files is the same; the text of the second one has another total, which is proposed."""
    path = tmp_path / "march.pdf"
    for text, marks in (("Total due: $1,274.94", 0), ("Total due: $1,724.94", 1)):
        path.write_bytes(scan_pdf(load_image(invoice), text))
        page = visit()
        ask(page, QUESTION, path)
        expect(page.locator("#chat-kvmm")).to_contain_text("$1,274.94")
        expect(notes(page)).to_have_count(1)
        expect(unsure(page)).to_have_count(marks)
        expect(page.locator("#chat-kvmm .thought-group .title", has_text="PDF's text has:")).to_have_count(marks)
    nearest = page.locator("#chat-kvmm .thought-group .title", has_text="The PDF's text has: $1,724.94")
    expect(nearest).to_have_count(1)
    nearest.click()
    expect(page.locator("#chat-kvmm")).to_contain_text("The passage need not answer the question.")
    screenshot(page, "nearest-1280")
    unsure(page).click()
    expect(page.locator("#chat-kvmm")).to_contain_text("text layer of the PDF does not have this answer")


def test_a_sample_is_one_click_away_and_can_be_compared(visit, screenshot):
    page = visit()
    page.get_by_label("Compare with full precision").check()
    expect(page.locator("#chat-full")).to_be_visible()
    page.get_by_text("Invoice: the total").click()
    expect(page.locator("#chat-full")).to_contain_text("$1,274.94")
    expect(page.locator("#chat-kvmm")).to_contain_text("$1,274.94")
    expect(page.locator("#verdict")).to_contain_text("Identical")
    expect(page.locator("#stats-box")).to_contain_text("full precision")
    expect(page.locator("#memory-plot .bartext")).to_have_count(4)
    screenshot(page, "compare-1280")


def test_answers_that_differ_are_marked_on_both_sides(visit, screenshot, invoice):
    page = visit()
    page.get_by_label("Compare with full precision").check()
    page.locator("#policy input").click()
    page.get_by_role("option", name=re.compile("^calibquant1 · ")).click()  # one bit: too little for a small model
    expect(page.locator("#policy-line")).to_contain_text("bits per value")
    ask(page, QUESTION, invoice)
    expect(page.locator("#verdict")).to_contain_text(
        re.compile(r"Differs.*from token \d+: full precision has .+, kvmm ")
    )
    expect(page.locator("#chat-full mark.differs").first).to_be_visible()
    expect(page.locator("#chat-kvmm mark.differs").first).to_be_visible()
    screenshot(page, "differs-1280")


def test_a_policy_of_its_own_for_images(visit, invoice):
    page = visit()
    page.get_by_role("button", name="By modality").click()
    page.locator("#policy-image input").click()
    page.get_by_role("option", name=re.compile("^bf16 · ")).click()
    page.get_by_role("button", name="Kept in full precision").click()
    page.locator("#sinks input").fill("8")
    page.locator("#sinks input").press("Tab")
    expect(page.locator("#chat-kvmm")).to_contain_text("kvmm · balanced · image bf16 · 8 sinks")
    ask(page, QUESTION, invoice)
    expect(notes(page)).to_have_count(1)
    image = page.locator("#memory-plot .bartext").filter(has_text=re.compile(r"[\d.]+ [KM]iB · 16\.\d+ bits"))
    expect(image.first).to_be_visible()


def test_a_conversation_is_forked_saved_and_opened_by_its_owner_only(visit, screenshot, invoice, tmp_path):
    page = visit()
    ask(page, QUESTION, invoice)
    expect(notes(page)).to_have_count(1)
    expect(page.locator("#thumbnails img")).to_have_count(1)
    page.locator("#fork").click()
    expect(page.locator("#talks")).to_contain_text("(fork)")
    ask(page, "What is the tax?")
    expect(notes(page)).to_have_count(2)
    page.locator("#talks label").first.click()  # back to before the fork
    expect(notes(page)).to_have_count(1)
    screenshot(page, "fork-1280")
    with page.expect_download() as download:
        page.locator("#save").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert path.suffix == ".kvmm"

    other = visit()  # somebody else with the file, after a restart for example
    with other.expect_file_chooser() as chooser:
        other.locator("#load").click()
    chooser.value.set_files(str(path))
    expect(other.locator("#chat-kvmm")).to_contain_text("$1,274.94")
    expect(other.locator("#thumbnails img")).to_have_count(1)
    ask(other, "What is the tax?")
    expect(other.locator("#chat-kvmm")).to_contain_text("$94.44")
    expect(other.locator("#chat-kvmm")).not_to_contain_text("read again")

    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with other.expect_file_chooser() as chooser:
        other.locator("#load").click()
    chooser.value.set_files(str(path))
    expect(other.get_by_text("was not saved by this app")).to_be_visible()
    expect(other.locator("#chat-kvmm")).to_contain_text("$94.44")


def test_the_page_can_be_used_with_the_keyboard(visit):
    page = visit()
    box = page.locator("#ask-box").get_by_test_id("textbox")
    expect(box).to_be_focused()
    page.keyboard.type("Write one word.")
    page.keyboard.press("Enter")
    expect(notes(page)).to_have_count(1)
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.closest('[id]')?.id"))
    assert {"new-conversation", "fork", "save", "load"} <= seen, seen


def test_another_policy_reads_the_page_again(visit, invoice):
    page = visit()
    ask(page, QUESTION, invoice)
    expect(notes(page)).to_have_count(1)
    page.locator("#policy input").click()
    page.get_by_role("option", name=re.compile(r"^kivi4 · 5\.")).click()
    expect(page.locator("#policy-line")).to_contain_text("KIVI")
    ask(page, QUESTION)
    expect(notes(page)).to_have_count(2)
    expect(page.locator("#chat-kvmm")).to_contain_text("Earlier pages read again")
    expect(page.locator("#chat-kvmm").get_by_text("$1,274.94")).to_have_count(2)


def test_a_bad_file_is_one_line_and_the_conversation_goes_on(visit, screenshot, invoice, tmp_path):
    bad = tmp_path / "notes.png"
    bad.write_text("This is not a picture.\n")
    page = visit()
    ask(page, QUESTION, invoice)
    expect(notes(page)).to_have_count(1)
    ask(page, "What is this?", bad)
    warning = answers(page).filter(has_text="⚠️")
    expect(warning).to_contain_text("is a text file")
    assert "\n" not in warning.inner_text().strip()
    expect(page.locator("#chat-kvmm").get_by_text("notes.png", exact=True)).to_be_visible()  # a name, no broken picture
    screenshot(page, "bad-file-1280")
    ask(page, QUESTION)
    expect(notes(page)).to_have_count(2)
    expect(page.locator("#chat-kvmm").get_by_text("$1,274.94")).to_have_count(2)


def test_a_question_without_anything_is_refused_with_a_toast(visit):
    page = visit()
    page.locator("#ask-box").get_by_test_id("textbox").fill(" ")
    page.locator("#ask-box").get_by_test_id("submit-button").click()
    expect(page.get_by_text("Type a question")).to_be_visible()


def test_two_visitors_do_not_see_each_other(visit, invoice):
    first, second = visit(), visit()
    ask(first, QUESTION, invoice)
    expect(notes(first)).to_have_count(1)
    expect(second.locator("#chat-kvmm")).not_to_contain_text("1,274.94")
    ask(second, "Write one word.")
    expect(notes(second)).to_have_count(1)
    expect(second.locator("#chat-kvmm")).not_to_contain_text("1,274.94")
    expect(second.locator("#memory-plot .ytick").filter(has_text="image")).to_have_count(0)
    ask(first, QUESTION)
    expect(first.locator("#chat-kvmm").get_by_text("$1,274.94")).to_have_count(2)
    visit.reload(second)
    expect(notes(second)).to_have_count(1)
    expect(second.locator("#chat-kvmm")).to_contain_text("Write one word.")
    expect(second.locator("#chat-kvmm")).not_to_contain_text("1,274.94")


def test_stop_ends_an_answer_and_the_next_question_works(visit, invoice, model_and_processor, monkeypatch):
    """The model is held at its third token until the visitor has pressed Stop, so the test does not race."""
    model, _ = model_and_processor
    pressed, steps = threading.Event(), []
    forward = model.forward

    @functools.wraps(forward)  # generate() reads the signature
    def slow(*args, **kwargs):
        steps.append(1)
        if len(steps) == 3:
            pressed.wait(60)
        return forward(*args, **kwargs)

    page = visit()
    monkeypatch.setattr(model, "forward", slow)
    ask(page, QUESTION, invoice)
    expect(answers(page)).to_have_count(1)  # what was said before the third token
    stop = page.locator("#ask-box").locator(".stop-button")
    with page.expect_response(lambda response: response.request.method == "POST"):
        stop.click()
    pressed.set()
    expect(answers(page)).to_contain_text("stopped")
    expect(page.locator("#ask-box").get_by_test_id("submit-button")).to_be_visible()
    ask(page, QUESTION)  # the page that was sent with the stopped question is still at hand
    expect(page.locator("#chat-kvmm")).to_contain_text("$1,274.94")


def test_a_recording_is_taken(visit, recording):
    page = visit()
    ask(page, "", recording)
    expect(notes(page)).to_have_count(1)
    expect(page.locator("#memory-plot .ytick").filter(has_text="audio")).to_have_count(1)


def test_token_norms(visit, screenshot, invoice):
    page = visit()
    page.get_by_role("tab", name="Token norms").click()
    expect(page.locator("#norms-summary")).to_contain_text("A worked sample")
    page.get_by_role("tab", name="Ask").click()
    ask(page, QUESTION, invoice)
    expect(notes(page)).to_have_count(1)
    page.get_by_role("tab", name="Token norms").click()
    expect(page.locator("#norm-summary")).to_contain_text("image")
    expect(page.locator("#norm-heatmap .heatmaplayer image")).to_have_count(2)  # the ribbon and the norms
    expect(page.locator("#norm-boxes .boxes .box").first).to_be_visible()
    expect(page.locator("#norm-boxes .legendtext")).to_have_text(["text", "image"])
    screenshot(page, "norms-1280")
    page.get_by_label("Queries").check()
    expect(page.locator("#norm-boxes .ytitle")).to_have_text("Query norm")
    slider = page.locator("#norm-layer input[type=number]")
    slider.fill("3")
    slider.press("Enter")
    expect(page.locator("#norm-outliers")).to_contain_text("layer 3")


@pytest.mark.parametrize(
    "name, options",
    [
        ("phone-390", {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}),
        ("dark-1280", {"color_scheme": "dark"}),
    ],
)
def test_phone_and_dark_mode(visit, screenshot, name, options):
    page = visit(**options)
    page.get_by_text("Invoice: the total").click()
    expect(notes(page)).to_have_count(1)
    expect(page.locator("#memory-plot .bartext").first).to_be_visible()
    expect(page.locator("#growth-plot .legendtext").filter(has_text="bf16")).to_be_visible()
    width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1], "the page scrolls sideways"
    assert page.evaluate("document.body.classList.contains('dark')") == ("dark" in name)
    screenshot(page, name)
    page.get_by_role("tab", name="Token norms").click()
    expect(page.locator("#norm-heatmap .heatmaplayer image")).to_have_count(2)
    screenshot(page, f"norms-{name}")
    if "dark" in name:
        page.get_by_label("Switch between light and dark").click()
        assert not page.evaluate("document.body.classList.contains('dark')")


def test_the_documented_endpoints(url, invoice):
    import httpx
    from gradio_client import Client, handle_file

    client = Client(url, verbose=False)
    endpoints = client.view_api(return_format="dict")["named_endpoints"]
    assert list(endpoints) == ["/ask", "/compare", "/analyze_norms"]
    for endpoint in endpoints.values():
        for parameter in endpoint["parameters"]:
            assert parameter["label"] == parameter["parameter_name"] and parameter["component"] != "Api"
            assert len(parameter["python_type"]["description"]) > 20
        assert len(endpoint["returns"][0]["python_type"]["description"]) > 60
    files, question, policy, model = endpoints["/ask"]["parameters"]
    assert [one["parameter_name"] for one in (files, question, policy, model)] == [
        "files", "question", "policy", "model",
    ]  # fmt: skip
    assert files["python_type"]["type"] == "list[filepath]" and question["python_type"]["type"] == "str"
    assert not files["parameter_has_default"] and not question["parameter_has_default"]
    assert policy["parameter_default"] == "balanced" and model["parameter_default"] == TINY_MODEL
    assert all(f"'{name}'" in policy["python_type"]["type"] for name in policies())
    printed = client.view_api(return_format="str")
    assert "1st" not in printed and "[Api]" not in printed
    assert "- [File] files: list[filepath] (required)  (Images, PDF documents or recordings" in printed
    result = client.predict([handle_file(invoice)], QUESTION, "kivi4", api_name="/ask")
    assert result["answer"] == "$1,274.94"
    assert result["policy"] == "kivi4"
    assert result["memory"]["by_modality"]["image"]["tokens"] > 100

    both = client.predict([handle_file(invoice)], QUESTION, "bf16", api_name="/compare")
    assert both["identical"] and both["full_precision"]["answer"] == both["kvmm"]["answer"] == "$1,274.94"
    both = client.predict([handle_file(invoice)], QUESTION, "calibquant1", api_name="/compare")
    assert not both["identical"] and both["first_difference"]["token"] >= 1
    norms = client.predict([handle_file(invoice)], QUESTION, api_name="/analyze_norms")
    assert set(norms["tokens"]) == {"text", "image"} and len(norms["key"]["outliers"]) == len(norms["layers"])
    assert min(norms["key"]["coefficient_of_variation"]) > 0
    # whoever writes requests by hand names no other file of the server, here or there
    for name in (str(invoice), "/etc/hostname", f"{url}gradio_api/file={invoice}"):
        for file in ({"path": name}, name):
            reply = httpx.post(f"{url}gradio_api/call/ask", json={"data": [[file], QUESTION, "kivi4", ""]}, timeout=30)
            said = httpx.get(f"{url}gradio_api/call/ask/{reply.json()['event_id']}", timeout=30).text
            assert "was not sent to this app" in said and "answer" not in said
    for wrong in ({"policy": "../x.yaml"}, {"model": "/etc"}):  # neither names files for visitors
        with pytest.raises(Exception, match="choose one of"):
            client.predict([handle_file(invoice)], QUESTION, **wrong, api_name="/ask")


def test_the_endpoints_are_mcp_tools(url, invoice):
    import asyncio

    import httpx
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async def talk():
        async with (
            streamablehttp_client(f"{url}gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as mcp,
        ):
            await mcp.initialize()
            tools = (await mcp.list_tools()).tools
            sent = httpx.post(f"{url}gradio_api/upload", files={"files": invoice.read_bytes()}, timeout=30).json()[0]
            data = "data:image/png;base64," + base64.b64encode(invoice.read_bytes()).decode()
            files = (f"{url}gradio_api/file={sent}", sent, data, "https://example.org/page.png")
            answers = [
                await mcp.call_tool(tools[0].name, {"files": [file], "question": QUESTION, "policy": "kivi4"})
                for file in files
            ]
            return tools, answers

    with ThreadPoolExecutor() as pool:  # Playwright runs a loop in this thread
        tools, answers = pool.submit(asyncio.run, talk()).result()
    assert [tool.name for tool in tools] == ["ask", "compare", "analyze_norms"]
    assert "KV cache of one to two bits" in tools[0].description
    for answer in answers[:3]:
        assert not answer.isError and "$1,274.94" in answer.content[0].text
    assert answers[3].isError and "Addresses elsewhere are not fetched" in answers[3].content[0].text
