"""One visitor: their conversation, the full-precision twin of it, and what was shown.

Nothing here knows Gradio, so the flow can be tested without a browser. A session lives in the server's memory only, is
never shared, and drops its caches when it is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvmm.analysis import NormReport, record_norms
from kvmm.errors import KVMMError
from kvmm.media import Media, load_media
from kvmm.models.conversation import DYNAMIC, Conversation, Progress, model_lock


@dataclass(frozen=True)
class Difference:
    """Where two answers part: ``index`` of the first differing word (from 1), ``None`` if they are identical."""

    words: int
    index: int | None
    full: str = ""
    kvmm: str = ""


def first_difference(full: str, kvmm: str) -> Difference:
    """Compare two answers word by word; white space does not count."""
    left, right = full.split(), kvmm.split()
    for i in range(max(len(left), len(right))):
        a, b = (words[i] if i < len(words) else "" for words in (left, right))
        if a != b:
            return Difference(len(left), i + 1, a, b)
    return Difference(len(left), None)


@dataclass(frozen=True)
class Turn:
    """What a visitor sent: text and the paths of the uploaded files."""

    question: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One moment of an answer: which side speaks and how far it is. ``reread``: earlier media were read again first."""

    side: str  # "full" or "kvmm"
    progress: Progress
    reread: bool = False


class Session:
    """A visitor's conversations with one model.

    Args:
        model, processor: as :func:`kvmm.load_model` returns them; shared by all sessions.
        max_new_tokens: length limit of an answer.
        graph: as in :class:`Conversation`.
        media_options: keyword arguments of :func:`kvmm.media.load_media`, such as ``max_pages``.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        *,
        max_new_tokens: int = 256,
        graph: bool | str | None = None,
        **media_options: Any,
    ) -> None:
        self.model, self.processor = model, processor
        self.max_new_tokens = max_new_tokens
        self.graph = graph
        self.media_options = media_options
        self.chats: dict[str, list[dict[str, Any]]] = {"full": [], "kvmm": []}
        self.turn: Turn | None = None
        self.stop = threading.Event()
        self.running = False
        self.last: Progress | None = None
        self.norms: NormReport | None = None  # of the last prompt, made on demand
        self._conversations: dict[str, Conversation] = {}
        self._policies: dict[str, str] = {}
        self._turns: dict[str, int] = {}
        self._media: list[Media] = []
        self._answered = 0
        self.epoch = 0  # counts resets: an answer begun before a reset must not write after it

    @property
    def conversation(self) -> Conversation | None:
        """The conversation with the quantised cache, once there is one."""
        return self._conversations.get("kvmm")

    def reset(self) -> None:
        """Forget everything that was said and shown; an answer in progress stops."""
        self.stop.set()
        self.stop = threading.Event()
        self.epoch += 1
        self.chats = {"full": [], "kvmm": []}
        self.turn = self.last = self.norms = None
        self.running = False
        self._conversations.clear()
        self._policies.clear()
        self._turns.clear()
        self._media = []
        self._answered = 0

    close = reset

    def measure_norms(self) -> NormReport:
        """Norms of everything said and shown so far, kept until the next answer.

        Raises:
            KVMMError: nothing has been answered yet.
        """
        if self.conversation is None:
            raise KVMMError("There is no prompt yet: ask a question first.")
        if self.norms is None:
            inputs = self.conversation.prompt_inputs()
            tokenizer = getattr(self.processor, "tokenizer", self.processor)
            with model_lock(self.model):
                self.norms = record_norms(self.model, inputs, tokenizer=tokenizer)
        return self.norms

    def _speaker(self, side: str, policy: str) -> tuple[Conversation, bool]:
        """The conversation of ``side`` and whether it is new and therefore has earlier media to read again."""
        in_step = self._policies.get(side) == policy and self._turns.get(side) == self._answered
        if not in_step:
            self._conversations[side] = Conversation(self.model, self.processor, policy=policy, graph=self.graph)
            self._policies[side] = policy
        return self._conversations[side], not in_step

    def ask(self, turn: Turn, policy: str, *, compare: bool = False) -> Iterator[Step]:
        """Answer ``turn`` with ``policy``, after full precision when ``compare`` is set.

        A side that has not followed the conversation (another policy, comparison just switched on) starts anew with all
        media seen so far, so the page at hand stays at hand. Nothing changes if a step raises, except that a side may
        have to read again.

        Raises:
            KVMMError: a file cannot be read, or the prompt does not fit.
        """
        if not turn.question and not turn.files:
            raise KVMMError("type a question, or attach a recording that asks one")
        stop, epoch = self.stop, self.epoch
        new = [item for path in turn.files for item in load_media(path, **self.media_options)]
        for side in ("full", "kvmm") if compare else ("kvmm",):
            talk, fresh = self._speaker(side, DYNAMIC if side == "full" else policy)
            media: Sequence[Media] = [*self._media, *new] if fresh else new
            reread = fresh and bool(self._media)
            try:
                for progress in talk.ask(turn.question, media, max_new_tokens=self.max_new_tokens, stop=stop):
                    yield Step(side, progress, reread)
            except BaseException:
                if fresh:  # its history is empty: the next question has to bring the media again
                    self._policies.pop(side, None)
                raise
            if self.epoch != epoch:
                return
            self._turns[side] = self._answered + 1
            if side == "kvmm":
                self.last = progress
        self._media.extend(new)
        self._answered += 1
        self.norms = None
