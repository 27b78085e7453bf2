"""What tables and charts are asked by row and column is what they say, and near misses are missing."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("train_assets")


@pytest.fixture
def document(train_assets):
    from training.office.document import Document
    from training.pages.values import Rng

    return Document(Rng(4), (560, 448))


@pytest.fixture
def unlimited(monkeypatch):
    from training.office import lookups

    monkeypatch.setattr(lookups, "MOST", 1000)


def answers(document) -> dict[str, str | None]:
    return {question: ask.answer for ask in document.asks for question in ask.questions}


def test_tables_are_looked_up_both_ways(document, unlimited):
    from training.office.lookups import add_lookups

    document.table(
        ["Town", "Visitors", "Opened"], [["Oslo", "40", "May 2"], ["Lyon", "75", "June 9"], ["Bern", "12", "May 2"]]
    )
    add_lookups(document)
    said = answers(document)
    assert said["What is the number of visitors of Lyon?"] == "75" and said["Bern: opening date?"] == "May 2"
    assert said["What has 12 under Visitors?"] == "Bern"
    assert not any(question.startswith("Whose") for question in said)  # towns are not people
    assert "What has May 2 under Opened?" not in said  # two rows have it
    assert said["Highest number of visitors?"] == "Lyon" and said["What is the lowest number of visitors?"] == "12"
    assert said["How many columns are there?"] == "3"
    gap = next(a for q, a in said.items() if q.startswith("What is the difference in number of visitors"))
    assert gap in {"35", "28", "63"}


def test_merged_and_unnamed_tables_are_left_alone(document, unlimited):
    from training.office.lookups import add_lookups

    document.table(["", "A", "B"], [["x1", "1", "2"], ["x2", "3", "4"]], groups=["Year"])
    document.table([], [["Oslo", "40"], ["Lyon", "75"]])
    document.table(["Day", "Sum"], [["1.2.2024", "5"], ["3.4.2024", "6"]])
    document.table(["Week", "Opens", "Closes"], [["1", "Stella", "Gary"], ["2", "Gary", "Stella"]])  # who is which?
    add_lookups(document)
    assert not document.asks


def test_rows_of_people_marks_and_numbered_rows(document, unlimited):
    from training.office.lookups import add_lookups

    rows = [["Anna Reyes", "4", "x", "Hard work"], ["James Cole", "7", "", "None"], ["Laura Ford", "9", "x", "Late"]]
    document.table(["Name", "Room", "Paid", "Remarks"], rows)
    add_lookups(document)
    said = answers(document)
    assert said["Whose room is 7?"] == "James Cole" and said["What are the remarks of Laura Ford?"] == "Late"
    assert "Highest room?" not in said and "x" not in said.values()


def test_charts_are_ranked_and_compared(document, unlimited):
    from training.office.lookups import add_lookups

    document.chart("line", ["2019", "2020", "2021"], [20, 50, 30], printed=["20", "50", "30"], ticks=None)
    add_lookups(document)
    said = answers(document)
    assert said["What comes second?"] == "2021" and said["Name the top three."] == "2020, 2021, 2019"
    assert said["What is the maximum?"] == "50" and said["How low is the smallest value?"] == "20"
    assert said["When does the line rise the most?"] == "from 2019 to 2020"
    assert said["How many are above 30?"] == "1"


def test_charts_with_questions_of_their_own_are_left_alone(document, unlimited):
    from training.office.lookups import add_lookups

    document.chart("bar", ["A", "B"], [20, 50], printed=["20", "50"], ticks=None, asked=True)
    add_lookups(document)
    assert not document.asks


def test_slices_without_numbers_are_ranked_only_where_they_differ(document, unlimited):
    from training.office.lookups import add_lookups

    document.chart("pie", ["A", "B", "C"], [40, 38, 22], printed=None, ticks=None)
    add_lookups(document)
    assert "What comes second?" not in answers(document)


def test_only_a_share_of_the_look_ups_is_asked(document):
    from training.office import lookups

    document.table(["Town", "Visitors"], [[name, str(i)] for i, name in enumerate(("Oslo", "Lyon", "Bern", "Rome"))])
    lookups.add_lookups(document)
    assert len(document.asks) == lookups.MOST


def test_near_misses_ask_for_what_is_not_there(train_assets):
    from training.office.document import Document
    from training.office.near_misses import near_misses
    from training.pages.values import Rng

    found = []
    for seed in range(40):
        document = Document(Rng(seed), (560, 448))
        part = document.line("Helen Archer lives in Bristol. Telephone 020 7946, invoice 77.")
        document.ask(("Where does Helen Archer live?", "What is the town of Helen Archer?"), "Bristol", part)
        found += near_misses(document.r, document, document.blocks[0].texts)
    questions = {q for ask in found for q in ask.questions}
    assert all(ask.answer is None for ask in found) and len(questions) > 30
    assert any(q.startswith("Where does ") and "Helen Archer" not in q for q in questions)
    assert not any("phone number" in q or "invoice number" in q for q in questions)


@pytest.mark.parametrize(
    ("noun", "expected"),
    [
        ("visitors", ("number of visitors", "is")),
        ("open tickets", ("number of open tickets", "is")),
        ("sales", ("sales", "are")),
        ("rainfall", ("rainfall", "is")),
        ("address", ("address", "is")),
        ("status", ("status", "is")),
        ("gas", ("gas", "is")),
    ],
)
def test_what_a_number_under_a_name_is_called(noun, expected):
    from training.office.values import quantity

    assert quantity(noun) == expected


def test_labels_have_their_prepositions():
    from training.office.values import within

    labels = ("Monday", "Tue", "March", "Mar 24", "2019", "Q3", "Q1 2024", "Oslo", "Ward 2", "B")
    assert [within(label).split()[0] for label in labels] == ["on", "on", *["in"] * 6, "for", "for"]
