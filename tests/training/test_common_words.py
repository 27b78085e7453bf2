"""Common words: the lists and examples of the assets, and how they are read aloud."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from training.asset_packages import COMMON, common_of, examples_of
from training.pages.values import Rng, words
from training.utterances import aloud
from training.utterances.aloud import plain, read_aloud, talk
from training.utterances.coverage import common_words

CACHES = (words, aloud.examples, aloud._around, aloud._common, aloud._known, aloud.runs)


@pytest.fixture
def assets(tmp_path, monkeypatch):
    """A folder of assets with few examples, whose caches end with the test."""
    (tmp_path / "words.txt").write_text("apple\nbridge\ncandle\nwindow\n")
    examples = [f"he saw the candle number {'abcdefghij'[i % 10]} on the bridge" for i in range(300)]
    (tmp_path / "examples.txt").write_text("\n".join([*examples, "an exquisite apple", "She left the window open!"]))
    (tmp_path / "common.txt").write_text("the\ncandle\nexquisite\nwindow\nnowhere\n")
    monkeypatch.setenv("KVMM_TRAIN_ASSETS", str(tmp_path))
    for cache in CACHES:
        cache.cache_clear()
    yield tmp_path
    for cache in CACHES:
        cache.cache_clear()


def test_examples_are_those_that_are_said_as_they_are_written():
    text = """  1 This software and database is "being provided to you"
00001740 29 v 01 breathe 0 001 @ 0 | draw air; "I can breathe better when the air is clean"; "The patient is respiring."
00002 29 v 01 x 0 000 | sell at 3; "it costs 5 dollars a piece"; "two words"; "isn't it a  fine day?"; "the U.N. came"
"""
    assert examples_of(text) == [
        "I can breathe better when the air is clean",
        "The patient is respiring",
        "isn't it a fine day?",
    ]


def test_common_words_come_from_two_lists_by_turns():
    text = 'X = {\n "passwords": "dragon,love".split(","),\n "english_wikipedia": "of,http,born".split(","),\n'
    text += ' "us_tv_and_film": "you,yeah".split(",")}'
    assert common_of(text, {"of", "you", "yeah", "born", "love"}) == ["you", "of", "yeah", "born"]
    long = ",".join(f"w{i}" for i in range(2 * COMMON))
    assert (
        len(common_of(f'"us_tv_and_film": "{long}".split, "english_wikipedia": "".split', set(long.split(","))))
        == COMMON
    )


def test_a_rare_common_word_is_read_aloud_often(assets):
    r, counts = Rng(5), Counter()
    for _ in range(600):
        counts.update(set(read_aloud(r, seconds=4.0).transcript.split()))
    assert counts["exquisite"] > 20 and counts["window"] > 20  # one example in 300 each


def test_without_assets_of_prose_there_is_talk(assets):
    (assets / "examples.txt").unlink()
    (assets / "common.txt").unlink()
    for cache in CACHES:
        cache.cache_clear()
    r = Rng(6)
    for seconds in (1.5, 4.0, 20.0):
        said = [read_aloud(r, seconds=seconds) for _ in range(40)]
        assert all(u.transcript and u.transcript == plain(u.text) for u in said)
        assert all(len(u.text) <= aloud.CHARACTERS_A_SECOND * seconds + 30 for u in said)


def test_talk_is_written_as_it_is_said_and_some_is_kept():
    assert len(talk()) > 400 and len(talk(True)) > 8 and not set(talk()) & set(talk(True))
    for line in (*talk(), *talk(True)):
        assert re.fullmatch(r"[A-Z][A-Za-z',; -]*[A-Za-z][.!?]", line), line


def test_the_most_frequent_words_keep_their_order():
    assert common_words(["The", "of", "s", "i", "3rd", "don't", "a", "it"], 5) == ["the", "of", "i", "don't", "a"]
