"""Whether what an answer states occurs in the text layer of the PDF pages that it is about.

The model reads the pixels of a page; a PDF that a program wrote also has its words as text. A number, a date or a name
that the model gives and that this text does not have was misread, computed or made up. The opposite proves nothing: a
value of the page may be the answer to another question.

Layers come from :mod:`kvmm.pdf`, in a process with limits and cut to a length; what is compared here is bounded, too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property

from kvmm.decoding.files import MAX_PAGE_TEXT
from kvmm.media import Media
from kvmm.models.near_passage import near_passage

MAX_CHARACTERS = 400_000  # of all pages, as 60 dense ones have; read in a tenth of a second
MAX_VALUES = 64  # of an answer, the first ones; a transcription has more
MAX_NAME_WORDS = 8  # an answer of more words is a sentence
_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+")
_SEPARATOR = re.compile("[.,]")
_SPACED = re.compile(r"(?<![\d.,])\d{1,3}(?:[ '\u2019]\d{3})+(?!\d)")  # a number with spaces between thousands
_SPACE = re.compile(r"[ '\u2019]")
_IN_NAMES = frozenset(
    "a al and at bin d da das de del den der des di do dos du e el et for in la le of on or the to und van von y "
    "zu".split()
)
_NO_NAMES = frozenset("false n/a nil no nobody none nothing true unanswerable unknown yes".split())


class TextLayer:
    """The text of some pages, to look for an answer's values.

    Args:
        texts: one per page.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)

    @classmethod
    def of(cls, media: Iterable[Media]) -> TextLayer | None:
        """The layer of everything shown; None where a value may come from elsewhere than from the text.

        That is: an image, a recording, a page without text, text that was cut, or more than ``MAX_CHARACTERS``.
        """
        items = list(media)
        whole = all(item.page is not None and item.text and item.text_length <= MAX_PAGE_TEXT for item in items)
        if not items or not whole or sum(len(item.text) for item in items) > MAX_CHARACTERS:
            return None
        return cls([item.text for item in items])

    def supports(self, answer: str) -> bool | None:
        """Whether every value of an answer occurs in the text.

        Case, white space, currency signs, separators of thousands, decimal commas and zeros at a number's end do not
        count. What is written together in the answer ("A12", "2026-03-14") has to follow each other in the text.

        Returns:
            None for an answer without a value, such as "yes", a colour or a refusal, and for text that cannot be
            compared.
        """
        if self._index is None:
            return None
        spellings = (_normal(answer), _closed_up(_normal(answer)))
        values = [values_of(text) for text in dict.fromkeys(spellings)]
        if not any(values):
            return None
        return any(all(self._has(value) for value in one) for one in values if one)

    def nearest(self, answer: str) -> str | None:
        """The passage that the answer may have been meant to be, where its values do not occur in the text.

        That is the one passage nearest to the answer (:func:`kvmm.models.near_passage.near_passage`), or else to its
        only number that does not occur. For a name only what reads as one is proposed.

        Returns:
            None where :meth:`supports` is not False, or nothing is near.
        """
        if self.supports(answer) is not False:
            return None
        is_name = _reads_as_name(_pieces(answer))
        near = near_passage(answer, self._texts, lambda text: not is_name or _reads_as_name(_pieces(text)))
        if near is not None or is_name:
            return near
        missing = [piece for piece in dict.fromkeys(answer.split()) if self.supports(piece) is False]
        missing = [piece for piece in missing if any(c.isdecimal() for c in piece)]
        return near_passage(missing[0], self._texts) if len(missing) == 1 else None

    def _has(self, value: Sequence[str]) -> bool:
        words, run = self._index
        if len(value) == 1:
            return value[0] in words
        return f" {' '.join(value)} " in run or "".join(value) in words  # a word hyphenated at a line's end is one

    @cached_property
    def _index(self) -> tuple[frozenset[str], str] | None:
        """All tokens, and the tokens of each page in order between single spaces."""
        pages = [_normal(text) for text in self._texts]
        if sum(map(len, pages)) > MAX_CHARACTERS:  # one character may stand for eighteen
            return None
        lines = [tokens_of(text) for page in pages for text in dict.fromkeys((page, _closed_up(page)))]
        return frozenset(token for line in lines for token in line), "".join(f" {' '.join(line)} \n" for line in lines)


def values_of(answer: str) -> list[tuple[str, ...]]:
    """The numbers of an answer, and all words of one that reads as a name: tokens of each, without repetitions."""
    pieces = [(piece, tuple(tokens_of(piece))) for piece in answer.split()]
    pieces = [(piece, tokens) for piece, tokens in pieces if tokens]
    if not _reads_as_name([piece for piece, _ in pieces]):
        pieces = [(piece, tokens) for piece, tokens in pieces if any(token[0].isdecimal() for token in tokens)]
    return list(dict.fromkeys(tokens for _, tokens in pieces))[:MAX_VALUES]


def _pieces(text: str) -> list[str]:
    """The words of a text that have letters or digits."""
    return [piece for piece in text.split() if tokens_of(piece)]


def tokens_of(text: str) -> list[str]:
    """Words in lower case, and numbers without separators of thousands and with a decimal point."""
    found: list[str] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        found += _numbers(token) if token[0].isdecimal() else [token.casefold()]
    return found


def _reads_as_name(pieces: Sequence[str]) -> bool:
    """Whether words are those of a name: each begins with a capital letter, or is a number or a particle."""
    if not 0 < len(pieces) <= MAX_NAME_WORDS or " ".join(pieces).casefold().strip(".!") in _NO_NAMES:
        return False
    first = [next(c for c in piece if c.isalnum()) for piece in pieces]
    capital = [c.isupper() or c.istitle() for c in first]
    other = [c.isdecimal() or piece.casefold() in _IN_NAMES for c, piece in zip(first, pieces, strict=True)]
    return any(capital) and all(a or b for a, b in zip(capital, other, strict=True))


def _numbers(text: str) -> list[str]:
    """ "1.234,50" as ["1234.5"]; "14.03.2026", which is no number, as its three."""
    *head, last = _SEPARATOR.split(text)
    if not head:
        return [_plain(text)]
    signs = _SEPARATOR.findall(text)
    thousands = 0 < len(head[0]) <= 3 and head[0] != "0" and all(len(part) == 3 for part in head[1:])
    if thousands and len(last) == 3 and len(set(signs)) == 1:
        return ["".join((*head, last))]
    if len(head) == 1 or (thousands and len(set(signs[:-1])) == 1 and signs[-1] != signs[0]):
        fraction = last.rstrip("0")
        return [_plain("".join(head)) + (f".{fraction}" if fraction else "")]
    return [_plain(part) for part in (*head, last)]


def _plain(digits: str) -> str:
    """ "05" of a date or a time as "5"; longer numbers may be codes, whose zeros count."""
    return digits.lstrip("0") or "0" if len(digits) <= 2 else digits


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _closed_up(text: str) -> str:
    return _SPACED.sub(lambda match: _SPACE.sub("", match[0]), text)


__all__ = ["MAX_CHARACTERS", "MAX_VALUES", "TextLayer", "tokens_of", "values_of"]
