"""Written-out documents: the files, the parser, the pages that set them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from training.office.canvas_engine import set_on_canvas
from training.office.document import KIND_ASKED, Document
from training.office.hiding import DASHES, EMPTY, hide
from training.office.kinds.passages import ask, foreign_question, passage_page, set_passage
from training.office.lookups import blocks_of
from training.office.passages import Filler, Question, draw, faults, parse, passages, subjects
from training.pages.values import Rng

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
    every = (*passages(), *passages(held=True))
    assert [fault for passage in every for fault in faults(passage, range(2))] == []


def test_the_files_hold_no_document_twice():
    texts = [" ".join(text for _, text in passage.lines) for held in (False, True) for passage in passages(held)]
    assert len(set(texts)) == len(texts)


def test_documents_kept_out_of_training_are_set_for_evaluation_alone():
    titles = {held: {passage.where for passage in passages(held)} for held in (False, True)}
    assert len(titles[True]) >= 60
    for held in (False, True):
        drawn = {draw(Rng(seed), held).where for seed in range(400)}
        assert drawn <= titles[held]
        assert len(drawn) > min(200, 0.8 * len(titles[held]))
    texts = {held: set() for held in (False, True)}
    for held in (False, True):
        for seed in range(40):
            document = Document(Rng(seed), (756, 532), held)
            passage_page(document)
            texts[held].update(ask.questions for ask in document.asks)
    assert texts[False] & texts[True] == {KIND_ASKED}  # which any document is asked


def test_subjects_are_drawn_by_what_they_have():
    """By less than their number, and up to several times as often where they are long."""
    groups, (r, drawn) = subjects(), (Rng(0), Counter())
    for _ in range(30000):
        drawn[draw(r).where.partition(".")[0].rstrip("0123456789")] += 1
    assert sum(map(len, groups.values())) == len(passages())
    length = {name: sum(p.length for p in group) / len(group) for name, group in groups.items()}
    weights = {name: len(group) ** 0.8 * (1 + length[name] / 800) for name, group in groups.items()}
    for name, weight in weights.items():
        expected = 30000 * weight / sum(weights.values())
        assert abs(drawn[name] - expected) < 4 * expected**0.5 + 0.1 * expected, name


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
        ("## a | b\n| a | b |\n| 1 | 2\nQ: Is it? | is it?\nA: 1\n", "rows of a table with more cells than others"),
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


def test_pages_show_the_answers_that_they_state():
    flat = lambda text: re.sub(r"[\s\u00ad-]+", "", text)  # noqa: E731
    stated = 0
    for seed in range(24):
        document = Document(Rng(seed), (756, 532))
        passage_page(document)
        everything = {part for one in document.asks for part in one.needs}
        charts = {part for block in blocks_of(document) if block.kind == "chart" for part in block.parts}
        _, drawn, lines = set_on_canvas(document, 756, 532, False)
        for one in (one for one in document.asks if one.questions != KIND_ASKED):
            if one.answer is not None and drawn.issuperset(one.needs) and set(one.needs) != everything:
                # labels that stand beside each other below a chart are wrapped: their words are not in a row
                shown = one.answer.split() if charts.issuperset(one.needs) else [one.answer]
                assert all(flat(part) in flat(" ".join(lines)) for part in shown), (seed, one)
                stated += 1
    assert stated > 100


def test_an_answer_rests_on_the_parts_that_hold_it_as_a_word():
    fields = "Phone = 0451 330\nBadge no. = 743\nSmoker = no\nRooms = 30"
    (passage,) = parse(f"## form | Keeper\n{fields}\nQ: Smokes? | smoker?\nA: no\nQ: Rooms? | how many?\nA: 30\n")
    document = Document(Rng(0), (756, 532))
    texts = set_passage(document, passage, *passage.fill(Rng(0))[:2])
    for question in passage.questions:
        ask(document, question, texts)
    part = {text: number for text, number in texts}
    assert [one.needs for one in document.asks] == [(part["Badge no. 743"], part["Smoker no"]), (part["Rooms 30"],)]


def test_two_columns_split_a_text_by_half():
    long = "word " * 40
    (passage,) = parse(f"## news | Today\n{long}\n{long}\n{long}\n{long}\nQ: What? | Which?\nA: word\n")
    sizes = set()
    for seed in range(30):
        document = Document(Rng(seed), (812, 588))
        set_passage(document, passage, *passage.fill(Rng(seed))[:2])
        sizes |= {tuple(len(inner.blocks) for inner in block.inner) for block in document.blocks if block.inner}
    assert sizes == {(2, 2)}


def test_the_dates_of_a_document_follow_one_another():
    for seed in range(10):
        filler = Filler(Rng(seed), {})
        filler.dates.style = "y-m-d"
        third, first, second = (filler[name] for name in ("date3", "date1", "date2"))
        assert first < second < third


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
    boiler = Question(("When is the boiler replaced?", "new boiler: which day?"), "x")
    assert foreign_question(Rng(0), [boiler], "A badge of a conference") == boiler.wordings
    assert foreign_question(Rng(0), [boiler], "The boilers are old") is None


@pytest.mark.parametrize(
    "ways", [("Who signed the letter?", "sender?"), ("Who came?", "who?"), ("Fee for a new boiler?", "total amount?")]
)
def test_what_any_document_may_say_in_other_words_is_no_foreign_question(ways):
    assert foreign_question(Rng(0), [Question(ways, "x")], "Yours, the President") is None


HIDING = """
## note | Boiler
The boiler was serviced by Ann Poole on 3 May. The cover stays off until Friday, said Tom Reed. Call if it leaks.
> Flat 12
Fee = 40 pounds
Q: Who looked at it? | name of the engineer
A: Ann Poole
Q: Until when is it open? | how long is it uncovered
A: Friday
Q: What does it cost? | price
A: 40 pounds
Q: How many people are named? | number of people
D: two
N: What make is it? | brand
"""


def test_a_hidden_sentence_leaves_its_questions_open_and_the_others_answered():
    (passage,) = parse(HIDING)
    seen = set()
    for seed in range(40):
        title, lines, questions = passage.fill(Rng(seed))
        left, kept = hide(Rng(seed), title, lines, questions)
        text = " ".join(line for _, line in left)
        for question in kept:
            known = next(q for q in questions if q.wordings == question.wordings)
            assert known.answer is not None and not known.derived
            assert (question.answer is None) == (known.answer not in text)
        opened = frozenset(q.wordings[0] for q in kept if q.answer is None)
        assert opened
        seen |= opened
        assert len(left) < len(lines) or any(a != b for a, b in zip(left, lines, strict=True))
        said = " ".join(line for _, line in lines)
        for question in (q for q in questions if q.wordings in [k.wordings for k in kept if k.answer is None]):
            assert question.answer in said and question.answer not in text
    assert seen == {"Who looked at it?", "Until when is it open?", "What does it cost?"}


def test_what_is_stated_twice_cannot_be_hidden():
    (passage,) = parse("""
