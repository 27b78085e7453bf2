"""Mark the words in which two answers to one question differ."""

from __future__ import annotations

import difflib
import re

MARK = ('<mark class="differs">', "</mark>")


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


__all__ = ["mark_words"]
