"""Small accidents that must not cost a conversation: changes of policy, Stop, reload, tabs, edits, deletions."""

from __future__ import annotations

import functools
import re
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

from tests.ui.conftest import LINES, draw_invoice, drawn_width
from tests.ui.test_app import QUESTION, answers, ask, notes

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def box_text(page):
    return page.locator("#ask-box").get_by_test_id("textbox")


def free(page):
    """The box takes a question: nothing is being answered."""
    expect(page.locator("#ask-box").get_by_test_id("submit-button")).to_be_visible()


def choose_policy(page, name: str) -> None:
    page.locator("#policy input").click()
    page.get_by_role("option", name=re.compile(rf"^{re.escape(name)}\b")).first.click()


def talk_of(app):
    """The conversation that was used last."""
    return max(
        (talk for session in app.demo.visitors.sessions for talk in session.talks if talk.exchanges),
        key=lambda talk: talk.used,
    )


@pytest.fixture
def held(model_and_processor, monkeypatch):
    """``held(step)`` stops the model before its forward pass number ``step`` until ``.set()``."""
    model, _ = model_and_processor
    event, steps = threading.Event(), []
    forward = model.forward

    def hold(step: int) -> threading.Event:
        @functools.wraps(forward)  # generate() reads the signature
        def slow(*args, **kwargs):
            steps.append(1)
            if len(steps) == step:
                event.wait(60)
            return forward(*args, **kwargs)

        monkeypatch.setattr(model, "forward", slow)
        return event

    yield hold
    event.set()


@pytest.fixture(scope="module")
def document(invoice, tmp_path_factory) -> Path:
    """Eight pages."""
    path = tmp_path_factory.mktemp("pages") / "eight.pdf"
    page = Image.open(invoice)
    page.save(path, save_all=True, append_images=[page] * 7, resolution=80)
    return path


def test_another_policy_knows_what_was_said(visit, screenshot, app, invoice):
    page = visit()
    ask(page, QUESTION, invoice)
    expect(notes(page)).to_have_count(1)
    first = talk_of(app)
    choose_policy(page, "kivi4")
    expect(page.locator("#chat-kvmm")).to_contain_text("kvmm · kivi4")
    ask(page, "What is the tax?")
    expect(notes(page)).to_have_count(2)
    expect(page.locator("#chat-kvmm")).to_contain_text("Earlier pages read again")
    assert talk_of(app) is first and len(first.conversation.messages) == 4
    assert (
        first.conversation.policy.name == "kivi4"
        and first.conversation.messages[1]["content"][0]["text"] in "$1,274.94"
    )
    page.get_by_label("Compare with full precision").check()
    ask(page, "What is the date?")
    expect(notes(page)).to_have_count(3)
    expect(page.locator("#chat-full")).to_contain_text("Earlier pages read again")
    free(page)
    twin = first._conversations["full"]
    assert len(twin.messages) == 6 and twin.messages[:4] == first.conversation.messages[:4]
    screenshot(page, "policy-change-1280")


@pytest.mark.parametrize("name, options", [("1280", {}), ("390", PHONE)])
def test_stop_while_pages_are_read_gives_the_question_back(visit, screenshot, document, held, name, options):
    page = visit(**options)
    event = held(3)
    ask(page, QUESTION, document)
    bar = page.locator("#reading-box [role=progressbar]")
    expect(bar).to_contain_text("Reading page 3 of 8")
    assert 10 < float(bar.get_attribute("aria-valuenow")) < 40
    expect(answers(page)).to_contain_text("Reading page 3 of 8")
    screenshot(page, f"reading-{name}")
    page.locator("#ask-box .stop-button").click()
    page.wait_for_timeout(100)  # the click is on its way while the model is held
    event.set()
    begin = time.perf_counter()
    expect(answers(page)).to_have_text("stopped")
    expect(box_text(page)).to_have_value(QUESTION)
    assert time.perf_counter() - begin < 3  # of which the page and this test need most
    expect(page.locator("#ask-box .thumbnail-item")).to_have_count(1)
    expect(page.locator("#reading-box [role=progressbar]")).to_have_count(0)
    screenshot(page, f"stopped-{name}")
    box_text(page).fill("")
    box_text(page).fill("What is the tax?")
    page.locator("#ask-box").get_by_test_id("submit-button").click()
    expect(notes(page)).to_have_count(1, timeout=60_000)
    expect(page.locator("#chat-kvmm")).to_contain_text("$94.44")


