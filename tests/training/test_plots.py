"""Charts in many looks: what is asked of them is what they show."""

import re

import numpy as np
import pytest

from training.office.charts import draw_chart
from training.office.document import Block, Document
from training.office.hand_forms import HandForm
from training.office.pages import make_office_page
from training.office.plots import draw_plot
from training.office.series_charts import draw_series
from training.office_dataset import any_page
from training.pages import Rng
from training.pages.blocks import Box
from training.pages.canvas import CHARACTERS, Canvas, font_files
from training.refusals import measure
from training.wordings import NOT_STATED

pytestmark = pytest.mark.usefixtures("train_assets")
SHAPES = ((756, 532), (560, 448), (504, 784), (784, 308))


def drawn(form, seed, many=False, draw=draw_plot, **options):
    from training.office.canvas_engine import office_style
    from training.pages.blocks import Setter

    r = Rng(seed)
    canvas = Canvas(700, 700)
    values = [[20, 40, 10], [30, 10, 50]] if many else [20, 40, 10]
    texts = [[str(x) for x in row] for row in values] if many else [str(x) for x in values]
    more = {"series": ["Red", "Blue"]} if many else {}
    ticks = [(i * 20, str(i * 20)) for i in range(5)]
    block = Block(
        "chart",
        [0],
        ["Ann", "Bob", "Cy"],
        {"form": form, "values": values, "printed": texts, "ticks": ticks, **more, **options},
    )
    setter = Setter(canvas, office_style(r, 700, False), r)
    return draw(setter, Box(30, 670, 20, 680), block), canvas


@pytest.mark.parametrize("form", ["bar", "column", "line", "area", "dots", "lollipop", "pie", "donut"])
def test_single_series_show_labels_and_values(form):
    shown = [drawn(form, seed) for seed in range(12)]
    assert sum(done for done, _ in shown) >= 10
    for done, canvas in shown:
        text = " ".join(canvas.lines())
        if done:
            assert all(word in text for word in ("Ann", "Bob", "Cy", "40"))
        else:
            assert not text and not canvas.ink().any()


@pytest.mark.parametrize("form", ["grouped", "lines", "grouped_bar", "stacked_bar", "stacked"])
def test_several_series_show_their_legend(form):
    shown = [drawn(form, seed, many=True, printed=None) for seed in range(12)]
    assert sum(done for done, _ in shown) >= 10
    for done, canvas in shown:
        if done:
            assert all(word in " ".join(canvas.lines()) for word in ("Ann", "Red", "Blue", "80"))


def shortened(word, text):
    """Whether a word is a text, of which a narrow face may have had two characters in one cell."""
    rest = iter(text)
    return all(character in rest for character in word)


@pytest.mark.parametrize(
    ("form", "draw"),
    [(form, draw_plot) for form in ("bar", "column", "line", "grouped", "lines", "lollipop")]
    + [(form, draw_chart) for form in ("bar", "column", "line")]
    + [(form, draw_series) for form in ("grouped", "lines")],
)
def test_values_that_are_not_printed_are_in_the_character_map_alone(form, draw):
    """Where they would stand in print; the picture and its text have the labels and the ticks."""
    many, texts = form in ("grouped", "lines"), [["27", "48", "13"], ["35", "16", "59"]]
    for seed in range(6):
        without, plain = drawn(form, seed, many, draw, printed=None)
        done, canvas = drawn(form, seed, many, draw, printed=None, value_texts=texts)
        assert done == without and (canvas.ink() == plain.ink()).all() and canvas.lines() == plain.lines()
        added = canvas.chars[canvas.chars != plain.chars]
        assert done == bool(added.size) and (plain.chars[canvas.chars != plain.chars] == 0).all()
        rows = ["".join(CHARACTERS[c] for c in row) for row in np.where(plain.chars == 0, canvas.chars, 0)]
        words = {word.replace(" ", "") for row in rows for word in re.split(" {3,}", row)} - {""}
        assert done == bool(words) and all(
            any(shortened(word, text) for row in texts for text in row) for word in words
        )


