"""What a written-out document is about, and what kind of document it is."""

from __future__ import annotations

import pytest

from training.office.document import KIND_ASKED, SUMMARISE, Document, a_kind, noun_of
from training.office.kinds import passages as kinds_of_passages
from training.office.kinds.passages import passage_page
from training.office.passages import faults, parse, passages
from training.pages.values import Rng

pytestmark = pytest.mark.usefixtures("train_assets")
SUMMARISED = """
## letter of a water company | Your meter
Dear {p1}, on {date1} the meter is read. The reader, {p2}, will ring. It hangs in the cellar. We take {money1} a visit.
S: A water company tells {p1} that {p2} comes on {date1}.
Q: Who comes? | name of the reader
A: {p2}
Q: What does it cost? | fee
A: {money1}
"""


def test_a_summary_is_asked_for_in_its_own_words_and_only_while_it_holds(monkeypatch):
    (passage,) = parse(SUMMARISED)
    assert faults(passage) == []
    (summary,) = [q for q in passage.questions if q.summarises]
    assert summary.wordings == SUMMARISE and summary.derived
    monkeypatch.setattr(kinds_of_passages, "draw", lambda r, held: passage)
    seen = set()
    for seed in range(60):
        document = Document(Rng(seed), (756, 532))
        passage_page(document)
        asked = {one.questions: one.answer for one in document.asks}
        assert asked[KIND_ASKED] == "a letter of a water company"
        said = {one.questions[0]: one.answer for one in document.asks}
        assert (SUMMARISE in asked) == (None not in said.values())  # where something is hidden it may say too much
        seen.add((said["Who comes?"] is None, said["What does it cost?"] is None))
    assert len(seen) >= 3


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("letter of a credit union", "a letter of a credit union"),
        ("invoice", "an invoice"),
        ("minutes of a meeting", "minutes of a meeting"),
        ("house rules", "house rules"),
        ("advice for travellers", "advice for travellers"),
        ("e-mail", "an e-mail"),
        ("e-mail to members", "an e-mail to members"),
        ("boarding pass", "a boarding pass"),
        ("bus", "a bus"),
        ("summons", "a summons"),
        ("poster against rats", "a poster against rats"),
        ("union flyer", "a union flyer"),
        ("utility bill", "a utility bill"),
        ("safety information", "safety information"),
        ("user guide", "a user guide"),
        ("urgent notice", "an urgent notice"),
        ("umbrella tag", "an umbrella tag"),
        ("HR slide", "an HR slide"),
        ("honours board", "an honours board"),
        ("hotel bill", "a hotel bill"),
    ],
)
def test_kinds_are_named_with_their_article(kind, named):
    assert a_kind(kind) == named


def test_the_noun_of_a_kind():
    assert [noun_of(kind) for kind in ("a letter of a bank", "a repair slip", "minutes")] == [
        "letter",
        "slip",
        "minutes",
    ]


def test_what_any_page_is_asked_is_no_wording_of_a_document():
    (passage,) = parse("## sign | Cave\nA cave.\nQ: What is this? | what is shown?\nA: A cave\n")
    assert "a wording that any page is asked: {'What is this?'}" in faults(passage)[0]


def test_nearly_every_document_of_training_has_a_summary():
    summarised = [sum(q.summarises for q in passage.questions) for passage in passages()]
    assert set(summarised) <= {0, 1}
    assert sum(summarised) > 0.98 * len(summarised)