def test_what_is_typed_meanwhile_stays_in_the_box(visit, invoice, held):
    page = visit()
    event = held(3)
    ask(page, QUESTION, invoice)
    expect(answers(page)).to_have_count(1)
    box_text(page).fill("my next question")
    page.locator("#ask-box .stop-button").click()
    page.wait_for_timeout(100)
    event.set()
    expect(answers(page)).to_contain_text("stopped")
    free(page)
    expect(box_text(page)).to_have_value("my next question")


def test_a_reload_brings_everything_back(visit, screenshot, invoice, url):
    page = visit()
    choose_policy(page, "kivi4")
    ask(page, QUESTION, invoice)
    expect(notes(page)).to_have_count(1)
    cookie = next(c for c in page.context.cookies() if c["name"].startswith("kvmm-visitor"))
    assert cookie["httpOnly"] and cookie["sameSite"] == "Lax" and len(cookie["value"]) > 80
    assert cookie["value"] not in page.content() and "kvmm-visitor" not in page.evaluate("document.cookie")
    visit.reload(page)
    expect(page.locator("#chat-kvmm")).to_contain_text("$1,274.94")
    picture = page.locator("#chat-kvmm [data-testid=user] img")
    expect(picture).to_be_visible()
    assert drawn_width(picture) > 0
    expect(page.locator("#thumbnails img")).to_have_count(1)
    expect(page.locator("#policy input")).to_have_value(re.compile("^kivi4"))
    screenshot(page, "reload-1280")
    ask(page, "What is the tax?")
    expect(notes(page)).to_have_count(2)
    expect(page.locator("#chat-kvmm")).not_to_contain_text("read again")
    assert page.url.rstrip("/") == url.rstrip("/")


def test_sampling_and_stop_texts_come_back(visit, screenshot, invoice, tmp_path):
    page = visit()
    page.get_by_role("button", name="Sampling").click()
    stop, seed = "#stop-texts textarea", "#seed textarea, #seed input"
    page.locator(stop).fill(",\nnever said")
    page.locator(seed).fill("7")
    page.locator(seed).press("Tab")
    screenshot(page, "sampling-1280")
    ask(page, QUESTION, invoice)
    expect(notes(page)).to_have_count(1)
    expect(answers(page).first).to_have_text("$1")
    free(page)
    visit.reload(page)
    expect(notes(page)).to_have_count(1)
    page.get_by_role("button", name="Sampling").click()
    expect(page.locator(stop)).to_have_value(",\nnever said")
    expect(page.locator(seed)).to_have_value("7")
    with page.expect_download() as download:
        page.locator("#save").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    other = visit()
    with other.expect_file_chooser() as chooser:
        other.locator("#load").click()
    chooser.value.set_files(str(path))
    expect(notes(other)).to_have_count(1)
    other.get_by_role("button", name="Sampling").click()
    expect(other.locator(stop)).to_have_value(",\nnever said")
    other.locator(stop).fill("x" * 300)
    ask(other, QUESTION)
    expect(other.locator("#chat-kvmm")).to_contain_text("⚠️ stop must be up to 16 texts of 1 to 256 characters.")
    other.locator(stop).fill("")
    ask(other, QUESTION)
    expect(other.locator("#chat-kvmm")).to_contain_text("$1,274.94")


def test_an_answer_goes_on_while_the_page_is_reloaded(visit, invoice, held):
    page = visit()
    event = held(3)
    ask(page, QUESTION, invoice)
    expect(answers(page)).to_have_count(1)
    visit.reload(page)
    expect(page.locator("#chat-kvmm [data-testid=user]")).to_have_count(2)
    expect(page.locator("#ask-box .stop-button")).to_be_visible()
    event.set()
    expect(page.locator("#chat-kvmm")).to_contain_text("$1,274.94")
    expect(notes(page)).to_have_count(1)
    free(page)


def test_a_second_tab_shares_the_list_and_has_its_own_conversation(visit, invoice):
    first = visit()
    ask(first, QUESTION, invoice)
    expect(notes(first)).to_have_count(1)
    second = first.context.new_page()
    second.goto(first.url)
    expect(notes(second)).to_have_count(1)  # the same conversation, open in both
    second.locator("#new-conversation").click()
    expect(notes(second)).to_have_count(0)
    ask(second, "Write one word.")
    expect(notes(second)).to_have_count(1)
    ask(first, "What is the tax?")  # stays where it is
    expect(notes(first)).to_have_count(2)
    expect(first.locator("#chat-kvmm")).to_contain_text("$94.44")
    expect(first.locator("#chat-kvmm")).not_to_contain_text("Write one word.")
    expect(second.locator("#chat-kvmm")).not_to_contain_text("$94.44")
    expect(first.locator("#talks label")).to_have_count(2)
    stranger = visit()
    expect(stranger.get_by_text("Invoice: the total")).to_be_visible()
    expect(stranger.locator("#chat-kvmm [data-testid=user]")).to_have_count(0)