def test_longer_bars_have_more_ink():
    measured = 0
    for seed in range(16):
        done, canvas = drawn("bar", seed, printed=None, ticks=None)
        if not done or canvas.ink()[60:80, 660:668].min() > 20:  # a dark picture
            continue
        rows = {text: int(y) for y, _, text in canvas.items}
        bands = {name: canvas.ink()[rows[name] - 4 : rows[name] - 1, 120:] for name in rows}
        length = {name: int((band.max(0) > 20).sum()) for name, band in bands.items()}
        measured += 1
        assert length["Cy"] < length["Ann"] < length["Bob"], (seed, length)
    assert measured >= 8


@pytest.mark.parametrize("kind", ["plot", "plot_series"])
def test_answers_of_charts_are_on_the_page(kind):
    for seed in range(20):
        page = make_office_page(seed, *SHAPES[seed % 4], kind=kind)
        text = " ".join(page.lines)
        for fact in page.facts:
            if fact.asks[0].startswith(
                ("What is the title of the chart", "Where do the figures come", "Which one is the largest")
            ):
                assert all(word in text for word in fact.value.split()), (seed, fact)


def test_an_empty_field_is_refused_and_a_full_one_is_not():
    refused, answered = 0, 0
    for seed in range(60):
        page = make_office_page(seed, 812, 588, kind="pen_form")
        empty = [f for f in page.facts if f.asks[0].startswith("Is the field") and f.value == "no"]
        for fact in empty:
            label = fact.asks[1].split('"')[1]
            mine = [a for a in page.absent if a.asks and f'"{label}"' in a.asks[-1]]
            refused += len(mine)
            assert all(a.value == NOT_STATED for a in mine)
        answered += sum(f.value != NOT_STATED for f in page.facts)
    assert refused > 20 and answered > 400


def test_ticks_are_marked_in_the_text_of_the_page():
    marked = 0
    for seed in range(40):
        page = make_office_page(seed, 812, 588, kind="pen_form")
        for fact in page.facts:
            if fact.asks[0].startswith("What is ticked"):
                line = next(line for line in page.lines if "[x]" in line and fact.value.split(", ")[0] in line)
                marked += 1
                assert line.count("[x]") == len(fact.value.split(", "))
    assert marked > 20


def test_a_pen_that_finds_no_room_leaves_the_entry_out():
    from training.office.canvas_engine import office_style
    from training.pages.blocks import Setter

    r = Rng(3)
    canvas = Canvas(400, 300)
    hand = font_files(False, hand=True)
    setter = Setter(canvas, office_style(r, 300, False), r)
    form = HandForm(setter, hand[0] if hand else None, hand[0] if hand else None, Box(10, 290, 20, 390))
    rows = [
        [{"label": "Name", "value": "Ada Bell", "style": "line"}],
        [{"label": "Word", "value": "W" * 90, "style": "line"}],
    ]
    assert form.draw(rows, [4, 9]) == [4]
    assert "W" * 90 not in " ".join(canvas.lines())


def test_refusals_are_counted():
    def make(r, height, width):
        return make_office_page(r.getrandbits(40), height, width)

    report = measure(30, 5, make)
    assert report["questions"] == sum(row["questions"] for row in report["kinds"].values()) > 200
    assert 0.02 < report["share"] < 0.12


def test_written_documents_are_asked_for_more_that_they_leave_open():
    kinds = measure(40, 7, lambda r, height, width: make_office_page(r.getrandbits(40), height, width, kind="passage"))
    others = measure(40, 7, lambda r, height, width: make_office_page(r.getrandbits(40), height, width, kind="plot"))
    assert 1.3 * others["share"] < kinds["share"] < 0.2


def test_a_quarter_of_the_pages_have_charts():
    pages = [any_page(Rng(seed), 560, 448, False) for seed in range(80)]
    assert 12 < sum(bool(page.charts) for page in pages) < 36


def test_documents_know_the_rows_of_a_pen_form():
    document = Document(Rng(1), (500, 500))
    parts = document.hand_form(
        [[{"label": "A", "value": "x", "style": "line"}], [{"label": "B", "value": "", "style": "box"}]]
    )
    assert len(parts) == 2 and document.blocks[-1].kind == "hand_form"
