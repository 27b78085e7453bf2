"""What questions of pages may say: no refusal where the page tells, dates in their order, sums that add up."""

from __future__ import annotations

import datetime
import re

import pytest

pytestmark = pytest.mark.usefixtures("train_assets")


def documents(kind: str, count: int, shape=(1008, 756)):
    from training.office.document import Document
    from training.office.registry import kinds
    from training.pages.values import Rng

    for seed in range(count):
        document = Document(Rng(seed), shape)
        kinds()[kind][0](document)
        yield document


def test_who_signed_a_form_may_tell_whose_it_is():
    """A field left empty is then asked for by its label alone."""
    from training.office.kinds.hand_forms import ENTRIES, SIGNED

    told = {way for name in SIGNED for way in ENTRIES[name][2]}
    asked = set()
    for document in documents("pen_form", 150):
        refused = {way for ask in document.asks if ask.answer is None for way in ask.questions}
        assert not refused & told
        asked |= {way for ask in document.asks if ask.answer is not None for way in ask.questions}
        rows = [
            entry
            for block in document.blocks
            if block.kind == "hand_form"
            for row in block.options["rows"]
            for entry in row
        ]
        labels = [entry["label"] for entry in rows]
        assert len(labels) == len(set(labels))
    assert asked & told


def test_periods_begin_before_they_end():
    from training.office.sentences import Blanks
    from training.office.values import Dates, Money
    from training.pages.values import Rng

    for seed in range(40):
        r = Rng(seed)
        dates = Dates(r)
        dates.style, dates.clock = "y-m-d", "24"
        begin, end = map(datetime.date.fromisoformat, dates.period())
        assert begin < end
        blanks = Blanks(r, dates, Money(r))
        assert blanks["date2"] > blanks["date"] and blanks["time2"] > blanks["time"]


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("invitation", "By when should I reply?", "On which day is the party?"),
        ("utility_bill", "When does the billing period begin?", "When does the billing period end?"),
    ],
)
def test_documents_tell_dates_in_their_order(monkeypatch, kind, first, second):
    from training.office import values

    monkeypatch.setattr(values, "DATE_STYLES", ("y-m-d",))
    monkeypatch.setattr(values, "DATE_WEIGHTS", (1,))
    compared = 0
    for document in documents(kind, 30):
        said = {ask.questions[0]: ask.answer for ask in document.asks}
        if said.get(first):
            compared += 1
            assert said[first] < said[second]
    assert compared > 5


def test_payslips_add_up_to_the_last_digit():
    seen = set()
    for document in documents("payslip", 120):
        rows = next(block.options["rows"] for block in document.blocks if block.kind == "table")
        decimals = {bool(re.search(r"[.,]\d\d$", amount)) for _, amount in rows}
        if len(decimals) > 1:  # amounts of whole units without their decimals beside others
            continue
        gross, *less, net = (int(re.sub(r"[^\d-]", "", amount)) for _, amount in rows)
        assert gross + sum(less) == net, rows
        seen |= decimals
    assert seen == {True, False}


def test_a_slice_is_a_share():
    for document in documents("chart", 120):
        chart = next(block for block in document.blocks if block.kind == "chart")
        values = [ask for ask in document.asks if ask.answer and ask.answer.endswith("%") and len(ask.questions) == 5]
        if chart.options["form"] == "pie":
            assert all(ask.questions[0].startswith("What is the share for") for ask in values)
