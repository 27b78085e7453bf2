"""An answer's text, piece by piece as its tokens come, up to a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvmm.models.sampling import cut_at_stop, held_back

_UNFINISHED = "\ufffd"  # what a tokenizer shows of a character whose last bytes are still to come


class TextStream:
    """Turns tokens into text; special tokens are left out.

    Args:
        tokenizer: of the model.
        stop: texts that end the answer and are not part of it. What may be the beginning of one is held back.

    Attributes:
        text: all of the answer so far, what is held back included.
        shown: how many characters of it were returned.
        stopped: whether a stop text came.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()):
        self._tokenizer, self._stop = tokenizer, stop
        self._tokens: list[int] = []
        self._begin = self._end = 0  # tokens whose text is known, and from which on the next ones are decoded
        self.shown = 0
        self.text = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that can be shown since the last call, with one more token."""
        self._tokens.append(token)
        known = self._decode(self._tokens[self._begin : self._end])
        text = self._decode(self._tokens[self._begin :])
        if text.endswith(_UNFINISHED) or len(text) <= len(known):
            return ""
        self._begin, self._end = self._end, len(self._tokens)
        return self._grow(text[len(known) :])

    def finish(self) -> str:
        """What was held back."""
        rest = self._decode(self._tokens[self._begin :])[len(self._decode(self._tokens[self._begin : self._end])) :]
        self._begin = self._end = len(self._tokens)
        shown = self._grow(rest) if rest and not self.stopped else ""
        shown += self.text[self.shown :]
        self.shown = len(self.text)
        return shown

    def _grow(self, text: str) -> str:
        if self.stopped:
            return ""
        before = len(self.text)
        self.text, self.stopped = cut_at_stop(self.text + text, self._stop, before)
        end = len(self.text) - (0 if self.stopped else held_back(self.text, self._stop))
        shown = self.text[self.shown : end]
        self.shown = max(self.shown, end)
        return shown

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


__all__ = ["TextStream"]