@pytest.mark.parametrize("name, options", [("1280", {}), ("390", PHONE)])
def test_a_question_is_edited_and_answered_again(visit, screenshot, app, invoice, name, options):
    page = visit(**options)
    ask(page, QUESTION, invoice)
    expect(notes(page)).to_have_count(1)
    ask(page, "What is the tax?")
    expect(notes(page)).to_have_count(2)
    free(page)
    bubble = page.locator("#chat-kvmm .user-row", has_text=QUESTION)
    bubble.hover()
    page.locator("#chat-kvmm button[aria-label=Edit], #chat-kvmm button[title=Edit]").first.click()
    field = page.locator("#chat-kvmm textarea")
    expect(field).to_have_value(QUESTION)
    field.fill("What is the invoice number?")
    page.locator("#chat-kvmm button[aria-label=Submit], #chat-kvmm button[title=Submit]").first.click()
    expect(page.locator("#chat-kvmm")).to_contain_text("INV-40712")
    expect(notes(page)).to_have_count(1)
    expect(page.locator("#chat-kvmm")).not_to_contain_text("What is the tax?")
    expect(page.locator("#chat-kvmm")).not_to_contain_text("read again")
    expect(page.locator("#talks label")).to_have_count(2)
    screenshot(page, f"edited-{name}")
    page.locator("#talks label").first.click()  # as it was before
    expect(page.locator("#chat-kvmm")).to_contain_text("$94.44")
    expect(notes(page)).to_have_count(2)


def test_the_last_question_is_tried_again_with_another_policy(visit, app, invoice):
    page = visit()
    ask(page, QUESTION, invoice)
    expect(notes(page)).to_have_count(1)
    free(page)
    choose_policy(page, "kivi4")
    page.locator("#chat-kvmm button[aria-label=Retry], #chat-kvmm button[title=Retry]").first.click()
    expect(page.locator("#talks label")).to_have_count(2)
    expect(notes(page)).to_have_count(1)
    expect(page.locator("#chat-kvmm")).to_contain_text("$1,274.94")
    assert talk_of(app).conversation.policy.name == "kivi4"


@pytest.mark.parametrize("name, options", [("1280", {}), ("390", PHONE)])
def test_a_conversation_gets_a_name_and_is_deleted(visit, screenshot, app, tmp_path, name, options):
    page = visit(**options)
    invoice = draw_invoice(tmp_path / "own.png", [*LINES, ("Copy for", name)])  # equal uploads are one file
    page.on("dialog", lambda dialog: dialog.accept() if len(asked) else (asked.append(1), dialog.dismiss()))
    asked: list[int] = []
    ask(page, QUESTION, invoice)
    expect(notes(page)).to_have_count(1)
    free(page)
    page.locator("#rename").click()
    field = page.locator("#rename-box textarea, #rename-box input")
    expect(field).to_have_value(QUESTION)
    screenshot(page, f"rename-{name}")
    field.fill("March invoice")
    field.press("Enter")
    expect(field).to_be_hidden()
    page.locator("#new-conversation").click()
    expect(page.locator("#talks label").first).to_contain_text("March invoice")
    screenshot(page, f"list-{name}")
    page.locator("#talks label").first.click()
    expect(notes(page)).to_have_count(1)
    talk = talk_of(app)
    (path,) = (Path(path) for path in talk.files)
    page.locator("#delete").click()  # refused in the dialog
    expect(notes(page)).to_have_count(1)
    assert path.exists() and talk.conversations
    page.locator("#delete").click()
    expect(notes(page)).to_have_count(0)
    expect(page.get_by_text("Invoice: the total")).to_be_visible()
    assert not path.exists() and not talk.conversations


def name_box(page):
    return page.locator("#rename-box textarea, #rename-box input")


