"""Lines of pages: one baseline for what belongs together, room for the letters, alignment that is kept."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

pytestmark = pytest.mark.usefixtures("train_assets")


@pytest.fixture
def setter(train_assets):
    """A setter whose labels are twice as large as its values."""
    from training.pages.blocks import Setter
    from training.pages.canvas import Canvas, face, font_files
    from training.pages.style import Style
    from training.pages.values import Rng

    style = Style.random(Rng(3), 532, False)
    path = font_files(False)[0]
    return Setter(Canvas(756, 532), replace(style, body=face(path, 11), bold=face(path, 26), leading=2), Rng(1))


@pytest.mark.parametrize("style", ["colon", "tab", "ruled", "right", "dots", "strip"])
def test_a_value_stands_on_the_line_of_its_label(setter, style):
    from training.office.canvas_engine import rows_of
    from training.pages.blocks import Box

    entries = [("Mode", "on", None), ("Hotspot", "off", None), ("Backup", "weekly", None)]
    setter.fields(Box(20, 500, 20, 700), entries, style)
    for rows in (rows_of(setter.canvas.items), setter.canvas.lines()):
        text = " ".join(rows).replace(":", "").replace(" -", "").split()
        assert text == ["Mode", "on", "Hotspot", "off", "Backup", "weekly"]
        assert len(rows) == len({baseline for baseline, *_ in setter.canvas.items})
    rows = sorted({baseline for baseline, *_ in setter.canvas.items})
    assert all(b - a >= setter.style.bold.height for a, b in itertools.pairwise(rows))


def test_a_face_of_wrong_metrics_has_room_for_its_letters(train_assets, monkeypatch):
    from training.pages import canvas

    path = canvas.font_files(False)[0]
    known = canvas.Face(path, 40)
    load = canvas.ImageFont.truetype

    class Odd:
        def __init__(self, font):
            self.font = font

        def __getattr__(self, name):
            return getattr(self.font, name)

        def getmetrics(self):
            return 54, -26

    monkeypatch.setattr(canvas.ImageFont, "truetype", lambda *args, **kwargs: Odd(load(*args, **kwargs)))
    odd = canvas.Face(path, 40)
    _, top, _, bottom = known.font.getbbox("bdgpqy", anchor="ls")
    assert odd.ascent >= -top and odd.descent >= bottom and odd.height <= 1.2 * known.height


def test_lines_of_a_pdf_are_as_high_as_their_letters(train_assets, monkeypatch):
    pdf_engine = pytest.importorskip("training.office.pdf_engine")
    if not pdf_engine.available():
        pytest.skip("the packages of the second engine are not installed")
    from training.pages.values import Rng

    look = pdf_engine.Look("Helvetica", "Helvetica-Bold", "Helvetica", 10.0, False, "")
    setter = pdf_engine.Setter(Rng(1), look, 400)
    assert setter.text("low").style.leading == pytest.approx(12.2)
    monkeypatch.setattr(pdf_engine.pdfmetrics, "getAscentDescent", lambda font, size: (1.2 * size, -0.44 * size))
    assert setter.text("low").style.leading == pytest.approx(16.4)


def test_hands_that_nobody_can_read_are_left_out(train_assets, tmp_path, monkeypatch):
    from training.pages import canvas

    for name in ("Isabella.ttf", "femkeklaver.ttf", "Kristi.ttf"):
        (tmp_path / "fonts" / "hand").mkdir(parents=True, exist_ok=True)
        (tmp_path / "fonts" / "hand" / name).touch()
    monkeypatch.setattr(canvas, "assets_dir", lambda: tmp_path)
    assert [path.rpartition("/")[2] for path in canvas.font_files.__wrapped__(False, hand=True)] == ["Kristi.ttf"]


@pytest.mark.parametrize("align", ["l", "c", "r"])
@pytest.mark.parametrize("kind", ["heading", "lines"])
def test_headings_and_long_lines_keep_their_alignment(setter, align, kind):
    from training.office.canvas_engine import Engine
    from training.office.document import Document
    from training.pages.blocks import Box
    from training.pages.values import Rng

    document = Document(Rng(0), (756, 532))
    long = "Several words that do not fit into one line of a page as narrow as this one is"
    document.heading(long, 2, align) if kind == "heading" else document.line(long, align, bold=True)
    Engine(setter, False).run(document, Box(20, 500, 20, 700))
    ends = [(x, x + setter.style.bold.width(text)) for _, x, text in setter.canvas.items]
    assert len(ends) > 1
    inside = {"l": lambda a, b: a == 20, "r": lambda a, b: abs(b - 500) <= 1, "c": lambda a, b: abs(a + b - 520) <= 2}
    assert all(inside[align](a, b) for a, b in ends)


def test_numbers_of_a_line_stand_clear_of_it():
    from training.office.charts import in_valley

    values = [5, 2, 9, 9, 4, 6]
    assert [in_valley(values, i) for i in range(6)] == [False, True, False, False, True, False]
    assert not in_valley([3], 0)


def test_labels_of_a_pdf_are_not_broken(train_assets):
    pdf_engine = pytest.importorskip("training.office.pdf_engine")
    if not pdf_engine.available():
        pytest.skip("the packages of the second engine are not installed")
    from training.office.document import Document
    from training.pages.values import Rng

    document = Document(Rng(0), (784, 308))
    document.fields([("Do not disturb", "On"), ("Wi-Fi", "Off")])
    for seed in range(8):
        look = pdf_engine.Look("Helvetica", "Helvetica-Bold", "Helvetica", 12.0, False, "")
        for table, _ in pdf_engine.Setter(Rng(seed), look, 160).set_fields(document.blocks[0]):
            label = table._cellvalues[0][0]
            assert label.wrap(table._colWidths[0] - 6, 100)[1] == pytest.approx(label.style.leading)


def test_a_row_of_a_pdf_with_a_wrapped_cell_is_one_line(train_assets):
    pdf_engine = pytest.importorskip("training.office.pdf_engine")
    if not pdf_engine.available():
        pytest.skip("the packages of the second engine are not installed")
    from training.office.document import Document
    from training.pages.values import Rng

    rows = [
        [
            "Chairs with adjustable arm rests and wheels for hard floors",
            "gate four of the old harbour",
            "3",
            "1,240.00",
        ],
        ["Paper", "the room behind the stairs, second shelf from the door", "10", "45.00"],
        ["Lamp", "room 3", "1", "9.50"],
    ]
    document = Document(Rng(0), (784, 532))
    document.paragraph(
        "Paper and what else was ordered in March, as it was delivered and where it was put, line by line."
    )
    (inner, _) = document.columns(2)
    inner.line("Paper")
    parts = document.table(["Goods", "Place", "No.", "Amount"], rows, numbers=2)
    _, _, drawn, lines = pdf_engine.set_as_pdf(document, 784, 532, False)
    assert drawn >= set(parts)
    assert lines[-3:] == [" ".join(row) for row in rows] and lines[-4] == "Goods Place No. Amount"
    assert "Paper" in lines[:-4] and len(lines) > 6  # a paragraph keeps its lines
