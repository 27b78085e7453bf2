"""What people say before they ask: replies that no page gives, and questions that fit any page."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from training import dataset, office_dataset
from training.heldout import pages as heldout_pages
from training.heldout.writer import Writer
from training.office import small_talk
from training.office.document import KIND_ASKED, SUMMARISE
from training.office.kinds import passages as kinds_of_passages
from training.office.pages import make_office_page, own_questions
from training.office.passages import WRITTEN
from training.office.small_talk import about_any_page, remark, thanks
from training.pages import Page, Rng
from training.pages.facts import Fact
from training.sequences import Sequence
from training.tokenizer import tokenizer
from training.utterances import FIRST_WORDS
from training.utterances.aloud import read_aloud

LISTS = {
    name: ways
    for name, ways in vars(small_talk).items()
    if name.isupper() and isinstance(ways, tuple) and name not in ("SAID", "SUMMARISE")
}
WAYS = [*LISTS.values(), *(said for said, _ in small_talk.SAID)]
WAYS.remove(LISTS["FOREIGN"])
OF_A_PAGE = ("COUNT", "MAIL", "LANGUAGE", "DESCRIBE")


def page(*lines: str, facts: tuple[Fact, ...] = ()) -> Page:
    blank = np.zeros((28, 28), np.uint8), np.zeros(6, np.uint8), np.zeros((2, 4), np.uint8)
    return Page(*blank, list(lines), list(facts), "letter")


def answers(sheet: Page) -> dict[str, set[str]]:
    """What a page is asked and answered, by the list that the question is of."""
    r, found = Rng(1), {}
    for _ in range(300):
        question, answer = about_any_page(r, sheet)
        found.setdefault(next(name for name in OF_A_PAGE if question in LISTS[name]), set()).add(answer)
    return found


def test_no_wording_stands_for_two_things_and_enough_of_each_are_trained():
    """Thanks stand in two lists, and what is asked about a page may be asked about a recording."""
    every = [way for ways in (*WAYS, KIND_ASKED, SUMMARISE) for way in ways]
    twice = {way for way, count in Counter(every).items() if count > 1}
    recordings = {*small_talk.HEARD, *small_talk.SPOKEN}
    assert twice - {*small_talk.THANKS} - recordings == set()
    assert twice & recordings == {
        "What is this?",
        "What is it?",
        "What language is it in?",
        "In what language is this?",
    }
    assert all(len(ways) >= small_talk.HELD + 2 for ways in WAYS)


def test_wordings_kept_for_evaluation_are_not_trained():
    r, sheet = Rng(0), page("Dear Ann, thank you for the letter of 3 May to the board.")
    draws = (remark, lambda r, held: about_any_page(r, sheet, held))
    drawn = {held: {draw(r, held)[0] for _ in range(900) for draw in draws} for held in (False, True)}
    assert len(drawn[False]) > 60 and len(drawn[True]) > 12
    assert not drawn[False] & drawn[True]
    assert not any("English" in said for said in drawn[False] | drawn[True])  # it would be no translation
    assert {thanks(r)[1] for _ in range(20)} == {small_talk.WELCOME}


@pytest.mark.parametrize(
    ("lines", "mail", "english"),
    [
        (["Write to ann@poole.org"], {"Yes"}, None),
        (["The cat of the house is in the garden with you"], {"No"}, {"English"}),
        (["Hours: 7 @ Fr. 23.50"], None, None),  # the sign is no address here, and nobody would say so
        (["le prix de la soupe"], {"No"}, None),
    ],
)
def test_questions_for_any_page_are_answered_from_its_text(lines, mail, english):
    found = answers(page(*lines))
    assert found.get("MAIL") == mail and found.get("LANGUAGE") == english
    assert found["COUNT"] == {"1"} and "DESCRIBE" not in found


def test_a_page_is_described_by_its_summary():
    about = Fact("asked", "A letter to Ann.", subject=SUMMARISE[0], asks=SUMMARISE)
    assert answers(page("Dear Ann", facts=(about,)))["DESCRIBE"] == {"A letter to Ann."}


@pytest.mark.usefixtures("train_assets")
class TestPages:
    def test_recordings_are_greeted_too(self):
        r, asked = Rng(0), {False: set(), True: set()}
        for held, questions in asked.items():
            for _ in range(60):
                said = office_dataset.any_recording(r, held, 1000).qa
                questions.update(qa.answer for qa in said if qa.key == FIRST_WORDS)
        assert {small_talk.A_RECORDING, "English"} <= asked[False]
        assert {reply for _, reply in small_talk.SAID} & asked[False]
        assert asked[True] == set()

    def test_a_recording_of_prose_is_transcribed_as_often_with_first_words(self, monkeypatch):
        """One that says nothing to ask for is asked for its transcript three times."""
        monkeypatch.setattr(office_dataset, "TALK_SHARE", 1.0)
        monkeypatch.setattr(office_dataset, "ANY_PAGE_SHARE", 1.0)
        monkeypatch.setattr(office_dataset, "any_utterance", lambda r, held, frames: read_aloud(r, held, frames / 100))
        spoken = office_dataset.any_recording(Rng(0), False, 320)
        assert [qa.key == FIRST_WORDS for qa in spoken.qa] == [False, True, True]
        monkeypatch.setattr(dataset, "_clip", lambda *args: np.zeros((320, 128), np.float16))
        taken = []
        monkeypatch.setattr(dataset, "_fill_with_questions", lambda r, sequence, questions: taken.extend(questions))
        spec = next(spec for spec, _ in office_dataset.SPECS if spec.frames == 320)
        said = dataset._add_recording(Rng(0), Sequence(spec.seq_len), spec, False, lambda *args: spoken)[1]
        assert sum(answer == said for _, answer, _ in taken) == 3

    def test_written_documents_say_what_they_are(self):
        shown = make_office_page(3, 812, 588, False, WRITTEN)
        (kind,) = [fact.value for fact in shown.facts if fact.asks == KIND_ASKED]
        assert any(kind.endswith(known.kind) for known in kinds_of_passages.passages())
        others = [fact for fact in shown.facts if fact.asks not in (KIND_ASKED, SUMMARISE)]
        assert own_questions(shown).facts == others

    @pytest.mark.parametrize("held", [False, True])
    def test_steps_hold_small_talk_but_for_held_out_ones(self, held):
        """The words "a passage", which no reader of a letter can do anything with, are taught by none."""
        r, spec = Rng(4), replace(office_dataset.SPECS[1][0], sequences=24)
        pages = [make_office_page(seed, spec.height, spec.width, held, WRITTEN) for seed in range(spec.sequences)]
        step = office_dataset.make_tokens(r, spec, pages, held)
        text = "\n".join(tokenizer().decode([int(i) for i in row if i >= 0]) for row in step["ids"])
        replies = [reply for _, reply in small_talk.SAID] + [small_talk.NO_TRANSLATION]
        assert any(reply in text for reply in replies) != held
        assert "a passage" not in text and KIND_ASKED[-1] not in text

    def test_a_remark_that_a_document_has_another_answer_to_is_not_taught(self, monkeypatch):
        monkeypatch.setattr(office_dataset, "remark", lambda r: ("Thanks", small_talk.WELCOME))
        monkeypatch.setattr(office_dataset, "TALK_SHARE", 1.0)
        monkeypatch.setattr(office_dataset, "THANKS_SHARE", 1.0)
        monkeypatch.setattr(office_dataset, "thanks", lambda r: ("thanks", small_talk.WELCOME))
        spec, thanked = (
            replace(office_dataset.SPECS[0][0], sequences=1),
            Fact("asked", "Ann", asks=("thanks", "Thanks to?")),
        )
        for facts, taught in (((), True), ((thanked,), False)):
            step = office_dataset.make_tokens(Rng(0), spec, [page("Dear Ann", facts=facts)], False)
            text = tokenizer().decode([int(i) for i in step["ids"][0] if i >= 0])
            assert (small_talk.WELCOME in text) == taught

    def test_the_held_out_set_asks_what_a_document_is(self, tmp_path, monkeypatch):
        writer = Writer(tmp_path)
        heldout_pages.first_words(writer, 1, 3)
        assert [line["turns"][0]["key"] for line in writer.lines] == ["kind", "talk", "any"] * 3
        known = {passage.kind for passage in kinds_of_passages.passages(held=True)}
        for line in writer.lines[::3]:
            turn = line["turns"][0]
            answer, *short = turn["answers"]
            assert turn["question"] == KIND_ASKED[-1] and any(answer.endswith(kind) for kind in known)
            assert all(one.split()[-1] in answer for one in short)