## note | Key
> Ann Poole
The key is with Ann Poole. She is at home on most days. Ring twice.
Q: Who has it? | keeper of the key
A: Ann Poole
""")
    assert all(hide(Rng(seed), *passage.fill(Rng(seed))) is None for seed in range(10))


def test_answers_with_an_ending_or_among_many_blanks_are_gone_with_their_sentence():
    (passage,) = parse("""
## note | Library
It was built by Tom Reed. The library opens on Thursdays. Books are lent for weeks.
> Hall    7
Q: On which day is it open? | opening day
A: Thursday
Q: Who built it? | builder
A: Tom Reed
Q: Where is it? | number of the hall
A: 7
""")
    opened = Counter()
    for seed in range(40):
        title, lines, questions = passage.fill(Rng(seed))
        left, kept = hide(Rng(seed), title, lines, questions)
        text = " ".join(line for _, line in left)
        assert len(kept) == 3
        for question in kept:
            known = next(q for q in questions if q.wordings == question.wordings)
            assert (question.answer is None) == (known.answer not in text)
        opened.update(q.wordings[0] for q in kept if q.answer is None)
    assert set(opened) == {"On which day is it open?", "Who built it?", "Where is it?"}


def test_an_answer_that_goes_on_in_the_next_sentence_is_not_asked_without_one_of_them():
    (passage,) = parse("""
## note | Signs
The first sign reads Closed. Come Friday and see. The other one is by Ann Poole. It is blue all over.
| Room | Key
| Kitchen | K4
Q: What does it read? | text of the sign
A: Closed. Come Friday
Q: Whose is the other one? | author of the other sign
A: Ann Poole
Q: What opens the kitchen? | row of the kitchen
A: Kitchen K4
""")
    for seed in range(20):
        left, kept = hide(Rng(seed), *passage.fill(Rng(seed)))
        assert left[0] == ("text", "The first sign reads Closed. It is blue all over.")
        assert [q.answer for q in kept] == ["Kitchen K4", None]


def test_cells_and_fields_are_emptied_and_what_is_gone_is_not_named_in_other_questions():
    (passage,) = parse("""