def test_a_name_that_is_being_typed_outlives_the_answer(visit, app, invoice, held):
    page = visit()
    event = held(3)
    ask(page, QUESTION, invoice)
    expect(answers(page)).to_have_count(1)
    page.locator("#rename").click()
    field = name_box(page)
    expect(field).to_be_focused()
    expect(field).to_have_value(QUESTION)
    field.fill("March ")
    event.set()
    expect(notes(page)).to_have_count(1)
    free(page)
    page.wait_for_timeout(500)  # what the end of the answer changes arrives with the free box
    expect(field).to_have_value("March ")
    expect(field).to_be_focused()
    page.keyboard.type("invoice")
    page.keyboard.press("Enter")
    expect(field).to_be_hidden()
    assert talk_of(app).title == "March invoice"
    # a name is begun, and another question asked, before it is kept
    page.locator("#rename").click()
    expect(field).to_have_value("March invoice")
    field.fill("April")
    ask(page, "What is the tax?")
    expect(notes(page)).to_have_count(2)
    free(page)
    page.wait_for_timeout(500)
    expect(field).to_have_value("April")
    field.press("Enter")
    expect(field).to_be_hidden()
    page.locator("#new-conversation").click()
    expect(page.locator("#talks label").first).to_contain_text("April")


def test_a_name_that_is_being_typed_is_let_go_with_its_conversation(visit, app, invoice, held):
    page = visit()
    event = held(3)
    ask(page, QUESTION, invoice)
    expect(answers(page)).to_have_count(1)
    page.locator("#rename").click()
    name_box(page).fill("March")
    page.locator("#new-conversation").click()  # the answer goes on
    expect(name_box(page)).to_be_hidden()
    event.set()
    expect(page.locator("#talks label").first).to_contain_text(QUESTION)
    page.locator("#talks label").first.click()
    expect(notes(page)).to_have_count(1)
    free(page)
    expect(name_box(page)).to_be_hidden()
    assert talk_of(app).title == QUESTION
    page.locator("#rename").click()
    expect(name_box(page)).to_have_value(QUESTION)
    expect(name_box(page)).to_be_focused()
    page.locator("#fork").click()
    expect(page.locator("#talks")).to_contain_text("(fork)")
    expect(name_box(page)).to_be_hidden()
    page.locator("#rename").click()
    expect(name_box(page)).to_have_value(f"{QUESTION} (fork)")
    page.locator("#chat-kvmm button[aria-label=Retry], #chat-kvmm button[title=Retry]").first.click()
    expect(page.locator("#talks")).to_contain_text("(before the edit)")
    expect(name_box(page)).to_be_hidden()


def test_everything_visible_is_saved_and_opened(visit, screenshot, invoice, held, tmp_path):
    bad = tmp_path / "notes.png"
    bad.write_text("This is not a picture.\n")
    page = visit()
    page.get_by_label("Compare with full precision").check()
    ask(page, QUESTION, invoice)
    expect(notes(page)).to_have_count(1)
    free(page)
    choose_policy(page, "kivi4")
    ask(page, "What is this?", bad)
    expect(page.locator("#chat-kvmm")).to_contain_text("is a text file")
    page.get_by_label("Compare with full precision").uncheck()
    ask(page, "What is the tax?")
    expect(notes(page)).to_have_count(2)
    free(page)
    before = [message.inner_text() for message in page.locator("#chat-kvmm .message").all()]
    with page.expect_download() as download:
        page.locator("#save").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    other = visit()
    with other.expect_file_chooser() as chooser:
        other.locator("#load").click()
    chooser.value.set_files(str(path))
    expect(notes(other)).to_have_count(2)
    expect(other.locator("#chat-kvmm .message")).to_have_text(before, use_inner_text=True)
    picture = other.locator("#chat-kvmm [data-testid=user] img")
    expect(picture).to_have_count(1)
    assert drawn_width(picture) > 0
    other.get_by_label("Compare with full precision").check()
    expect(other.locator("#chat-full")).to_contain_text("$1,274.94")
    screenshot(other, "opened-1280")


def test_icons_and_pictures_outlive_the_clean_up(visit, app, invoice):
    page = visit()
    icon = page.locator("#chat-kvmm .example img").first
    expect(icon).to_be_visible()
    address = icon.get_attribute("src")
    ask(page, QUESTION, invoice)
    expect(notes(page)).to_have_count(1)
    (picture,) = talk_of(app).files
    unsent = page.request.post(
        f"{app.url}gradio_api/upload",
        multipart={"files": {"name": "x.png", "mimeType": "image/png", "buffer": b"never sent with a question"}},
    ).json()[0]
    assert Path(unsent).exists()
    for _ in range(13):
        app.clock.pass_minutes(10)
        app.clean_up()
    for source in (address, f"{app.url}gradio_api/file={picture}"):
        assert page.request.get(source).status == 200, source
    assert not Path(unsent).exists()
    ask(page, "What is the tax?")  # its cache is gone, what was said is not
    expect(page.locator("#chat-kvmm")).to_contain_text("$94.44")
    expect(page.locator("#chat-kvmm")).to_contain_text("Earlier pages read again")
