"""Multiple choice: which option an answer names, by letter (lmms-eval's rule) and by words (MMAU's own rule)."""

from __future__ import annotations

import re
from collections.abc import Sequence

_EDGE = (",", ".", "!", "?", ";", ":", "'")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def choice_letter(response: str, letters: Sequence[str]) -> str | None:
    """The letter that a response names, by lmms-eval's rule for MMAU and MMMU.

    "(B)" counts before "B" between spaces, and that before "B."; of several letters the one that stands last between
    spaces counts. Where there is none lmms-eval draws one at random; here it is None, so that a run can be repeated.
    """
    for mark in _EDGE:
        response = response.strip(mark)
    text = f" {response} "
    for pattern in ("({})", " {} ", "{}."):
        matching = [letter for letter in letters if pattern.format(letter) in text]
        if matching:
            return max(matching, key=lambda letter: text.rfind(f" {letter} "))
    return None


def words_match(answer: str, prediction: str, choices: Sequence[str]) -> bool:
    """MMAU's own rule (Sakshi et al. 2024): all words of the answer occur, and none that only wrong choices have."""
    wanted, given = _words(answer), _words(prediction)
    wrong = set().union(*(_words(choice) - wanted for choice in choices)) if choices else set()
    return bool(given) and wanted <= given and given.isdisjoint(wrong)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\b\w+\b", text.lower()))


def choice_correct(prediction: str, answer: str, choices: Sequence[str]) -> bool:
    """Whether a prediction names the right one of ``choices``.

    What is a choice word for word stands for it ("A woman" is not the letter A); else the letter counts, and without
    one the words.
    """
    texts = [choice.strip().lower() for choice in choices]
    written = prediction.strip().rstrip(".").lower()
    if len(written) > 1 and written in texts:
        return written == answer.strip().lower()
    letter = choice_letter(prediction, LETTERS[: len(choices)])
    if letter is None:
        return words_match(answer, prediction, choices)
    return texts[LETTERS.index(letter)] == answer.strip().lower()


__all__ = ["LETTERS", "choice_correct", "choice_letter", "words_match"]
