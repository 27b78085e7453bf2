"""Office documents: what is asked is on the page, what is said to be missing is not, kinds join by registration."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("train_assets")

ROOT = Path(__file__).parents[2]
SHAPES = ((560, 448), (756, 532), (812, 588), (504, 784), (784, 308))
# answers that are counted, named or summed up, not read
COUNTED = ("How many", "What kind", "What type", "Does the line", "Summarise", "How much higher", "What was decided")
OTHER_CHARTS = ("report", "slide")  # where answers are read off, as on the pages about charts


@pytest.fixture(scope="module")
def pages(train_assets):
    from training.office.pages import make_office_page
    from training.office.registry import kinds

    return {
        kind: [make_office_page(100 * i + seed, *SHAPES[seed % 3], kind=kind) for seed in range(6)]
        for i, kind in enumerate(kinds())
    }


def test_every_kind_of_the_office_is_there(pages):
    expected = (
        "letter contract minutes manual email news prose form_hand badge ticket label receipt_world bank_statement "
        "timetable menu chart slide program_window web_page merged_table article notice faq invitation poster "
        "certificate business_card sticky_note sign cv chat email_thread recipe prescription shopping_list "
        "utility_bill payslip calendar agenda series_chart report"
    ).split()
    assert set(expected) <= set(pages)


def test_pages_are_reproducible(pages):
    from training.office.pages import make_office_page

    again = make_office_page(100 * sorted(pages).index("letter") + 1, *SHAPES[1], kind="letter")
    assert np.array_equal(again.ink, pages["letter"][1].ink)
    assert again.facts == pages["letter"][1].facts
    assert not np.array_equal(again.ink, pages["letter"][4].ink)


CONTENTS = """
import hashlib
from training.office.document import Document
from training.office.registry import kinds
from training.pages.values import Rng

for name, (make, _) in kinds().items():
    content = hashlib.sha256()
    for seed in range(30):
        document = Document(Rng(seed), (756, 532))
        make(document)
        content.update(repr([(b.kind, b.texts, b.parts) for b in document.blocks] + document.asks).encode())
    print(name, content.hexdigest())
