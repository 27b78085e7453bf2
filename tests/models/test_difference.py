"""Where two answers part, by tokens and by words."""

from __future__ import annotations

import pytest

from kvmm.models.difference import Difference, first_difference, first_different_word


@pytest.mark.parametrize(
    "full, kvmm, difference",
    [
        ("abc", "abc", Difference(3, None)),
        ("abc", "axc", Difference(3, 2, "b", "x", 1)),
        ("ab", "abc", Difference(2, 3, "", "c", 1)),
        ("ab.", "abc", Difference(3, 3, "", "c", 1)),  # the token that ends an answer has no text
        ("", "", Difference(0, None)),
        ("a b c", "a b d e", Difference(5, 5, "c", "d", 3)),
        ("a b", "a  b", Difference(3, 3, "b", " ", None)),
    ],
)
def test_first_differing_token(full, kvmm, difference):
    class Tokenizer:
        all_special_ids = (ord("."),)

        def decode(self, ids, skip_special_tokens=False):
            return "".join(chr(i) for i in ids if not (skip_special_tokens and i in self.all_special_ids))

    assert first_difference([*map(ord, full)], [*map(ord, kvmm)], Tokenizer()) == difference


def test_words_are_compared_without_white_space():
    assert first_different_word("the total is 12", "the  total\nis 12") is None
    assert first_different_word("the total is 12", "the total was 12") == 3
    assert first_different_word("the total", "the total is") == 3
    assert first_different_word("", "yes") == 1


def test_the_verdict_is_one_line_and_plain_values():
    assert Difference(4, None).verdict == "Same answer as full precision"
    assert Difference(4, None).to_dict() == {"identical": True, "first_difference": None}
    parted = Difference(4, 6, "12", "13", 4)
    assert parted.verdict == "Differs from full precision at word 4" and not parted.identical
    assert parted.to_dict()["first_difference"] == {"token": 6, "word": 4, "full_precision": "12", "kvmm": "13"}
    assert "other tokens from token 3" in Difference(4, 3, "b", " ").verdict
