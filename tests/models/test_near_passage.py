"""The passage of a PDF's text that a misread answer is near to."""

from __future__ import annotations

import time

import pytest

from kvmm.media import load_image, load_media
from kvmm.models import Conversation
from kvmm.models.near_passage import MAX_ANSWER, MAX_SPANS, near_passage
from kvmm.models.text_layer import MAX_CHARACTERS, TextLayer
from kvmm.samples import SAMPLES
from tests.encoded_pages import load_embedded
from tests.media.files import scan_pdf

PAGE = """Invoice INV-2026-0031 (copy)
Bill to: Leonora  Pettigrew,
14 Ferry Road. Søren Lund signed on 05.03.2026.
Total due € 5.120,75 by card; deposit 1,250.00
IBAN DE89 3704 0044 0532 0130 00
The boxes were managed by Barker & Sons"""


@pytest.mark.parametrize(
    ("answer", "passage"),
    [
        ("Leonora Petigrew", "Leonora Pettigrew"),  # misread by a model: a letter left out
        ("Soren Lunt", "Søren Lund"),
        ("Baxter & Sons", "Barker & Sons"),
        ("INV-2026-0081", "INV-2026-0031"),
        ("€ 5.120,25", "€ 5.120,75"),
        ("DE89 3704 0044 0582 0130 00", "DE89 3704 0044 0532 0130 00"),
        ("06.03.2026", "05.03.2026"),
        ("The deposit is 1,350.00", "1,250.00"),  # the one number of a sentence
    ],
)
def test_near_misses_are_proposed(answer, passage):
    assert TextLayer(["Another page of 2026", PAGE]).nearest(answer) == passage


@pytest.mark.parametrize(
    "answer",
    [
        *("Leonora Pettigrew", "inv-2026-0031", "€5120.75"),  # the text has them
        *("", "yes", "It does not say.", "the second one"),  # nothing to compare
        *("Marta Olsen", "17.11.2024", "€ 9.98", "INV-7"),  # far
        *("INV-2026-031", "€ 15.120,75", "1,250.000"),  # other runs of digits
        *("Manager", "Sosn Pettigrew"),  # no name, and no words that follow each other
        "It was 1,350.00 and 06.03.2026",  # two values
        "Leonora Petigrew " * 20,
    ],
)
def test_others_are_not(answer):
    assert TextLayer([PAGE]).nearest(answer) is None


def test_two_equally_near_passages_are_none():
    assert near_passage("Platform 4a", ["Platform 4b, Platform 4c"]) is None
    assert near_passage("Platform 4a", ["Platform 4b, platform 4B!"]) == "Platform 4b"
    assert near_passage("12.03.2026", ["on 12.08.2026", "on 13.08.2026"]) == "12.08.2026"


def test_a_passage_is_whole_words_of_one_page():
    assert near_passage("Ferry Rood", ["14 Ferry", "Road"]) is None
    assert near_passage("ferry rood", ["(14 “Ferry\n Road”.)"]) == "Ferry Road"
    assert near_passage("abcd", ["abcde xabcdx"]) == "abcde"
    assert near_passage("bcde", ["abcdefgh"]) is None
    assert near_passage("Straße 12", ["Strasse 12"]) is None, "they are the same when case does not count"


def test_the_search_is_bounded():
    begin = time.process_time()
    assert near_passage("x" * (MAX_ANSWER + 1), ["x" * MAX_ANSWER]) is None
    assert near_passage("yes", ["eyes"]) is None  # another word
    assert near_passage("aaaa", ["aaab"]) == "aaab"
    assert near_passage("aaaa", ["aaab " + "a bb " * MAX_SPANS]) is None
    for text in ("a1 " * 6_000, "1 111 " * 3_000, "word " * 3_600, "\ufdfa" * 18_000):
        layer = TextLayer([text[:18_000]] * (MAX_CHARACTERS // 18_000))
        for answer in ("4242", "1 112 111 111", "Ward World"):
            layer.nearest(answer)
    assert time.process_time() - begin < 30


@pytest.mark.parametrize(
    ("text", "nearest"), [("TOTAL $864.08", "$864.08"), ("TOTAL $364.08", None), ("TOTAL $15.20", None), ("", None)]
)
def test_the_last_progress_has_the_passage(text, nearest):
    """The model reads the picture, where the total is $364.08; also of a sampled answer, which has no confidence."""
    media = load_media(scan_pdf(load_image(SAMPLES / "invoice.png"), text))
    talk = Conversation(*load_embedded(dtype=None), "balanced", graph=False)
    *before, last = talk.ask("What is the total?", media)
    assert last.text == "$364.08" and last.nearest_text == nearest
    assert all(progress.nearest_text is None for progress in before)