"""


def test_contents_do_not_depend_on_the_order_of_sets():
    """A page is the same in every process, whose strings are hashed with another key."""
    made = [
        subprocess.run(
            [sys.executable, "-c", CONTENTS],
            env=os.environ | {"PYTHONHASHSEED": key, "PYTHONPATH": str(ROOT)},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
        ).stdout.split("\n")
        for key in ("1", "2")
    ]
    assert len(made[0]) > 60
    assert [first.split()[0] for first, second in zip(*made, strict=True) if first != second] == []


def test_every_kind_asks_and_leaves_open(pages):
    for kind, own in pages.items():
        assert sum(len(page.facts) for page in own) >= 6, kind
        assert sum(len(page.absent) for page in own) >= 3, kind
        wordings = Counter(len(fact.asks) for page in own for fact in page.facts)
        assert max(wordings) >= 2, kind
        assert sum(page.ink.max() > 0 for page in own) == len(own), kind


def test_answers_are_printed(pages):
    """Every word of an answer stands in the text, but for answers that count, name or compare."""
    from training.office.pages import CHARTED

    missing, total = [], 0
    for kind, own in pages.items():
        for page in own:
            text = " ".join(page.lines).lower()
            for fact in page.facts:
                if fact.asks[0].startswith(COUNTED) or kind in (*CHARTED, *OTHER_CHARTS):
                    continue
                total += 1
                words = fact.value.lower().replace("\u201c", " ").replace(",", " , ").split()
                if not all(word in text for word in words):
                    missing.append((kind, fact.asks[0], fact.value))
    assert total > 500
    assert len(missing) <= 0.03 * total, missing[:12]


def test_questions_rest_on_what_was_drawn(train_assets):
    """On a page too small for a document, only what stands there is asked."""
    from training.office.pages import make_office_page

    large, small = (make_office_page(5, height, 448, kind="minutes") for height in (784, 168))
    assert 0 < len(small.facts) < len(large.facts)
    text = " ".join(small.lines)
    printed = [f for f in small.facts if not f.asks[0].startswith(COUNTED)]
    assert all(word in text for fact in printed for word in fact.value.split())


def test_no_question_is_both_answered_and_open(pages):
    from training.wordings import NOT_STATED

    for own in pages.values():
        for page in own:
            stated, absent = {f.subject for f in page.facts}, {f.subject for f in page.absent}
            assert not stated & absent
            assert all(f.value == NOT_STATED for f in page.absent)
            assert all(f.value != NOT_STATED for f in page.facts)


def test_pages_show_accents_and_currencies(pages):
    text = "".join("\n".join(page.lines) for own in pages.values() for page in own)
    assert sum(text.count(c) for c in "éüöñçåøßÉÑ") > 20
    assert all(sign in text for sign in "\u20ac£$")


def test_the_character_map_spells_the_page(pages):
    from training.pages.canvas import CHARACTERS

    for kind in ("letter", "receipt_world", "menu"):
        page = pages[kind][0]
        shown = {CHARACTERS[c] for c in np.unique(page.chars[page.chars > 0])}
        assert shown <= set("".join(page.lines)) and len(shown) > 10


def test_columns_are_transcribed_one_after_the_other(train_assets):
    from training.office.canvas_engine import set_on_canvas
    from training.office.document import Document
    from training.pages.values import Rng

    document = Document(Rng(3), (560, 560))
    left, right = document.columns(2)
    for column, word in ((left, "left"), (right, "right")):
        column.lines(f"{word} 1", f"{word} 2")
    _, drawn, lines = set_on_canvas(document, 560, 560, False)
    assert drawn == {0, 1, 2, 3}
    assert lines == ["left 1", "left 2", "right 1", "right 2"]


@pytest.mark.parametrize("form", ["bar", "column", "line", "pie"])
def test_the_second_engine_sets_every_form_of_chart(form, train_assets):
    """With its values printed, which each form of chart has attributes of its own for."""
    pytest.importorskip("reportlab")
    pytest.importorskip("pypdfium2")
    from training.office.document import Document
    from training.office.pdf_engine import set_as_pdf
    from training.pages.values import Rng

    document = Document(Rng(5), (560, 560))
    values, names = [30, 50, 20], ["Alpha", "Beta", "Gamma"]
    document.chart(form, names, values, printed=[str(v) for v in values], ticks=[])
    ink, chars, drawn, _ = set_as_pdf(document, 560, 560, False)
    assert drawn and (chars > 0).sum() >= len("".join(names)) and ink.max() > 150


@pytest.mark.parametrize("kind", ["minutes", "receipt_world", "merged_table", "chart", "news"])
def test_the_second_engine_says_the_same(kind, train_assets):
    """Set with reportlab, a document keeps its questions, and its characters lie where the map says."""
    pytest.importorskip("reportlab")
    pytest.importorskip("pypdfium2")
    from training.office.pages import make_office_page
    from training.pages.canvas import CHARACTERS

    page = make_office_page(11, 756, 532, kind=kind, engine="pdf")
    text = " ".join(page.lines).lower()
    assert page.ink.shape == (756, 532) and page.ink.max() > 150 and page.ink.mean() < 128
    printed = [f for f in page.facts if not f.asks[0].startswith(COUNTED) and kind != "chart"]
    assert len(page.facts) > 5
    assert sum(all(w in text for w in f.value.lower().split()) for f in printed) >= 0.95 * len(printed)
    rows, columns = np.nonzero(page.chars)
    contrast = [np.ptp(page.ink[14 * y : 14 * y + 14, 7 * x : 7 * x + 7]) for y, x in zip(rows, columns, strict=True)]
    assert len(rows) > 40 and np.mean(np.array(contrast) > 40) > 0.9
    assert {CHARACTERS[c] for c in np.unique(page.chars[page.chars > 0])} <= set("".join(page.lines))


@pytest.mark.parametrize("form", ["grouped", "stacked", "lines"])
@pytest.mark.parametrize("engine", ["canvas", "pdf"])
def test_both_engines_set_charts_of_several_series(form, engine, train_assets):
    from training.office.canvas_engine import set_on_canvas
    from training.office.document import Document
    from training.pages.values import Rng

    document = Document(Rng(5), (560, 560))
    options = {"series": ["Plan", "Actual"], "ticks": [(0, "0"), (50, "50"), (100, "100")], "printed": None}
    part = document.chart(form, ["Alpha", "Beta", "Gamma"], [[30, 50, 20], [40, 10, 60]], **options)
    if engine == "canvas":
        canvas, drawn, lines = set_on_canvas(document, 560, 560, False)
        ink = canvas.ink()
    else:
        pytest.importorskip("reportlab")
        pytest.importorskip("pypdfium2")
        from training.office.pdf_engine import set_as_pdf

        ink, _, drawn, lines = set_as_pdf(document, 560, 560, False)
    assert drawn == {part} and ink.max() > 150
    text = " ".join(lines)
    assert all(word in text for word in ("Plan", "Actual", "Alpha", "Beta", "Gamma", "100"))


def test_told_facts_are_in_their_paragraph(train_assets):
    from training.office.document import Document
    from training.office.sentences import TOLD, tell, told
    from training.office.values import Dates, Money
    from training.pages.values import Rng

    for seed in range(30):
        document = Document(Rng(seed), (560, 448))
        tell(document, 3, Dates(document.r), Money(document.r))
        texts = {block.parts[0]: block.texts[0] for block in document.blocks}
        stated = [ask for ask in document.asks if ask.answer is not None]
        assert len(stated) >= 4 and len(document.asks) == len(stated) + 1
        for ask in stated:
            text = texts[ask.needs[0]].lower()
            assert all(word in text for word in ask.answer.lower().split()), (ask, text)
    for entry in TOLD:  # every blank is known, and every question is one
        r = Rng(1)
        text, asks = told(r, entry, Dates(r), Money(r))
        assert "{" not in text and all(q.endswith("?") and "{" not in q for ways, _ in asks for q in ways)


def test_a_document_runs_over_its_pages(train_assets):
    """Every page has text of its own, and what is asked of a page, or of it and those before, is printed there."""
    from training.office.pages import make_office_document

    later = 0
    for seed in range(12):
        pages = make_office_document(seed, 3, 616, 476)
        assert len(pages) == 3 and all(page.lines and page.ink.max() > 100 for page in pages)
        assert all(np.array_equal(page.shade, pages[0].shade) for page in pages)
        read = ""
        for number, page in enumerate(pages):
            read += " ".join(page.lines).lower() + " "
            later += number > 0 and len(page.facts) > 0
            printed = [fact for fact in page.facts if not fact.asks[0].startswith(COUNTED)]
            found = [all(word in read for word in fact.value.lower().split()) for fact in printed]
            assert sum(found) >= 0.9 * len(found), [f.value for f, ok in zip(printed, found, strict=True) if not ok]
        asked = Counter(q for page in pages for fact in page.facts for q in fact.asks[:1])
        assert max(asked.values()) == 1
    assert later > 12


def test_stamps_are_fainter_than_print_and_asked_for(train_assets):
    from training.office.stamps import WORDS, stamp
    from training.pages.values import Rng

    seen = set()
    for seed in range(30):
        ink = np.zeros((560, 448), np.uint8)
        lines, facts = stamp(Rng(seed), ink, False)
        assert lines[0] in WORDS and [fact.value for fact in facts] == lines
        assert 60 < ink.max() <= 190 and ink[:3].max() == ink[:, :3].max() == 0
        seen.add(lines[0])
    assert len(seen) > 8
    assert stamp(Rng(0), np.zeros((56, 84), np.uint8), False) == ([], [])


def test_documents_of_few_words_are_set_large(train_assets):
    from training.office.document import Document
    from training.pages.values import Rng

    sizes = []
    for seed in range(40):
        document = Document(Rng(seed), (756, 532))
        document.lines("Annual", "Meeting")
        sizes.append(document.large_size())
    assert 15 < sum(size is not None for size in sizes) < 38 and max(filter(None, sizes)) > 25
    document.paragraph("word " * 600)
    assert document.large_size() is None and document.length > 3000


def test_a_held_out_wording_is_never_trained(pages):
    from training.pages import Rng
    from training.wordings import phrase_question

    r, checked = Rng(0), 0
    for page in pages["minutes"]:
        for fact in page.facts:
            if len(fact.asks) >= 4:
                checked += 1
                assert phrase_question(r, fact, held=True) == fact.asks[-1]
                assert fact.asks[-1] not in {phrase_question(r, fact) for _ in range(40)}
    assert checked > 10


def test_two_kinds_of_one_name_are_refused():
    from training.office.registry import kind, kinds

    assert "letter" in kinds()
    with pytest.raises(ValueError, match="two kinds of documents are called letter"):
        kind("letter")(lambda document: None)


def test_a_character_no_page_can_show_is_named():
    from training.pages.canvas import classes_of

    with pytest.raises(ValueError, match="pages cannot show '\u4e2d'"):
        classes_of("a\u4e2d")
