"""Beginnings of words, by which two texts are compared."""

from __future__ import annotations

import re

LETTERS = 5  # of a word that count: "sign", "signed" and "signature" do not, "member" and "membership" do
# words that say nothing about what a text is about
PLAIN = frozenset(
    word[:LETTERS]
    for word in (
        "what when where which whose whom from with does have that this there many much long will would should must "
        "about their they them were been into than then your name number kind person people page document text written"
    ).split()
)
_WORD = re.compile(r"[^\W\d_]{4,}")


def stems(text: str) -> set[str]:
    """Beginnings of the words of four letters or more, in lower case."""
    return {word[:LETTERS] for word in _WORD.findall(text.lower())}
