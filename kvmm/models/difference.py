"""Two answers to one question: the first token, and the first word, in which they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from kvmm.models.progress import Progress


@dataclass(frozen=True)
class Difference:
    """Where two answers part: ``index`` of the first differing token (from 1), None if they are identical.

    ``tokens`` is how many full precision generated, the one that ends the answer included; ``full`` and ``kvmm`` are
    the texts of the differing tokens, empty where an answer ends; ``word`` is the first word (from 1) that differs,
    None if all words are the same.
    """

    tokens: int
    index: int | None
    full: str = ""
    kvmm: str = ""
    word: int | None = None

    @property
    def identical(self) -> bool:
        """Whether both answers are the same tokens."""
        return self.index is None

    @property
    def verdict(self) -> str:
        """One line for people."""
        if self.identical:
            return "Same answer as full precision"
        if self.word is None:
            return f"Same words as full precision, other tokens from token {self.index}"
        return f"Differs from full precision at word {self.word}"

    def to_dict(self) -> dict[str, Any]:
        """``identical``, and ``first_difference`` (None, or ``token``, ``word``, ``full_precision``, ``kvmm``)."""
        parted = {"token": self.index, "word": self.word, "full_precision": self.full, "kvmm": self.kvmm}
        return {"identical": self.identical, "first_difference": None if self.identical else parted}


def first_difference(full: Sequence[int], kvmm: Sequence[int], tokenizer: Any) -> Difference:
    """Compare two answers token by token."""
    for i, pair in enumerate(zip_longest(full, kvmm)):
        if pair[0] != pair[1]:
            texts = (tokenizer.decode(list(ids), skip_special_tokens=True) for ids in (full, kvmm))
            word = first_different_word(*texts)
            return Difference(len(full), i + 1, *(_token(token, tokenizer) for token in pair), word)
    return Difference(len(full), None)


def first_different_word(full: str, kvmm: str) -> int | None:
    """Number of the first word that differs, from 1; None if there is none. White space does not count."""
    pairs = enumerate(zip_longest(full.split(), kvmm.split()), start=1)
    return next((number for number, (one, other) in pairs if one != other), None)


def difference_of(full: Progress, kvmm: Progress, processor: Any) -> Difference:
    """:func:`first_difference` of two finished answers."""
    return first_difference(full.token_ids, kvmm.token_ids, getattr(processor, "tokenizer", processor))


def _token(token: int | None, tokenizer: Any) -> str:
    """The token's text; nothing for the end of an answer."""
    return "" if token is None or token in tokenizer.all_special_ids else tokenizer.decode([token])


__all__ = ["Difference", "difference_of", "first_difference", "first_different_word"]
