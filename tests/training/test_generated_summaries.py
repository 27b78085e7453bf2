"""What a generated page is in a sentence, where its maker does not say."""

from __future__ import annotations

import numpy as np
import pytest

from training import office_dataset
from training.office.document import SUMMARISE, a_kind
from training.office.pages import make_office_page
from training.office.registry import kinds
from training.office.summaries import TOLD_BY, summary_of
from training.pages import Page, Rng, make_page
from training.pages.facts import Fact
from training.tokenizer import tokenizer


def page(*facts: Fact) -> Page:
    blank = np.zeros((28, 28), np.uint8), np.zeros(6, np.uint8), np.zeros((2, 4), np.uint8)
    return Page(*blank, ["Invoice"], list(facts), "invoice")


def own(question: str, value: str) -> Fact:
    return Fact("asked", value, subject=question, asks=(question,))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ([Fact("customer", "Ann Poole"), Fact("issuer", "Stark Ltd")], "An invoice from Stark Ltd to Ann Poole."),
        ([Fact("issuer", "Stark & Co.")], "An invoice from Stark & Co."),
        ([Fact("title", "Stock"), Fact("sender", "A"), Fact("recipient", "B")], "An invoice from A to B."),
        ([Fact("issuer", "Stark"), Fact("sender", "Ann")], "An invoice from Stark."),
        ([Fact("title", "Ready?")], "An invoice: Ready?"),
        ([own("Whose card is it?", "Ann")], "An invoice of Ann."),
        ([Fact("total", "7.00"), own("Who pays?", "Ann")], None),
    ],
)
def test_a_page_is_told_by_two_of_its_facts(facts, told):
    assert summary_of(page(*facts), "an invoice") == told


def test_what_a_page_says_of_itself_stays():
    said = Fact("asked", "A bill.", subject=SUMMARISE[0], asks=SUMMARISE)
    assert summary_of(page(Fact("issuer", "Stark"), said), "an invoice") is None


@pytest.mark.usefixtures("train_assets")
class TestPages:
    def test_every_way_of_telling_is_a_question_of_some_kind(self):
        r, known = Rng(0), set()
        for kind in [kind for kind in kinds() if kind != "passage"] * 3:
            drawn = make_office_page(r.getrandbits(48), 1008, 756, False, kind)
            known.update(fact.subject for fact in drawn.facts)
        for _ in range(40):
            known.update(fact.key for fact in make_page(r.getrandbits(48), 560, 448, False).facts)
        assert len(set(TOLD_BY) - known) <= 3, set(TOLD_BY) - known  # some are left off many pages

    def test_an_invoice_is_summarised_in_training_and_not_in_batches_that_runs_are_compared_on(self, monkeypatch):
        monkeypatch.setattr(office_dataset, "SUMMARY_SHARE", 1.0)
        spec, _ = office_dataset.SPECS[0]
        sheets = [sheet for seed in range(40) if (sheet := make_page(seed, 560, 448, False)).kind == "invoice"][:4]
        told = [summary_of(sheet, a_kind("invoice")) for sheet in sheets]
        assert all(told) and len(sheets) == 4
        for held, most in ((False, 4), (True, 0)):
            steps = [office_dataset.make_tokens(Rng(1), spec, [sheet], held) for sheet in sheets]
            texts = [tokenizer().decode([int(token) for token in step["ids"][0] if token >= 0]) for step in steps]
            assert sum(summary in text for summary, text in zip(told, texts, strict=True)) == most
