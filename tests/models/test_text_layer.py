"""What an answer states, looked for in the text of PDF pages."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from kvmm.media import Media, load_image, load_media
from kvmm.models import Conversation
from kvmm.models.confidence import NOT_IN_TEXT, Confidence
from kvmm.models.text_layer import MAX_CHARACTERS, MAX_VALUES, TextLayer, values_of
from kvmm.samples import SAMPLES
from tests.encoded_pages import load_embedded
from tests.media.files import make_pdf, scan_pdf

PAGE = """Invoice INV-2026-0031
Bill to  Zoë   Müller
Date 05.03.2026  14:30
Subtotal EUR 1.234,50   VAT € 98,00
Paid 1\u202f000 CHF, rest due on 31 May
Room A12, infor-
mation and part-time help"""


@pytest.mark.parametrize(
    "answer",
    [
        *("INV-2026-0031", "Zoë Müller", "ZOË MÜLLER", "Zoe\u0308 Mu\u0308ller", "1,234.50", "€1.234,5", "EUR1234.50"),
        *("98", "€ 98.00", "1000 CHF", "1 000", "CHF 1'000", "05.03.2026", "5.3.2026", "14:30", "31 May"),
        *("A12", "a12", "The VAT is €98.", "Part-Time 1000", "Infor-Mation"),
    ],
)
def test_values_of_the_page_are_found(answer):
    assert TextLayer([PAGE]).supports(answer) is True


@pytest.mark.parametrize(
    "answer",
    [
        *("INV-2026-0013", "Zoë Weber", "Miller", "1,234.05", "12,345.0", "123", "234.5", "€ 9.80", "980"),
        *("06.03.2026", "2026.03.05", "14:31", "30:14", "31 June", "A21", "12A", "The VAT is €99.", "100 CHF"),
    ],
)
def test_values_that_the_page_does_not_have(answer):
    assert TextLayer([PAGE]).supports(answer) is False


@pytest.mark.parametrize(
    "answer", ["", "yes", "No.", "None", "N/A", "blue", "It does not say.", "the second one", "!?"]
)
def test_answers_without_a_value_are_not_compared(answer):
    assert values_of(answer) == [] and TextLayer([PAGE]).supports(answer) is None


def test_of_a_sentence_only_the_numbers_count():
    assert values_of("She paid 12.50 on Monday to Weber") == [("12.5",)]
    assert values_of("Bank of Ireland 7") == [("bank",), ("of",), ("ireland",), ("7",)]
    assert len(values_of(" ".join(map(str, range(1000))))) == MAX_VALUES
    page = TextLayer(["Total", "42"])
    assert page.supports("Total 42") and page.supports("Total-42") is False, "no value goes on on the next page"


def page(text: str, **fields) -> Media:
    return Media("image", None, "a.pdf", 1, text, **{"text_length": len(text), **fields})


def test_only_pages_whose_text_is_whole_are_compared():
    assert TextLayer.of([page("Total 42"), page("Sum 7")]).supports("7")
    assert TextLayer.of([]) is None
    others = (
        Media("image", None, "a.png"),
        Media("audio", np.zeros(16000, np.float32), "a.wav"),
        page(""),
        page("x" * 20_000, text_length=20_001),
    )
    for other in others:
        assert TextLayer.of([page("Total 42"), other]) is None
    assert TextLayer.of([page("x " * 9_000)] * 30) is None


def test_text_made_to_be_slow_is_bounded():
    begin = time.process_time()
    assert TextLayer(["\ufdfa" * 20_000] * 20).supports("42") is None, "one character stands for eighteen"
    for text in ("a1 " * 6_000, "1," * 9_000, "1 111 " * 3_000, "1.111" * 3_600, "'" * 18_000):
        layer = TextLayer([text[:18_000]] * (MAX_CHARACTERS // 18_000))
        assert layer.supports(" ".join(f"{'a1' * count}b" for count in range(1, 500))) is False
    assert time.process_time() - begin < 20


def test_support_takes_no_mark_away():
    sure, unsure = Confidence(0.9, False), Confidence(0.4, True)
    layer = TextLayer([PAGE])
    assert sure.checked("98", layer) == replace(sure, supported=True)
    assert unsure.checked("98", layer) == replace(unsure, supported=True)
    assert unsure.checked("98", layer).line.startswith("Unsure (40% likely right)")
    assert sure.checked("99", None) == sure and sure.checked("blue", layer) == sure
    doubted = sure.checked("99", layer)
    assert doubted == Confidence(0.9, True, False)
    assert doubted.line.startswith(f"Unsure ({NOT_IN_TEXT}): check it") and "90%" not in doubted.line
    assert doubted.to_dict()["supported"] is False and "supported" not in sure.to_dict()


@pytest.fixture(scope="module")
def embedded():
    return load_embedded(dtype=None)


@pytest.mark.parametrize(
    ("text", "supported"), [("", None), ("TOTAL $364.08", True), ("TOTAL $864.08", False), ("Total: 364,08 $", True)]
)
def test_an_answer_is_compared_with_the_text_of_its_pages(embedded, text, supported):
    """The model reads the picture, where the total is $364.08, and is sure of it."""
    media = load_media(scan_pdf(load_image(SAMPLES / "invoice.png"), text))
    *_, last = Conversation(*embedded, "balanced", graph=False).ask("What is the total?", media)
    assert last.text == "$364.08" and last.confidence.probability > 0.9
    assert last.confidence.supported is supported and last.confidence.unsure is (supported is False)


def test_a_later_question_is_compared_with_all_that_was_shown(embedded):
    talk = Conversation(*embedded, "balanced", graph=False)
    *_, first = talk.ask("What does it say?", load_media(make_pdf(1)))
    assert first.text and first.confidence.supported is not None
    *_, second = talk.ask("What is the total?", load_media(SAMPLES / "invoice.png"))
    assert second.confidence.supported is None, "the picture has no text to compare with"
