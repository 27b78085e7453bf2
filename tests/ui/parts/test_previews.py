"""Pictures of pages in a question's bubble, and the text layer of a PDF beside the chat, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from reportlab.pdfgen import canvas

from kvmm.ui.parts import previews
from kvmm.ui.parts.bubbles import user_messages
from kvmm.ui.parts.page_text import PAGE_CHARACTERS, page_text_html
from kvmm.ui.parts.previews import SHOWN
from tests.ui.conftest import drawn_width

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

PLAYER = "audio, [data-testid='waveform-tone.wav'], .audio-container"
# In one step: the chat scrolls down by itself as long as an answer grows.
GAP_BELOW_THE_LABEL = """chat => {
    chat.querySelector(".bubble-wrap").scrollTop = 0;
    const label = chat.querySelector("[data-testid=block-label]").getBoundingClientRect();
    return chat.querySelector(".preview").getBoundingClientRect().top - label.bottom;
}"""
WORDS = "The total of page {} is $1{}.50 & <b>nothing</b> else"


@pytest.fixture(scope="session")
def document(tmp_path_factory) -> Path:
    """A PDF of six small pages with a text layer."""
    path = tmp_path_factory.mktemp("documents") / "six pages.pdf"
    pages = canvas.Canvas(str(path), pagesize=(220, 280))
    for page in range(1, 7):
        pages.setFont("Helvetica", 9)
        pages.drawString(12, 200, WORDS.format(page, page))
        pages.showPage()
    pages.save()
    return path


def send(page, question: str, *files: Path) -> None:
    box = page.locator("#ask-box")
    with page.expect_file_chooser() as chooser:
        box.get_by_test_id("upload-button").click()
    chooser.value.set_files([str(path) for path in files])
    expect(box.locator(".thumbnail-item")).to_have_count(len(files))
    box.get_by_test_id("textbox").fill(question)
    box.get_by_test_id("submit-button").click()
    expect(page.locator("#chat-kvmm .thought-group .title", has_text="KV ")).to_have_count(1)


@pytest.mark.parametrize(
    "name, options",
    [("1280", {}), ("390", {"viewport": {"width": 390, "height": 844}}), ("dark", {"color_scheme": "dark"})],
)
def test_a_bubble_shows_the_first_pages_and_a_click_enlarges_one(visit, screenshot, document, invoice, name, options):
    page = visit(**options)
    send(page, "What is the total of page 2?", document, invoice)
    bubbles = page.locator("#chat-kvmm [data-testid=user]")
    previews = bubbles.locator(".preview")
    expect(previews).to_have_count(SHOWN)
    expect(bubbles.locator(".more")).to_have_text("+ 3 more")
    expect(bubbles.locator(".preview-names")).to_have_text("six pages.pdf, march.png")
    titles = [*(f"six pages.pdf, page {k} of 6" for k in (1, 2, 3)), "march.png"]
    for k, title in enumerate(titles):
        expect(previews.nth(k)).to_have_attribute("title", title)
        assert drawn_width(previews.nth(k).locator("img")) > 500
        box = previews.nth(k).bounding_box()
        assert 60 < box["height"] < 160 and box["width"] < 220
    gap = page.locator("#chat-kvmm").evaluate(GAP_BELOW_THE_LABEL)
    assert gap >= 0, f"the chat's label covers {-gap} pixels of a picture"
    screenshot(page, f"previews-{name}")
    previews.nth(1).click()
    large = page.locator("dialog#enlarged img")
    expect(large).to_be_visible()
    width = page.viewport_size["width"]
    shown = large.bounding_box()
    assert shown["height"] > 3 * box["height"] and shown["width"] <= width
    screenshot(page, f"previews-{name}-enlarged")
    page.keyboard.press("Escape")
    expect(page.locator("dialog#enlarged")).to_have_count(0)
    previews.first.focus()
    page.keyboard.press("Enter")  # the keyboard does what a click does
    expect(large).to_be_visible()
    large.click()
    expect(page.locator("dialog#enlarged")).to_have_count(0)
    scroll = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert scroll[0] <= scroll[1], "the page scrolls sideways"


def test_the_text_layer_is_beside_the_pages(visit, screenshot, document):
    page = visit()
    send(page, "What is the total of page 1?", document)
    note = page.locator("#page-text")
    expect(note.locator("summary")).to_have_text("Text in the PDF, 6 pages")
    expect(note.locator("pre").first).not_to_be_visible()
    note.locator("summary").click()
    expect(note.locator("pre").first).to_have_text(WORDS.format(1, 1))  # as text, not as markup
    expect(note.locator("h5").nth(5)).to_have_text("six pages.pdf, page 6")
    expect(note).to_contain_text("it reads the pixels")
    screenshot(page, "page-text")


def test_previews_players_and_text_outlive_a_reload_and_a_saved_file(visit, screenshot, document, recording, tmp_path):
    page = visit()
    send(page, "What is the total of page 1?", document, recording)

    def check(shown) -> None:
        bubbles = shown.locator("#chat-kvmm [data-testid=user]")
        expect(bubbles.locator(".preview")).to_have_count(SHOWN)
        expect(bubbles.locator(".more")).to_have_text("+ 2 more")
        expect(bubbles.locator(".preview").nth(3)).to_have_attribute("title", "six pages.pdf, page 4 of 6")
        expect(bubbles.locator(PLAYER).first).to_be_attached()
        expect(shown.locator("#page-text summary")).to_have_text("Text in the PDF, 6 pages")
        bubbles.locator(".preview").first.click()
        expect(shown.locator("dialog#enlarged img")).to_be_visible()
        shown.keyboard.press("Escape")

    check(page)
    visit.reload(page)
    check(page)
    screenshot(page, "previews-reloaded")
    with page.expect_download() as download:
        page.locator("#save").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    other = visit()
    with other.expect_file_chooser() as chooser:
        other.locator("#load").click()
    chooser.value.set_files(str(path))
    check(other)


def test_a_recording_is_a_player_beside_the_previews(visit, screenshot, invoice, recording):
    page = visit()
    send(page, "What is the total?", invoice, recording)
    bubbles = page.locator("#chat-kvmm [data-testid=user]")
    expect(bubbles.locator(".preview")).to_have_count(1)
    expect(bubbles.locator(".preview")).to_have_attribute("title", "march.png")
    expect(bubbles.locator(PLAYER).first).to_be_attached()
    screenshot(page, "previews-recording")


def test_what_is_no_picture_is_a_link(tmp_path, document):
    fake = tmp_path / "fake.png"
    fake.write_text("words")
    (sent, question) = user_messages("Why?", [str(fake)])
    assert sent["content"][0]["type"] == "file" and sent["content"][0]["file"]["mime_type"] is None
    assert question["content"][0]["text"] == "Why?"
    (gone,) = user_messages("", [str(tmp_path / "gone.pdf")])
    assert gone["content"][0]["file"]["mime_type"] is None
    (link,) = user_messages("", [str(document)], links=True)
    assert link["content"][0]["type"] == "file"
    evil = tmp_path / "<img src=x onerror=alert(1)>.pdf"
    evil.write_bytes(document.read_bytes())
    (shown,) = user_messages("", [str(evil)])
    assert "<img src=x" not in shown["content"][0]["value"] and "&lt;img src=x" in shown["content"][0]["value"]


def test_only_files_that_are_shown_are_decoded(tmp_path, document, invoice, monkeypatch):
    paths = [tmp_path / f"{k:02d}.png" for k in range(70)]
    for path in paths:
        path.write_bytes(invoice.read_bytes())
    paths.append(tmp_path / "z.pdf")
    paths[-1].write_bytes(document.read_bytes())
    decoded, decode = [], previews.preview

    def note(path, count, side, stop):
        pictures, total = decode(path, count, side, stop)
        decoded.append((Path(path).name, len(pictures)))
        return pictures, total

    monkeypatch.setattr(previews, "preview", note)
    html = previews.previews_html([str(path) for path in paths])
    assert html == previews.previews_html([str(path) for path in paths])
    assert html.count("<img") == SHOWN and "+ 72 more" in html and "69.png" in html
    assert decoded == [*((f"0{k}.png", 1) for k in range(SHOWN)), ("z.pdf", 0)]


def test_the_text_of_pages_is_cut_and_escaped():
    from kvmm.media import Media

    def item(page, text):
        return Media("image", None, "<i>.pdf", page, text, len(text))

    assert page_text_html([item(1, ""), item(2, "")]) == ""
    found = page_text_html([item(1, ""), item(2, "<script>"), item(3, "x" * (PAGE_CHARACTERS + 1234))])
    assert "Text in the PDF, 2 pages" in found and "&lt;script&gt;" in found and "<script>" not in found
    assert "&lt;i&gt;.pdf, page 3" in found and "and 1,234 more characters" in found
    assert len(page_text_html([item(k, "y" * 9000) for k in range(64)])) < 60_000
