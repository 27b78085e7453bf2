"""Every PDF a user may send, good and bad. The bad ones end in one line that says what to do."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import numpy as np
import pypdfium2
import pytest
from reportlab.lib.pdfencrypt import StandardEncryption

from kvmm import media, pdf
from kvmm.decoding import read
from kvmm.errors import KVMMError
from kvmm.media import load_document, load_media, load_pdf, preview
from tests.media.files import encode, make_pdf, photo, refused


def test_pages_of_a_pdf(tmp_path: Path):
    path = tmp_path / "report.png"  # the name does not matter
    path.write_bytes(make_pdf(3))
    items = load_media(path)
    assert [(item.kind, item.page) for item in items] == [("image", 1), ("image", 2), ("image", 3)]
    assert all(item.data.mode == "RGB" and item.data.size == (1240, 1755) for item in items)  # A4 at 150 dpi
    assert min(items[0].data.convert("L").getextrema()) < 100, "something is drawn"
    assert not np.array_equal(items[0].data, items[1].data)


def test_the_text_layer_stays_with_its_page(monkeypatch):
    pages = load_document(make_pdf(2))
    assert [(page.text, page.text_length) for page in pages] == [("This is page 1", 14), ("This is page 2", 14)]
    monkeypatch.setattr(pdf, "MAX_PAGE_TEXT", 7)
    (page,) = load_document(make_pdf())
    assert page.text == "This is" and page.text_length == 14
    assert load_media(encode(photo(), "PNG"))[0].text == ""


def test_the_text_layer_holds_nothing_that_a_terminal_obeys():
    class Layer:
        text = ""

        def get_textpage(self):
            return self

        def count_chars(self):
            return len(self.text)

        def get_text_range(self, start, count):
            return self.text[start : start + count]

    layer = Layer()
    layer.text = "one\x1b[31mred\x07  \r\nhy\ufffephen\ttwo\r\n\r\n"
    assert pdf._text(layer) == ("one[31mred\nhyphen\ttwo", len(layer.text))
    layer.text = " \x1b \n"
    assert pdf._text(layer) == ("", 0)


def test_a_preview_is_small_and_counts_all_pages():
    pictures, count = preview(make_pdf(9), 4, 300)
    assert len(pictures) == 4 and count == 9 and {max(one.size) for one in pictures} == {300}
    (picture,), count = preview(encode(photo(), "PNG"), 4, 20)
    assert max(picture.size) == 20 and count == 1
    refused(preview, b"%PDF-1.7\n" + b"garbage " * 50, 4, 300, match="is damaged")
    refused(preview, b"words", 4, 300, match="is a text file")


def test_a_poster_is_rendered_at_fewer_dpi():
    (page,) = load_pdf(make_pdf(size=(8000, 4000)))
    assert page.size == (4096, 2048)


def test_a_document_is_read_beside_previews_and_ends_at_stop(monkeypatch):
    read, stop, previews = pdf._read, threading.Event(), []

    def note(document, index, name):
        page = read(document, index, name)
        if index == 1:
            stop.set()
        return page

    def between(*args):
        thread = threading.Thread(target=lambda: previews.append(preview(make_pdf(2), 1, 100)[1]))
        thread.start()
        thread.join(10)
        return False

    stop.is_set = lambda asked=stop.is_set: between() or asked()  # asked between two pages: nobody holds PDFium then
    monkeypatch.setattr(pdf, "_read", note)
    with pytest.raises(KVMMError, match="stopped at page 3 of 5"):
        load_media(make_pdf(5), stop=stop)
    assert previews == [2, 2, 2]


def test_encrypted_pdf():
    locked = make_pdf(encrypt=StandardEncryption("user", "owner", strength=128))
    refused(load_pdf, locked, match="protected by a password")
    # A PDF that only restricts printing opens without a password.
    assert len(load_pdf(make_pdf(encrypt=StandardEncryption("", "owner", canPrint=0, strength=128)))) == 1


def test_pdfs_without_content():
    refused(load_pdf, make_pdf(2, blank=True), match="is empty: nothing is drawn on its 2 pages")
    document = pypdfium2.PdfDocument.new()
    out = io.BytesIO()
    document.save(out)
    refused(load_pdf, out.getvalue(), match="has no pages")


def test_damaged_pdf():
    data = make_pdf(4)
    refused(load_pdf, b"%PDF-1.7\n" + b"garbage " * 50, match="is damaged")
    refused(load_pdf, data[:200], match="is damaged")


def test_too_many_pages(monkeypatch):
    refused(load_pdf, make_pdf(media.MAX_PDF_PAGES + 1), match="has 65 pages and may have 64")
    refused(load_media, make_pdf(3), max_pages=2, match="has 3 pages and may have 2")
    assert len(load_pdf(make_pdf(3), max_pages=3)) == 3
    monkeypatch.setattr(read, "MAX_PDF_BYTES", 100)
    refused(load_pdf, make_pdf(), match="make it smaller")


def test_a_strip_of_a_page():
    refused(load_pdf, make_pdf(size=(14_000, 20)), match="too narrow a strip")
