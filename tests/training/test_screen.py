"""Screens: what is cut off is not asked, panes are read one after the other, and answers stand on the screen."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("train_assets")

KINDS = (
    "shop_product shop_basket shop_listing terminal file_manager week_calendar messenger booking_page settings_dialog "
    "phone_notifications"
).split()
SHAPES = ((756, 532), (560, 448), (784, 308), (504, 784))
DERIVED = ("How many", "How long", "How often", "How are", "By what", "On which day", "Which day", "What weekday")


@pytest.fixture
def document(train_assets):
    from training.office.document import Document
    from training.pages.values import Rng

    return Document(Rng(3), (448, 560))


def test_a_text_that_is_cut_off_is_not_asked_about(document):
    from training.office.canvas_engine import set_on_canvas
    from training.office.screen import Column, Panel, Screen

    ui = Screen(document)
    short, long = ui.text("short"), ui.text("word " * 60)
    ui.show(Panel(Column([short, long])))
    _, drawn, lines = set_on_canvas(document, 448, 560, False)
    assert drawn == {short.part}
    assert lines[0] == "short" and lines[1].endswith("\u2026")


def test_panes_are_read_one_after_the_other(document):
    from training.office.canvas_engine import set_on_canvas
    from training.office.screen import Column, Panel, Row, Screen

    ui = Screen(document)
    left, right = (Column(ui.texts((f"{side} 1", f"{side} 2"))) for side in ("left", "right"))
    ui.show(Panel(Row([left, right], [1, 1], top=True, panes=True)))
    _, drawn, lines = set_on_canvas(document, 448, 560, False)
    assert len(drawn) == 4 and lines == ["left 1", "left 2", "right 1", "right 2"]


def test_the_last_bar_stays_where_a_list_is_too_long(document):
    from training.office.canvas_engine import set_on_canvas
    from training.office.screen import Column, Panel, Screen

    ui = Screen(document)
    rows, foot = ui.texts(f"row {n}" for n in range(90)), ui.text("foot")
    ui.show(Panel(Column([Column(rows), foot], elastic=0)))
    _, drawn, lines = set_on_canvas(document, 448, 560, False)
    assert {rows[0].part, foot.part} <= drawn and rows[-1].part not in drawn
    assert lines[-1] == "foot"


@pytest.mark.parametrize("kind", KINDS)
def test_screens_ask_what_they_show(kind, train_assets):
    from training.office.pages import make_office_page

    printed, missing, open_ = 0, [], 0
    for seed in range(8):
        page = make_office_page(seed, *SHAPES[seed % 4], kind=kind)
        text = " ".join(page.lines)
        open_ += len(page.absent)
        for fact in page.facts:
            if fact.asks[0].startswith(DERIVED) or fact.value in ("yes", "no"):
                continue
            printed += 1
            words = fact.value.replace(",", " ").split()
            if not all(word.lower() in text.lower() for word in words if word != "and"):
                missing.append((fact.asks[0], fact.value))
    assert printed > 50 and open_ >= 12
    assert len(missing) <= 0.1 * printed, missing


def test_screens_are_light_and_dark(train_assets):
    from training.office.pages import make_office_page

    shares = [(make_office_page(seed, 504, 784, kind="terminal").ink > 127).mean() for seed in range(12)]
    assert min(shares) < 0.3 and max(shares) > 0.7
