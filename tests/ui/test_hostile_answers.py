"""An answer that is markup, in a real browser: it shows as text, fetches nothing, and covers nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from kvmm.errors import KVMMError
from kvmm.media import load_image
from kvmm.models.text_layer import TextLayer
from kvmm.ui.chat import streaming
from kvmm.ui.parts import toasts
from tests.media.files import scan_pdf
from tests.ui.test_app import QUESTION, answers, ask

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    """Another host, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def hostile(host: str) -> str:
    return "\n\n".join(
        (
            f"<img class=evil src={host}/img>",
            f"![picture]({host}/markdown)",
            f"![picture][a]\n\n[a]: {host}/reference",
            "<style>body { display: none }</style>",
            "<div class=evil style='position:fixed;inset:0;z-index:9999;background:red'>gone</div>",
            f"<svg class=evil onload='fetch(\"{host}/svg\")'><image href={host}/image /></svg>",
            "[click](javascript:document.title='evil')",
            f'<a class=evil href="javascript:fetch(`{host}/a`)">click</a>',
            f"<iframe class=evil src={host}/frame></iframe>",
            f"see {host}/plain, www.host.com or a@host.com, `<b>{host}/span`",
            "**The end**",
            f"```html\n<img class=evil src={host}/code>\n```",
            f"~~~\n```\n~~~\n<img class=evil src={host}/fence>\n```",
        )
    )


@pytest.mark.parametrize("width", [1280, 390])
def test_an_answer_that_is_markup_shows_as_text(visit, screenshot, tmp_path, invoice, elsewhere, monkeypatch, width):
    host, asked = elsewhere
    text, safe = hostile(host), streaming.safe_markdown
    monkeypatch.setattr(streaming, "safe_markdown", lambda written: safe(text if written else written))
    page = visit(viewport={"width": width, "height": 900})
    named = tmp_path / "<img class=evil src=x>.png"  # Gradio drops the brackets
    named.write_bytes(invoice.read_bytes())
    ask(page, QUESTION, named)
    said = answers(page).filter(has_text="The end")
    expect(said.locator("strong")).to_have_text("The end")
    for shown in (
        f"<img class=evil src={host}/img>",
        f"![picture]({host}/markdown)",
        "<style>body",
        "[click](java",
        f"see {host}/plain, www.host.com or a@host.com",
    ):
        expect(said).to_contain_text(shown)
    expect(said.locator("p > code").last).to_have_text(f"<b>{host}/span")
    expect(said.locator("pre code").first).to_have_text(f"<img class=evil src={host}/code>\n")
    expect(page.locator("#chat-kvmm .previews + .preview-names")).to_contain_text("img class=evil src=x.png")
    box = page.locator("#rename-box textarea, #rename-box input").first
    page.locator("#rename").click()
    box.fill(f"<img class=evil src={host}/title>")
    box.press("Enter")
    expect(box).to_be_hidden()
    page.locator("#new-conversation").click()
    expect(page.locator("#talks")).to_contain_text(f"<img class=evil src={host}/title>")
    page.locator("#talks label").filter(has_text="class=evil").click()
    expect(said).to_be_visible()
    expect(page.locator(".evil")).to_have_count(0)
    expect(said.locator("a")).to_have_count(0)
    expect(page.get_by_role("heading", name="kvmm", exact=True)).to_be_visible()
    screenshot(page, f"hostile-answer-{width}")
    assert asked == [] and page.title() == "kvmm"


def test_a_passage_of_a_pdf_that_is_markup_shows_as_text(visit, tmp_path, invoice, elsewhere, monkeypatch):
    host, asked = elsewhere
    passage = f"<img class=evil src={host}/img> ![p]({host}/m) **b** $x$ `c`"
    monkeypatch.setattr(TextLayer, "nearest", lambda self, answer: passage)
    path = tmp_path / "march.pdf"
    path.write_bytes(scan_pdf(load_image(invoice), "Total due: $1,724.94"))
    page = visit()
    ask(page, QUESTION, path)
    title = page.locator("#chat-kvmm .thought-group .title", has_text="The PDF's text has:")
    expect(title).to_contain_text(passage)
    expect(page.locator(".evil")).to_have_count(0)
    expect(title.locator("img, strong, code, a, .katex")).to_have_count(0)
    assert asked == []


def test_a_message_over_the_page_is_text(monkeypatch):
    shown: list[str] = []
    monkeypatch.setattr(toasts.gr, "Warning", lambda text, duration: shown.append(text))
    toasts.warn(KVMMError("<img src=x>.png & 'co' is damaged"))
    assert shown == ["&lt;img src=x&gt;.png &amp; 'co' is damaged"]
    assert toasts.failure(KVMMError("<b>")).message == "&lt;b&gt;"


def test_nothing_comes_from_another_host_whatever_is_in_the_page(browser, url, elsewhere):
    host, asked = elsewhere
    context = browser.new_context()
    page = context.new_page()
    page.goto(url)
    expect(page.get_by_role("heading", name="kvmm", exact=True)).to_be_visible()
    seen = page.evaluate(
        """async (host) => {
          const seen = [];
          document.addEventListener('securitypolicyviolation', (event) => seen.push(event.effectiveDirective));
          document.body.insertAdjacentHTML('beforeend', `<img src="${host}/1"><audio src="${host}/2"></audio>
            <link rel="stylesheet" href="${host}/3"><object data="${host}/4"></object><iframe src="${host}/5"></iframe>
            <div style="background: url(${host}/6)">x</div>`);
          await fetch(`${host}/7`).catch(() => {});
          await new Promise((done) => setTimeout(done, 500));
          return seen;
        }""",
        host,
    )
    expected = {"img-src", "media-src", "style-src-elem", "object-src", "frame-src", "connect-src"}
    assert asked == [] and expected <= set(seen)
    own = page.evaluate("async () => (await fetch('/gradio_api/file=http://127.0.0.1/x.png')).status")
    assert own == 403  # the server fetches nothing for a page either
    context.close()
