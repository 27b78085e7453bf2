"""Written-out documents: the files, the parser, the pages that set them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from training.office.document import Document
from training.office.kinds.passages import ask, foreign_question, set_passage
from training.office.pages import make_office_page
from training.office.passages import Question, draw, faults, parse, passages, subjects
from training.pages.values import Rng
from training.wordings import NOT_STATED

pytestmark = pytest.mark.usefixtures("train_assets")
SMALL = """
## letter | Your {meter:water/gas/heat} meter
> {firm}
Dear {p1}, {p2} will read the meter on {date}, because {why:the cellar is locked/we need a signature}.
Fee = {money}
| Room | Meter
| Kitchen | {code1}
| Cellar | {code2}
Q: Who comes? | name of the reader
A: {p2}
Q: How many meters are there? | number of meters
D: two
Q: Whose surname is on the letter? | surname of the addressee
A: {p1.last}
N: How long does it take? | Who pays for repairs?
"""


def test_every_document_in_the_files_fills_and_holds_its_answers():
    assert [fault for passage in passages() for fault in faults(passage, range(2))] == []


def test_the_files_hold_no_document_twice():
    texts = [" ".join(text for _, text in passage.lines) for passage in passages()]
    assert len(set(texts)) == len(texts)


def test_subjects_are_drawn_by_the_root_of_what_they_have():
    sizes = {name: len(group) for name, group in subjects().items()}
    r, drawn = Rng(0), Counter()
    for _ in range(3000):
        drawn[draw(r).where.partition(".")[0].rstrip("0123456789")] += 1
    total = sum(size**0.5 for size in sizes.values())
    assert sum(sizes.values()) == len(passages())
    for name, size in sizes.items():
        assert drawn[name] / 3000 == pytest.approx(size**0.5 / total, rel=0.35), name


def test_lines_questions_and_choices_are_parsed():
    (passage,) = parse(SMALL)
    assert passage.kind == "letter"
    assert passage.choices == {
        "meter": ["water", "gas", "heat"],
        "why": ["the cellar is locked", "we need a signature"],
    }
    assert [sort for sort, _ in passage.lines] == ["line", "text", "field", "row", "row", "row"]
    assert [(q.answer is None, q.derived) for q in passage.questions] == [
        (False, False),
        (False, True),
        (False, False),
        (True, False),
    ]
    assert faults(passage) == []


def test_blanks_repeat_within_a_document_and_differ_from_one_another():
    (passage,) = parse(SMALL)
    for seed in range(20):
        title, lines, asks = passage.fill(Rng(seed))
        text = " ".join(text for _, text in lines)
        who = asks[0].answer
        assert who in text and not set(who.split()) & set(re.search(r"Dear (.*?),", text)[1].split())
        assert "{" not in title + text
        assert passage.fill(Rng(seed)) == (title, lines, asks)
    assert len({passage.fill(Rng(seed))[0] for seed in range(20)}) == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("## a | b\ntext\nA: x\n", "an answer without a question: x"),
        ("## a | b\ntext\nQ: why?\nQ: who?\nA: x\n", "no answer to why?"),
        ("## a | b\ntext\nQ: why?\n", "no answer to why?"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_passage(source, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(source, "x.txt")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("## a | b\nThe {beast} left.\nQ: Who left? | who?\nA: {beast}\n", "unknown blank {beast}"),
        ("## a | b\nThe cat left.\nQ: Who left? | who?\nA: the dog\n", "not in the text"),
        ("## a | b\nThe cat left.\nQ: Who left?\nA: The cat\n", "only one wording"),
        ("## a | b\nThe cat left.\n", "no text or no question"),
        ("## a | b\n% disc m | a = 1 | b = 2 | c = 3\nQ: Most? | highest?\nA: c\n", "no chart of three values"),
        (
            "## a | b\n% pie % | a = 1 | b = 2 | c = x\nQ: Most? | highest?\nA: c\n",
            "a value of the chart is no number",
        ),
    ],
)
def test_faults_of_a_document_are_named(source, message):
    (passage,) = parse(source)
    assert message in faults(passage)[0]


def test_pages_of_passages_hold_the_answers_that_they_state():
    stated = 0
    for seed in range(12):
        page = make_office_page(seed, 756, 532, kind="passage", engine="canvas")
        text = re.sub(r"\s+", "", " ".join(page.lines))
        for fact in page.facts:
            stated += re.sub(r"\s+", "", fact.value) in text
        assert all(fact.value == NOT_STATED for fact in page.absent)
        assert page.absent
    assert stated > 36


def test_charts_are_drawn_with_their_values():
    chart = "% column mm | May = 30 | June = 12.5 | July = 40"
    questions = "Q: Wettest? | most rain?\nA: July\nQ: June? | rain in June?\nA: 12.5"
    (passage,) = parse(f"## chart | Rain\n{chart}\n{questions}\n")
    assert faults(passage) == []
    asked = []
    for seed in range(12):
        document = Document(Rng(seed), (756, 532))
        texts = set_passage(document, passage, *passage.fill(Rng(seed))[:2])
        for question in passage.questions:
            ask(document, question, texts)
        (block,) = [block for block in document.blocks if block.kind == "chart"]
        assert block.texts == ["May", "June", "July"] and block.options["values"] == [30, 12.5, 40]
        asked.append((len(document.asks), block.options["printed"] is not None))
    assert set(asked) == {(1, False), (2, True)}  # a value that cannot be read is not asked for


def test_a_foreign_question_shares_no_word_with_the_page():
    questions = [
        Question(("When is the boiler replaced?", "new boiler: which day?"), "x"),
        Question(("Who came?", "who?"), "y"),
    ]
    assert foreign_question(Rng(0), questions, "A badge of a conference") == questions[0].wordings
    assert foreign_question(Rng(0), questions, "The boilers are old") is None
