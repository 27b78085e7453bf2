"""Tables of two levels of headings: cells stay where they belong in every layout, and merged cells are merged."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("train_assets")

KINDS = ("merged_table", "comparison", "rota", "schedule", "tariff")
LEAVES = [(group, name) for group in ("North", "South") for name in ("Sold", "Sent")]


def document(seed: int = 3):
    from training.office.document import Document
    from training.pages.values import Rng

    return Document(Rng(seed), (560, 560))


def drawn_by(engine: str, d, width: int = 560):
    """(ink, drawn parts, lines) of a document."""
    if engine == "canvas":
        from training.office.canvas_engine import set_on_canvas

        canvas, drawn, lines = set_on_canvas(d, 560, width, False)
        return canvas.ink(), drawn, lines
    pytest.importorskip("reportlab")
    pytest.importorskip("pypdfium2")
    from training.office.pdf_engine import set_as_pdf

    ink, _, drawn, lines = set_as_pdf(d, 560, width, False)
    return ink, drawn, lines


def grid():
    from training.office.grids import Grid

    return Grid(["Oslo", "Lyon"], LEAVES, {(n, i): f"{n}{i}" for n in range(2) for i in range(4)})


def test_every_layout_has_every_cell_under_its_headings(train_assets):
    from training.office.grids import ACROSS, BY_GROUP, BY_NAME, DOWN

    assert set(grid().layouts()) == {ACROSS, DOWN, BY_NAME, BY_GROUP}
    for layout in grid().layouts():
        d, g = document(), grid()
        g.set(d, layout)
        block, lead = d.blocks[0], ["", ""]
        rows = block.options["rows"]
        found = {}
        above = [name for name, count in zip(block.options["groups"], block.options["spans"], strict=True)
                 for _ in range(count)]  # fmt: skip
        for row, part in zip(rows, block.parts, strict=True):
            lead = [row[0] or lead[0], row[1]]
            values = row[1:] if layout == ACROSS else row[2:]
            heads = block.options["header"][-len(values) :]
            for k, value in enumerate(values):
                names = {heads[k], lead[0], above[k] if layout == ACROSS else lead[1]}
                found[value] = names, part
        for (n, i), value in g.cells.items():
            names, part = found[value]
            assert names == {g.names[n], *LEAVES[i]}, (layout, value)
            assert part in g.parts[n, i]
        assert set(g.everything) == set(block.parts)


def test_uneven_groups_are_set_across_or_down_only(train_assets):
    from training.office.grids import ACROSS, DOWN, Grid

    uneven = Grid(["A", "B"], LEAVES[:3], {(n, i): "1" for n in range(2) for i in range(3)})
    assert uneven.layouts() == [ACROSS, DOWN]
    d = document()
    uneven.set(d, ACROSS)
    assert d.blocks[0].options["spans"] == [2, 1]


def test_spans_of_headings(train_assets):
    from training.office.document import spanned

    assert spanned([2, 1], 4) == [range(1, 3), range(3, 4)] and spanned([], 3) == []
    d = document()
    d.table(["", "a", "b", "a", "b"], [["x", "1", "2", "3", "4"]], groups=["G", "H"])
    assert d.blocks[0].options["spans"] == [2, 2]


@pytest.mark.parametrize("engine", ["canvas", "pdf"])
def test_both_engines_set_merged_and_uneven_cells(engine, train_assets):
    for seed in range(8):
        d = document(seed)
        across = d.table(["", "Won", "Lost", "Won"], [["Ulm", "11", "12", "13"]], 3, ["Home", "Away"], spans=[2, 1])
        down = d.table(["Day", "Who"], [["Monday", "Ann"], ["", "Bob"], ["Friday", "Cleo"]], merged=True)
        _, drawn, lines = drawn_by(engine, d)
        assert drawn == {*across, *down}
        text = " ".join(lines)
        for word in ("Home", "Away", "Lost", "13", "Monday", "Bob", "Friday", "Cleo"):
            assert len(re.findall(rf"\b{word}\b", text)) == 1, (word, lines)


def test_no_line_runs_through_a_merged_cell(train_assets):
    from training.office.canvas_engine import office_style
    from training.pages.blocks import Box, Setter
    from training.pages.canvas import Canvas
    from training.pages.values import Rng

    ink = []
    for starts in ((), (0, 2)):
        style = office_style(Rng(1), 560, False)
        style.table, style.rule = "grid", 255
        setter = Setter(Canvas(560, 560), style, Rng(1))
        rows = [["", ""], ["", ""], ["", ""]]
        setter.table(Box(20, 500, 20, 540), ["", ""], rows, "ll", [1, 1], show_header=False, starts=starts)
        ink.append(setter.canvas.ink())
    plain, merged = (np.flatnonzero(page[:, 100]).size for page in ink)
    assert (plain, merged) == (4, 3)
    assert np.array_equal(ink[0][:, 400], ink[1][:, 400])


def test_a_table_whose_headings_do_not_fit_is_not_asked(train_assets):
    """What is asked by a heading needs it on the page."""
    long = ["Unpronounceability", "Counterrevolutionary", "Incomprehensibility", "Telecommunications"]
    d = document()
    parts = d.table(["", *long], [["x", "1", "2", "3", "4"]])
    assert not set(parts) & drawn_by("canvas", d, 168)[1]
    d = document()
    parts = d.table(["", "a", "b"], [["x", "1", "2"]], groups=[" ".join(long), "Y"])
    assert not set(parts) & drawn_by("canvas", d, 168)[1]


def test_wide_tables_are_set_in_smaller_type(train_assets):
    """All columns of a table, of which large type leaves room for a few and paddings for the rest."""
    from training.office.canvas_engine import office_style, set_on_canvas

    for seed in range(6):
        d = document(seed)
        parts = d.table([f"Head {i}" for i in range(8)], [[f"value {i}" for i in range(8)]])
        _, drawn, _ = set_on_canvas(d, 560, 560, False, office_style(d.r, 560, False, 34))
        assert set(parts) <= drawn, seed


def test_the_second_engine_breaks_no_word_of_a_table(train_assets):
    """Neither where columns are wide enough for all words nor where the type has to be smaller for that."""
    pytest.importorskip("reportlab")
    pytest.importorskip("pypdfium2")
    from reportlab.pdfbase.pdfmetrics import stringWidth

    from training.office.pdf_engine import Look, Setter

    d = document()
    d.table(["Category", "A", "Unlimited"], [["Equipment", "a rather long text of many words", "Comprehensive"]])
    for size in (10.0, 30.0):
        look = Look("Helvetica", "Helvetica-Bold", "Helvetica", size, False, "grid")
        for table, _ in Setter(d.r, look, 280).set_table(d.blocks[0]):
            for cell, width in zip(table._cellvalues[0], table._colWidths, strict=True):
                words = cell.text.split()
                assert all(stringWidth(w, cell.style.fontName, cell.style.fontSize) < width - 6 for w in words)
        assert look.size == size


def test_merged_rows_have_no_general_look_ups(train_assets):
    from training.office.lookups import add_lookups

    d = document()
    d.table(["Day", "Who"], [["Monday", "Ann"], ["", "Bob"], ["Friday", "Cleo"]], merged=True)
    add_lookups(d)
    assert not d.asks


@pytest.mark.parametrize("kind", KINDS)
def test_tables_ask_each_question_with_one_answer(kind, train_assets):
    from training.office.registry import kinds

    for seed in range(60):
        d = document(seed)
        kinds()[kind][0](d)
        said: dict[str, str | None] = {}
        assert len(d.asks) > 8
        for ask in d.asks:
            for question in ask.questions:
                assert said.setdefault(question, ask.answer) == ask.answer, (seed, question)
                assert question == question.strip() and "  " not in question and "{" not in question, question


def test_a_tariff_knows_which_months_a_season_has(train_assets):
    from training.office.kinds.tariffs import SEASONS, _months

    assert _months("Nov-Feb") == [10, 11, 0, 1] and _months("May-Sep") == [4, 5, 6, 7, 8]
    for seasons in SEASONS:
        months = [month for season in seasons for month in _months(season.split("|")[2])]
        assert sorted(months) == list(range(12)), seasons


def test_a_rota_answers_what_its_table_says(train_assets):
    """Who works is read off the rows as they are set."""
    from training.office.registry import kinds

    checked = 0
    for seed in range(80):
        d = document(seed)
        kinds()["rota"][0](d)
        table = next(block for block in d.blocks if block.kind == "table")
        cells = [cell for row in table.options["rows"] for cell in row]
        for ask in d.asks:
            if ask.questions[0].startswith("How many shifts does") and " does a " not in ask.questions[0]:
                name = ask.questions[0].removeprefix("How many shifts does ").removesuffix(" have?")
                assert cells.count(name) == int(ask.answer), (seed, name)
                checked += 1
    assert checked > 60


def test_a_tariff_of_bare_prices_may_say_their_currency(train_assets):
    """Above the table, where it is asked for; where every price has its sign, neither."""
    from training.office.registry import kinds
    from training.office.values import CURRENCIES

    found = []
    for seed in range(60):
        d = document(seed)
        kinds()["tariff"][0](d)
        found += [ask.answer for ask in d.asks if "What is the currency?" in ask.questions]
    assert 8 < len(found) < 52 and len(set(found)) > 3
    assert set(found) <= set(CURRENCIES)