## list | Keys
Holder = Ann Poole
Deposit = 30 pounds
| Room | Key | Since
| Kitchen | K4 | May
| Cellar | C7 | June
Q: Which key opens the kitchen? | kitchen key
A: K4
Q: Who holds them? | holder
A: Ann Poole
Q: Where does K4 fit? | room of key K4
A: Kitchen
Q: How much must Ann Poole deposit? | deposit
A: 30 pounds
""")
    seen = Counter()
    for seed in range(60):
        left, kept = hide(Rng(seed), *passage.fill(Rng(seed)), 1 + seed % 3)
        text = dict(
            (label, value) for sort, line in left for label, _, value in [line.partition(" = ")] if sort == "field"
        )
        rows = [[cell.strip() for cell in line.split("|")] for sort, line in left if sort == "row"]
        asked = {way: q.answer for q in kept for way in q.wordings}
        assert [len(row) for row in rows] == [3, 3, 3] and rows[0] == ["Room", "Key", "Since"]
        assert [row[0] for row in rows] == ["Room", "Kitchen", "Cellar"]
        emptied = [cell for row in rows[1:] for cell in row if cell in EMPTY + DASHES]
        assert (rows[1][1] == "K4") == (asked["kitchen key"] == "K4") == ("room of key K4" in asked)
        assert ("Ann Poole" in text.get("Holder", "")) == (asked["holder"] is not None)
        if text.get("Deposit") == "30 pounds":
            assert ("How much must Ann Poole deposit?" in asked) == (asked["holder"] is not None)
            assert asked["deposit"] == "30 pounds"
        seen["cell"] += len(emptied)
        seen["emptied"] += text.get("Holder") in EMPTY + DASHES
        seen["gone"] += "Holder" not in text
        seen["several"] += sum(q.answer is None for q in kept) > 1
    assert min(seen.values()) > 3, seen


RIVALS = """
## list | Cleaning
weekly = tank
Keeper = Martino Gutiérrez, with Olivia
Martino cleans in the evening. A dentist has the key. Ask Ann Poole.
| Thing | Price | Place
| Beer | 3.80 | shelf
| Wine | 5.20 | cellar
| Cider | 4.10 | barn
> Glasses
| Thing | Number | Price | Sum
| Glass | 10 | 0.08 | 0.80
| Jug | 2 | 1.50 | 3.00
Q: Dearest drink? | Which costs most?
A: Wine
Q: What does beer cost? | price of beer
A: 3.80
Q: Where is the wine? | place of the wine
A: cellar
Q: Which drink is in the barn? | drink kept in a barn
A: Cider
Q: How often is the tank cleaned? | frequency of the tank
A: weekly
Q: What is cleaned every week? | object that is cleaned
A: tank
Q: Who keeps it? | keeper
A: Martino Gutiérrez
Q: Who has the key? | profession of whoever has the key
A: dentist
Q: Whom should one ask? | person to ask
A: Ann Poole
Q: What do ten glasses cost? | cost of the glasses
A: 0.80
"""


def test_nothing_is_asked_that_may_rest_on_what_is_hidden():
    """Rivals of a comparison, labels, parts of names and products tell what a missing value would."""
    (passage,) = parse(RIVALS)
    seen = Counter()
    for seed in range(200):
        found = hide(Rng(seed), *passage.fill(Rng(seed)))
        if found is None:  # the piece that was drawn leaves no question open
            seen["nothing"] += 1
            continue
        left, kept = found
        answers = {way: q.answer for q in kept for way in q.wordings}
        text = " ".join(line for _, line in left)
        assert "Dearest drink?" not in answers and "Which costs most?" not in answers
        assert "0.80" in text and answers.get("cost of the glasses", "0.80") == "0.80"
        if "weekly = tank" not in text:
            assert answers.get("How often is the tank cleaned?") is answers["object that is cleaned"] is None
            seen["label"] += 1
        assert "Gutiérrez" in text or "keeper" not in answers  # Martino cleans in the evening
        if "barn" not in text:
            assert "drink kept in a barn" not in answers
        if "cellar" not in text:
            assert answers["place of the wine"] is None
            seen["cell"] += 1
        if "dentist" not in text:
            assert answers["Who has the key?"] is None
            seen["sentence"] += 1
    assert min(seen[name] for name in ("label", "cell", "sentence")) > 3 and 0 < seen["nothing"] < 60, seen


def test_an_emptied_value_is_no_dash_where_dashes_mean_something():
    found = []
    for bees in ("-", "none"):
        text = f"## form | Hut\nHolder = Ann Poole\nBees = {bees}\nKey = K4\nQ: Who? | holder\nA: Ann Poole\n"
        (passage,) = parse(text)
        left = [hide(Rng(seed), *passage.fill(Rng(seed)))[0] for seed in range(300)]
        found.append({line.partition(" = ")[2] for lines in left for _, line in lines if line.startswith("Holder")})
    assert found[0] == set(EMPTY) and found[1] == {*EMPTY, *DASHES}


def test_pages_for_training_hide_pieces_and_those_for_evaluation_do_not(monkeypatch):
    hidden = []
    monkeypatch.setattr("training.office.kinds.passages.hide", lambda *args: hidden.append(args))
    for seed in range(30):
        passage_page(Document(Rng(seed), (756, 532), True))
    assert not hidden
    for seed in range(30):
        passage_page(Document(Rng(seed), (756, 532), False))
    assert 11 <= len(hidden) <= 25
    assert {args[4] for args in hidden} == {1, 2, 3}
