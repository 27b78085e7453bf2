"""One question typed in many ways: what it asks for stays, what is held out stays out."""

from __future__ import annotations

import pytest

from training.manners import HELD_CLOSERS, HELD_OPENERS, mistyped, turned, typed, typed_held
from training.pages.values import Rng


def words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() else " " for c in text.lower()).split())


@pytest.mark.parametrize(
    "question,kept",
    [
        ("What is the date of the letter?", "date letter"),
        ("Who chaired the meeting?", "chaired meeting"),
        ("How much is the Tomato soup?", "tomato soup how much"),
        ("Until when is the offer valid?", "when is the offer valid"),
    ],
)
def test_a_turned_question_keeps_its_words(question, kept):
    ways = {turned(Rng(seed), question) for seed in range(200)}
    assert len(ways) >= 3
    assert all(words(kept) <= words(way) for way in ways), ways


def test_only_noun_phrases_become_requests():
    """ "The document called" is no noun phrase, and who is met is not who meets."""
    ways = {turned(Rng(seed), q) for seed in range(300) for q in ("What is the document called?", "Who will I meet?")}
    assert not any("the document called" in way and not way.lower().startswith("what") for way in ways)
    assert all("who" in way.lower() for way in ways if "meet" in way)


def test_typing_is_varied_and_holds_back_the_held():
    r = Rng(0)
    ways = [typed(r, "Where does the journey start?") for _ in range(4000)]
    assert len(set(ways)) > 100
    held = (*HELD_OPENERS, *HELD_CLOSERS)
    assert not any(part.strip(" ,") in way for way in ways for part in held)
    assert sum(way.islower() or way.endswith("start") for way in ways) > 200
    assert any(typed_held(r, "Where does the journey start?") != "Where does the journey start?" for _ in range(20))


def test_names_numbers_and_quotes_are_never_mistyped():
    r = Rng(2)
    for _ in range(300):
        assert "Zoë Kowalski" in mistyped(r, "How much did Zoë Kowalski receive in 2024?")
        assert mistyped(r, 'What comes after "garden"?') == 'What comes after "garden"?'
        assert mistyped(r, "who is up??? so no..") == "who is up??? so no.."  # nothing long enough to slip in


def test_sets_that_are_kept_are_asked_as_before():
    """Manners are for training: the held-out and the bundled sets ask without them."""
    from training.pages import Fact
    from training.wordings import ask

    fact = Fact("asked", "Oslo", asks=("Where does the journey start?",))
    plain = {ask(Rng(seed), fact)[0] for seed in range(400)}
    many = {ask(Rng(seed), fact, manners=True)[0] for seed in range(400)}
    assert len(many) > 2 * len(plain)
    assert all(words("where does the journey start") <= words(question) for question in plain)
    assert {ask(Rng(seed), fact, held=True)[0] for seed in range(50)} == {"Where does the journey start?"}
    assert len({ask(Rng(seed), fact, held=True, manners=True)[0] for seed in range(50)}) > 5
