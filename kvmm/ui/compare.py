"""Two answers to one question: the first token in which they part, and the words that differ."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvmm.models.conversation import Progress

MARK = ('<mark class="differs">', "</mark>")


@dataclass(frozen=True)
class Difference:
    """Where two answers part: ``index`` of the first differing token (from 1), None if they are identical.

    ``tokens`` is how many full precision generated, the one that ends the answer included; ``full`` and ``kvmm`` are
    the texts of the differing tokens, empty where an answer ends.
    """

    tokens: int
    index: int | None
    full: str = ""
    kvmm: str = ""


def first_difference(full: Sequence[int], kvmm: Sequence[int], tokenizer: Any) -> Difference:
    """Compare two answers token by token."""
    for i in range(max(len(full), len(kvmm))):
        pair = [ids[i] if i < len(ids) else None for ids in (full, kvmm)]
        if pair[0] != pair[1]:
            return Difference(len(full), i + 1, *(_token(token, tokenizer) for token in pair))
    return Difference(len(full), None)


def difference_of(full: Progress, kvmm: Progress, processor: Any) -> Difference:
    """:func:`first_difference` of two finished answers."""
    return first_difference(full.token_ids, kvmm.token_ids, getattr(processor, "tokenizer", processor))


def _token(token: int | None, tokenizer: Any) -> str:
    """The token's text; nothing for the end of an answer."""
    return "" if token is None or token in tokenizer.all_special_ids else tokenizer.decode([token])


def mark_words(full: str, kvmm: str) -> tuple[str, str]:
    """Both answers, Markdown as they are, with the words that the other one does not have in ``<mark>``.

    White space does not count. An answer with a code block stays as it is: nothing can be marked inside one.
    """
    if "```" in full or "```" in kvmm:
        return full, kvmm
    words = [list(re.finditer(r"\S+", text)) for text in (full, kvmm)]
    matcher = difflib.SequenceMatcher(None, *([word[0] for word in side] for side in words), autojunk=False)
    marked: list[set[int]] = [set(), set()]
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag != "equal":
            marked[0].update(range(a0, a1))
            marked[1].update(range(b0, b1))
    return tuple(
        _with_marks(text, [word for i, word in enumerate(side) if i in chosen])
        for text, side, chosen in zip((full, kvmm), words, marked, strict=True)
    )


def _with_marks(text: str, words: list[re.Match[str]]) -> str:
    parts, at = [], 0
    for word in words:
        # "-", "1.", "##" and "|" shape a line instead of saying something
        plain = re.fullmatch(r"[-+*#>|:]+|\d+\.", word[0]) is None
        parts += [text[at : word.start()], f"{MARK[0]}{word[0]}{MARK[1]}" if plain else word[0]]
        at = word.end()
    return "".join([*parts, text[at:]])


__all__ = ["Difference", "difference_of", "first_difference", "mark_words"]
