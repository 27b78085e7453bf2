"""Pages of an office are filled, short ones in larger type and long ones with text, and nothing is lost by it."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("train_assets")

FEW_WORDS = ("name_badge", "poster", "business_card", "invitation", "sign")  # none of which offices stamp
SEEDS = range(16)


def heights(pages) -> np.ndarray:
    """Share of each page's height from its first to its last dark pixel."""
    rows = [np.flatnonzero(page.ink.max(1) > 60) for page in pages]
    return np.array([np.ptp(found) / page.ink.shape[0] for found, page in zip(rows, pages, strict=True)])


@pytest.mark.parametrize("engine", ["canvas", "pdf"])
def test_filled_pages_hold_what_the_others_hold(train_assets, monkeypatch, engine):
    from training.office import canvas_engine, pdf_engine
    from training.office.pages import make_office_page

    def made(share):
        for module in (canvas_engine, pdf_engine):
            monkeypatch.setattr(module, "type_share", lambda r: share)
        return [make_office_page(n, 756, 532, kind=kind, engine=engine) for kind in FEW_WORDS for n in SEEDS]

    plain, filled = made(-1.0), made(0.9)
    assert heights(filled).mean() > heights(plain).mean() + 0.2
    assert (heights(filled) > 0.6).mean() > 0.6
    for before, after in zip(plain, filled, strict=True):
        assert {fact.subject for fact in before.facts} <= {fact.subject for fact in after.facts}


def test_larger_type_breaks_no_words(train_assets, monkeypatch):
    """In the narrow columns of a PDF's tables: what stood there in one piece still does."""
    from training.office import pdf_engine
    from training.office.pages import make_office_page

    def words(share):
        monkeypatch.setattr(pdf_engine, "type_share", lambda r: share)
        kinds = ("timetable", "price_list", "bank_statement")
        pages = [make_office_page(n, 756, 532, kind=kind, engine="pdf") for kind in kinds for n in range(4)]
        return [set(" ".join(page.lines).split()) for page in pages]

    for before, after in zip(words(-1.0), words(1.0), strict=True):
        assert len(before - after) <= 4  # those of a stamp


def test_faces_never_shrink(train_assets):
    from training.office.canvas_engine import enlarged, office_style
    from training.pages.values import Rng

    for seed in range(20):
        style = office_style(Rng(seed), 532, False)
        larger = enlarged(style, 1.02 + 0.05 * seed)
        assert all(getattr(larger, f).size >= getattr(style, f).size for f in ("body", "bold", "small", "title"))


def test_a_dense_page_is_transcribed_whole(train_assets):
    from training.office.pages import make_office_page
    from training.office_dataset import LONG_PART, SPECS, Pair
    from training.pages.values import Rng
    from training.questions import transcription
    from training.sequences import turns_tokens
    from training.tokenizer import EOS, encode

    spec = max((spec for spec, _ in SPECS if spec.pages == 1 and spec.teacher_len), key=lambda s: s.height * s.width)
    pages = (make_office_page(n, spec.height, spec.width, engine="canvas") for n in range(200))
    page = next(p for p in pages if 600 < len(encode(["\n".join(p.lines)])[0]) < 800)
    pair = Pair(spec)
    pair.read_page(page, spec, True)
    ids, weight = turns_tokens(transcription(Rng(0), page, None), int(LONG_PART * pair.room))
    assert ids[-1] == EOS and len(ids) > 600 and pair.whole and pair.branch(ids, weight)


def test_what_is_tried(train_assets):
    from training.office.filling import ENOUGH, fillings

    tried = list(fillings(0.9, used=100, room=900, blocks=5))
    factors, spreads = zip(*tried, strict=True)
    assert list(factors) == sorted(factors, reverse=True) and min(factors) > 1 and min(spreads) > 0
    assert max(gap / factor for factor, gap in fillings(0.9, 100, 900, 5, widest=20)) <= 20
    assert not list(fillings(0.9, used=ENOUGH * 900, room=900, blocks=5)) and not list(fillings(-1.0, 100, 900, 5))


def test_large_pages_are_often_long(train_assets):
    """As those of letters, contracts and minutes: a third beyond 1000 characters, some beyond 2000."""
    from training.office.pages import make_office_page

    pages = [make_office_page(n, 1008, 756, engine="canvas") for n in range(200)]  # of 60 a tenth is chance
    lengths = np.array([sum(map(len, page.lines)) for page in pages])
    assert (lengths > 1000).mean() > 0.25 and (lengths > 2000).mean() > 0.1
    assert np.mean([bool(page.facts) for page in np.array(pages, object)[lengths > 1000]]) > 0.95


def test_padding_stands_among_the_blocks(train_assets):
    from training.office.document import Document
    from training.office.prose import pad
    from training.pages.values import Rng

    found = set()
    for seed in range(12):
        document = Document(Rng(seed), (756, 532))
        document.heading("A title")
        document.lines("A street", "a town")
        document.line("a date")
        parts = [
            document.paragraph(f"{text} of a letter, which is long enough to run over a line or two.") for text in "AB"
        ]
        pad(document, document.r)
        assert [block.kind for block in document.blocks[:3]] == ["heading", "lines", "lines"]  # an address in one piece
        found.add(next(n for n, block in enumerate(document.blocks) if block.parts == parts[1:]))
    assert len(found) > 1  # text also stands before what is asked for


def test_prose_ends_where_a_sentence_does(tmp_path, monkeypatch):
    from training.office import prose
    from training.pages.values import Rng

    long = "This sentence runs on and on until nobody remembers how it began, and has not yet come to its end."
    fits = "It has {shim}s. Others, e.g. the cat, sleep on ${HOME}. " + long
    (tmp_path / "prose.txt").write_text(f"{long}\n{fits}\n", encoding="utf-8")
    monkeypatch.setattr(prose, "assets_dir", lambda: tmp_path)
    monkeypatch.setattr(prose, "paragraphs", prose.paragraphs.__wrapped__)
    texts = {prose.prose(Rng(seed), longest) for seed in range(40) for longest in (24, 40, 60)}
    whole = {text for text in texts if text.endswith((".", "..."))}
    assert whole == {"It has shims.", "It has shims. Others, e.g. the cat, sleep on ${HOME}."}
    assert len(texts - whole) <= 3  # after six long ones


def test_only_a_poster_is_spread_over_its_page():
    from training.office.document import Document
    from training.office.filling import widest_gap
    from training.pages.values import Rng

    document = Document(Rng(0), (756, 532))
    document.heading("Summer fair")
    assert widest_gap(document, 12) == float("inf")
    document.framed().paragraph("A paragraph. " * 20)
    assert widest_gap(document, 12) < 40


def test_ornaments_leave_the_text_alone(train_assets):
    from training.office.ornaments import KINDS, ornament
    from training.office.pages import make_office_page
    from training.pages.values import Rng

    pages = [make_office_page(n, 756, 532, kind="letter").ink for n in range(20)]
    drawn = 0
    for n, ink in enumerate(pages):
        changed = ink.copy()
        drawn += ornament(Rng(n), changed)
        assert (changed[ink > 0] == ink[ink > 0]).all()
    assert drawn > 10
    for kind in KINDS:
        shapes = [kind(Rng(n), (756, 532)) for n in range(8)]
        assert all(shape.dtype == np.uint8 and shape.max() > 0 for shape in shapes)
        assert len({shape.tobytes() for shape in shapes}) == len(shapes)
