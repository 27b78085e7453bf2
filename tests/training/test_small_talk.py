"""What people say before they ask: replies that no page gives, and questions that fit any page."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from training import office_dataset
from training.heldout import pages as heldout_pages
from training.heldout.writer import Writer
from training.office import small_talk
from training.office.document import KIND_ASKED, SUMMARISE
from training.office.kinds import passages as kinds_of_passages
from training.office.pages import make_office_page, own_questions
from training.office.small_talk import about_any_page, described, thanks
from training.office.small_talk import small_talk as talk
from training.pages import Page, Rng
from training.tokenizer import tokenizer

WAYS = [
    ways for name, ways in vars(small_talk).items() if name.isupper() and isinstance(ways, tuple) and name != "SAID"
]
WAYS += [said for said, _ in small_talk.SAID]


def page(*lines: str) -> Page:
    return Page(
        np.zeros((28, 28), np.uint8), np.zeros(6, np.uint8), np.zeros((2, 4), np.uint8), list(lines), [], "letter"
    )


def test_no_wording_stands_for_two_things_and_enough_of_each_are_trained():
    every = [way for ways in WAYS for way in ways]
    shared = {*small_talk.THANKS, *small_talk.HEARD}  # thanks stand in two lists, and a recording is no page
    twice = [way for way, count in Counter(every).items() if count > 1 and way not in shared]
    assert twice == []
    assert all(len(ways) >= small_talk.HELD + 2 for ways in WAYS)


def test_wordings_kept_for_evaluation_are_not_trained():
    r, sheet = Rng(0), page("Dear Ann, thank you for the letter of 3 May to the board.")
    drawn = {
        held: {
            draw(held)[0]
            for _ in range(900)
            for draw in (lambda h: talk(r, h), lambda h: about_any_page(r, sheet, "a letter", h))
        }
        for held in (False, True)
    }
    assert len(drawn[False]) > 60 and len(drawn[True]) > 12
    assert not drawn[False] & drawn[True]
    assert {thanks(r)[1] for _ in range(20)} == {small_talk.WELCOME}


@pytest.mark.parametrize(
    ("lines", "mail", "money", "english"),
    [
        (["Write to ann@poole.org", "Fee: 40 \u20ac"], "Yes", "Yes", False),
        (["The cat of the house is in the garden with you"], "No", "No", True),
        (["Total 12.50"], "No", None, False),  # an amount without its currency: better not asked
    ],
)
def test_questions_for_any_page_are_answered_from_its_text(lines, mail, money, english):
    r, answers = Rng(1), {}
    for _ in range(300):
        question, answer = about_any_page(r, page(*lines), "a letter")
        group = next(
            name
            for name in ("MAIL", "MONEY", "LANGUAGE", "COUNT", "MORE", "DESCRIBE")
            if question in getattr(small_talk, name)
        )
        answers.setdefault(group, set()).add(answer)
    assert answers.get("MONEY") == (money and {money})
    assert answers.get("LANGUAGE") == ({"English"} if english else None)
    assert (answers["MAIL"], answers["COUNT"], answers["MORE"]) == ({mail}, {"1"}, {"No"})
    (said,) = answers["DESCRIBE"]
    assert said.startswith("A letter: ") and lines[0] in said


def test_a_page_is_described_by_what_it_is_and_how_it_begins():
    assert described(page("Your meter", "Dear Ann"), "minutes") == "Minutes: Your meter."
    assert described(page("Closed!"), "a sign") == "A sign: Closed!"
    assert described(page(), "a sign") == "A sign."


@pytest.mark.usefixtures("train_assets")
class TestPages:
    def test_recordings_are_greeted_too(self):
        r, asked = Rng(0), {False: set(), True: set()}
        for held, questions in asked.items():
            for _ in range(60):
                questions.update((key, answer) for key, _, answer in office_dataset.any_recording(r, held, 1000).qa)
        assert ("any", small_talk.A_RECORDING) in asked[False] and any(key == "talk" for key, _ in asked[False])
        assert not {"any", "talk"} & {key for key, _ in asked[True]}

    def test_written_documents_say_what_they_are(self):
        shown = make_office_page(3, 812, 588, False, "passage")
        (kind,) = [fact.value for fact in shown.facts if fact.asks == KIND_ASKED]
        assert office_dataset.kind_name(shown) == kind != "a passage"
        assert not {KIND_ASKED, SUMMARISE} & {fact.asks for fact in own_questions(shown).facts}
        assert len(own_questions(shown).facts) < len(shown.facts)

    @pytest.mark.parametrize("held", [False, True])
    def test_steps_hold_small_talk_but_for_the_batches_that_runs_are_compared_on(self, held):
        """The words "a passage", which no reader of a letter can do anything with, are taught by none."""
        r, spec = Rng(4), replace(office_dataset.SPECS[1][0], sequences=24)
        pages = [make_office_page(seed, spec.height, spec.width, held, "passage") for seed in range(spec.sequences)]
        step = office_dataset.make_tokens(r, spec, pages, held)
        text = "\n".join(tokenizer().decode([int(i) for i in row if i >= 0]) for row in step["ids"])
        replies = [reply for _, reply in small_talk.SAID] + [small_talk.NO_TRANSLATION]
        assert any(reply in text for reply in replies) != held
        assert "a passage" not in text

    def test_the_held_out_set_asks_what_a_document_is(self, tmp_path, monkeypatch):
        writer = Writer(tmp_path)
        heldout_pages.first_words(writer, 1, 3)
        assert [line["turns"][0]["key"] for line in writer.lines] == ["kind", "talk", "any"] * 3
        known = {passage.kind for passage in kinds_of_passages.passages(held=True)}
        for line in writer.lines[::3]:
            (answer,) = line["turns"][0]["answers"]
            assert any(answer.endswith(kind) for kind in known)
