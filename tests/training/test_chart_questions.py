"""What charts are asked in steps is what they show, and pictures show what they are asked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("train_assets")
ALL = dict.fromkeys(("labels", "legend", "listed", "value", "found", "extreme", "pair", "rank", "sum", "trend"), 1000)


@pytest.fixture
def document(train_assets):
    from training.office.document import Document
    from training.pages.values import Rng

    return Document(Rng(4), (700, 700))


def answers(document) -> dict[str, str | None]:
    return {question: ask.answer for ask in document.asks for question in ask.questions}


def numbers(unit: str = ""):
    from training.office.chart_values import Numbers
    from training.pages.values import Rng

    write = Numbers(Rng(1), "", 100)
    write.unit, write.space = unit, ""
    return write


def test_one_series_is_asked_from_labels_to_trend(document):
    from training.office.chart_questions import OneSeries

    labels, values = ["Mon", "Tue", "Wed", "Thu"], [10.0, 40.0, 20.0, 5.0]
    texts = [f"{x:g}" for x in values]
    subject = {"value": ["How many loaves were sold on {x}?"], "both": ["How many on {a} and {b} together?"]}
    chart = OneSeries(
        "column", labels, values, texts, numbers(), True, "weekdays", subject, ticks=[(0, "0"), (40, "40")]
    )
    chart.ask(document, 0, ALL)
    said = answers(document)
    assert said["How many loaves were sold on Tue?"] == "40" and said["On which day was it 5?"] == "Thu"
    assert said["With which day does the chart begin?"] == "Mon" and said["How many days are shown?"] == "4"
    assert said["Up to which number does the axis go?"] == "40"
    assert said["Which day has the largest value?"] == "Tue" and said["What is the minimum?"] == "5"
    assert said["List all values."] == "Mon: 10; Tue: 40; Wed: 20; Thu: 5"
    assert said["Which day has the second largest value?"] == "Wed" and said["second lowest?"] == "Mon"
    assert said["When does it rise the most?"] == "from Mon to Tue" and said["Name the top three."] == "Tue, Wed, Mon"
    sums = {q: a for q, a in said.items() if q.endswith("together?") and q.startswith("How many on")}
    assert sums and all(a == f"{sum(values[i] for i, x in enumerate(labels) if x in q):g}" for q, a in sums.items())
    assert not any(question.startswith("How many are below") and answer == "0" for question, answer in said.items())


def test_what_does_not_add_up_is_not_added(document):
    from training.office.chart_questions import OneSeries

    chart = OneSeries(
        "column", ["May", "Jun"], [12.0, 20.0], ["12", "20"], numbers(), True, "months", {"value": ["{x}?"]}
    )
    chart.ask(document, 0, ALL)
    assert not any("together" in question or "sum" in question for question in answers(document))


def test_slices_that_look_alike_are_not_compared(document):
    from training.office.chart_questions import OneSeries

    labels, values = ["A", "B", "C"], [40.0, 38.0, 22.0]
    OneSeries("pie", labels, values, ["40%", "38%", "22%"], numbers("%"), gap=5).ask(document, 0, ALL)
    said = answers(document)
    assert "Which slice is the largest?" not in said and said["Which slice is the smallest?"] == "C"
    assert not any("A" in q and "B" in q for q in said if q.startswith(("Which is higher", "What is the difference")))


def test_several_series_are_asked_by_entry_and_label(document):
    from training.office.kinds.subjects import topics
    from training.office.series_questions import SomeSeries

    topic = next(t for t in topics() if t["titles"][0].startswith("Loans"))
    series, labels, values = ["books", "films"], ["May", "Jun", "Jul"], [[10.0, 30.0, 50.0], [20.0, 15.0, 5.0]]
    chart = SomeSeries(
        "lines", topic, series, labels, values, numbers(), True, "months", dashes=(0, 7), levels=(255, 90), fixed=True
    )
    chart.ask(document, 0, ALL)
    said = answers(document)
    assert said["How many films were borrowed in Jun?"] == "15" and said['Read off "Books" at Jul.'] == "50"
    assert said['Where does "Films" stand at 5?'] == "Jul" and said["In which month were most books borrowed?"] == "Jul"
    assert said['List the values of "Books".'] == "May: 10; Jun: 30; Jul: 50"
    assert said["Which line is dashed?"] == "Films" and said["Which line is solid?"] == "Books"
    assert said["Which one is drawn darkest?"] == "Books" and said["Which one is drawn lightest?"] == "Films"
    assert said["How many loans were there in May altogether?"] == "30"
    assert said["Which series is the highest in May?"] == "Films" and said["Count the lines."] == "2"
    ahead = next(a for q, a in said.items() if q.startswith("For how many months is"))
    assert ahead in {"1", "2"}


def test_only_the_lowest_of_an_unprinted_stack_is_read(document):
    from training.office.kinds.subjects import topics
    from training.office.series_questions import SomeSeries

    topic = next(t for t in topics() if t["titles"][0].startswith("Loans"))
    values = [[10.0, 30.0], [20.0, 25.0]]
    chart = SomeSeries(
        "stacked", topic, ["books", "films"], ["May", "Jun"], values, numbers(), True, "months", False, 15
    )
    chart.ask(document, 0, ALL)
    said = answers(document)
    assert said["How many books were borrowed in May?"] == "10" and "How many films were borrowed in May?" not in said
    assert 'List the values of "Books".' in said and 'List the values of "Films".' not in said
    assert said["How many loans were there in Jun altogether?"] == "55"
    assert not any("ahead" in q and "Jun" in q for q in said)  # 30 and 25 begin at different heights
    assert not any("at the bottom" in q for q in said)  # it may be drawn lying


def test_each_step_asks_a_few(document):
    from training.office.chart_ladder import STEPS
    from training.office.chart_questions import OneSeries

    labels, values = [str(y) for y in range(2010, 2022)], [float(x) for x in (3, 9, 1, 7, 12, 2, 8, 4, 11, 5, 10, 6)]
    OneSeries("line", labels, values, [f"{x:g}" for x in values], numbers(), True, "years").ask(document, 0)
    assert 12 <= len(document.asks) <= sum(STEPS.values())


def test_lines_never_run_over_one_another():
    from training.office.chart_values import apart
    from training.pages.values import Rng

    for seed in range(40):
        rows = apart(Rng(seed), 3, 6, 5)
        assert all(len(set(column)) == 3 and 1 <= min(column) <= max(column) <= 5 for column in zip(*rows, strict=True))
    with pytest.raises(ValueError, match="4 rows need as many numbers, not 3"):
        apart(Rng(0), 4, 2, 3)


def test_shares_make_a_hundred():
    from training.office.chart_values import shares
    from training.pages.values import Rng

    for seed, count in itertools.product(range(20), (2, 5, 8)):
        found = shares(Rng(seed), count)
        assert len(found) == count and sum(found) == 100 and min(found) >= 3


PICTURES = {
    "pictogram": ({"symbol": "house", "each": 10, "key": "= 10 loaves"}, ("Ann", "Bob", "Cy", "= 10 loaves")),
    "progress": ({"most": 100, "printed": ["20%", "40%", "10%"]}, ("Ann", "Bob", "Cy", "40%")),
    "thermometer": ({"ticks": [(0, "0"), (50, "50")], "mark": 30, "mark_text": "goal"}, ("50", "goal")),
    "dial": ({"ticks": [(0, "0"), (50, "50")]}, ("0", "50")),
    "timeline": ({"printed": ["founded", "moved", "sold"]}, ("Ann", "Bob", "Cy", "founded", "sold")),
}


def drawn(form, seed, draw, values=(20, 40, 10), **options):
    from training.office.canvas_engine import office_style
    from training.office.document import Block
    from training.pages.blocks import Box, Setter
    from training.pages.canvas import Canvas
    from training.pages.values import Rng

    r = Rng(seed)
    canvas = Canvas(700, 700)
    block = Block(
        "chart",
        [0],
        ["Ann", "Bob", "Cy"],
        {"form": form, "values": list(values), "printed": None, "ticks": None, **options},
    )
    return draw(Setter(canvas, office_style(r, 700, False), r), Box(30, 670, 20, 680), block), canvas


@pytest.mark.parametrize("form", PICTURES)
def test_pictures_show_their_texts(form):
    from training.office.pictures import draw_picture

    options, words = PICTURES[form]
    shown = [drawn(form, seed, draw_picture, **options) for seed in range(12)]
    assert sum(done for done, _ in shown) >= 10
    for done, canvas in shown:
        text = " ".join(canvas.lines())
        assert all(word in text for word in words) if done else not text


def test_a_pictogram_has_a_symbol_for_each_number():
    from training.office.pictures import draw_picture

    counted = 0
    for seed in range(12):
        options = {
            "symbol": "square",
            "each": 10,
            "key": "= 10",
            "look": {"rough": False, "dark": False, "framed": False},
        }
        done, canvas = drawn("pictogram", seed, draw_picture, **options)
        if not done:
            continue
        rows = {text: int(y) for y, _, text in canvas.items}
        start = max(x for _, x, text in canvas.items if text in ("Ann", "Bob", "Cy")) + 20
        for name, count in (("Ann", 2), ("Bob", 4), ("Cy", 1)):
            band = (canvas.ink()[rows[name] - 3] > 60).astype(int)
            band[: int(start)] = 0
            counted += int((np.diff(band) == 1).sum()) == count
    assert counted >= 24


def test_a_number_below_zero_stands_at_its_dot():
    from training.office.plots import draw_plot

    look = {"rough": False, "dark": False, "framed": False}
    for seed in range(8):
        done, canvas = drawn(
            "dots",
            seed,
            draw_plot,
            (-20, 20, 10),
            printed=["-20", "20", "10"],
            ticks=[(-20, "a"), (20, "b")],
            look=look,
        )
        at = {text: x for _, x, text in canvas.items}
        assert not done or at["-20"] < (at["a"] + at["b"]) / 2


def test_names_at_the_ends_of_lines_and_dashes():
    from training.office.plots import draw_plot

    look = {"rough": False, "dark": False, "framed": False, "grid": 0, "palette": (255, 255), "axis": 255}
    options = {"series": ["Red", "Blue"], "ticks": [(0, "0"), (50, "50")], "rich": True}
    for seed in range(6):
        done, canvas = drawn(
            "lines", seed, draw_plot, [[10, 10, 10], [40, 40, 40]], look=look | {"legend": "ends"}, **options
        )
        at = {text: (x, y) for y, x, text in canvas.items}
        assert not done or (at["Red"][0] > at["Cy"][0] and at["Red"][1] > at["Blue"][1])
        done, canvas = drawn(
            "lines",
            seed,
            draw_plot,
            [[10, 10, 10], [40, 40, 40]],
            look=look | {"dashes": (0, 7), "legend": "top"},
            **options,
        )
        if done:
            ink = canvas.ink()
            middle = ink[:, 300:500] > 100
            full = sorted(middle.mean(1))
            assert full[-1] > 0.95 and any(0.3 < share < 0.7 for share in full)


def test_many_slices_have_their_names_beside_them():
    from training.office.plots import MOST_SHADES, draw_plot

    labels = [f"Name{i}" for i in range(MOST_SHADES + 2)]
    from training.office.canvas_engine import office_style
    from training.office.document import Block
    from training.pages.blocks import Box, Setter
    from training.pages.canvas import Canvas
    from training.pages.values import Rng

    shown = 0
    for seed in range(12):
        r, canvas = Rng(seed), Canvas(700, 700)
        block = Block(
            "chart", [0], labels, {"form": "pie", "values": [10] * len(labels), "printed": None, "ticks": None}
        )
        if draw_plot(Setter(canvas, office_style(r, 700, False), r), Box(30, 670, 20, 680), block):
            shown += 1
            assert len({round(x) for _, x, text in canvas.items if text in labels}) > 3  # not one below the other
    assert shown >= 8


def test_no_page_of_a_chart_goes_without_it_or_has_an_ornament_in_it(monkeypatch):
    from training.office import pages
    from training.office.registry import kinds

    monkeypatch.setattr(pages, "ORNAMENT_SHARE", 1.0)
    monkeypatch.setattr(pages, "ornament", lambda r, ink: pytest.fail("an ornament in a chart"))
    missing = 0
    for kind, seed in itertools.product(sorted(pages.CHARTED), range(6)):
        page = pages.make_office_page(seed, 560, 448, kind=kind)
        missing += len(page.facts) < 6
    assert set(kinds()) >= pages.CHARTED and missing <= 1


def test_the_chart_kinds_weigh_enough():
    from training.office.pages import CHARTED
    from training.office.registry import kinds

    weights = {name: kinds()[name][1] for name in CHARTED}
    assert 70 <= sum(weights.values()) <= 82


def test_the_second_engine_keeps_legend_and_axis_apart():
    pytest.importorskip("reportlab")
    from training.office.document import Block
    from training.office.pdf_engine import Look, Setter
    from training.pages.values import Rng

    look = Look("Helvetica", "Helvetica-Bold", "Helvetica", 30, False, "")
    options = {
        "form": "lines",
        "values": [[1, 2], [2, 1]],
        "series": ["A", "B"],
        "ticks": [(0, "0"), (2, "2")],
        "printed": None,
    }
    [(drawing, _)] = Setter(Rng(0), look, 500).set_series(Block("chart", [0], ["x", "y"], options))
    chart = next(part for part in drawing.contents if hasattr(part, "valueAxis"))
    size = look.size * 0.8
    assert chart.y + chart.height + size / 2 < drawing.height - size
    assert chart.valueAxis.gridStrokeColor.red > 0.7  # fainter than the lines that run along it
    assert not chart.categoryAxis.labels.angle
    wide = Block("chart", [0], ["a label of many words", "another label of many words"], options)
    [(drawing, _)] = Setter(Rng(0), look, 500).set_series(wide)
    assert next(part for part in drawing.contents if hasattr(part, "valueAxis")).categoryAxis.labels.angle
