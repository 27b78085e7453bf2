"""One visitor: their conversations, the one that is open, and what they are waiting for.

Nothing here knows Gradio, so the flow can be tested without a browser. A session lives in the server's memory only, is
never shared, and drops its caches when it is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from kvmm.analysis import NormReport, record_norms
from kvmm.errors import KVMMError
from kvmm.models.conversation import Conversation, Progress, model_lock
from kvmm.ui.models import Models
from kvmm.ui.settings import Settings
from kvmm.ui.talk import Step, Talk, Turn

MAX_TALKS = 12  # conversations a visitor may keep; the oldest one goes first

T = TypeVar("T")


class Session:
    """A visitor's conversations.

    Args:
        models: what the app offers; shared by all sessions.
        options: ``max_new_tokens``, ``graph`` and the limits of media, as in :class:`Talk`.
    """

    def __init__(self, models: Models, **options: Any) -> None:
        self.models, self.options = models, options
        self.talks: list[Talk] = [Talk(models, **options)]
        self.talk = self.talks[0]
        self.turn: Turn | None = None  # asked and not yet begun
        self.stop = threading.Event()
        self.running = False
        self.epoch = 0  # counts changes of the open conversation: an answer begun before must not be shown after

    # -- what the tabs analyse ---------------------------------------------------------------------------------------

    @property
    def conversation(self) -> Conversation | None:
        """The open conversation's quantised side, once there is one."""
        return self.talk.conversation

    @property
    def chats(self) -> dict[str, list[dict[str, Any]]]:
        """What the open conversation shows, by side."""
        return self.talk.chats

    @property
    def last(self) -> Progress | None:
        """The last answer of the open conversation's quantised side."""
        return self.talk.last.get("kvmm")

    @property
    def model(self) -> Any:
        """The model of the open conversation; before the first question the app's default."""
        return self.models.get()[0] if self.conversation is None else self.conversation.model

    @property
    def processor(self) -> Any:
        """The processor of ``model``."""
        return self.models.get()[1] if self.conversation is None else self.conversation.processor

    def prompt_inputs(self) -> dict[str, Any]:
        """Everything said and shown in the open conversation as the arguments of one forward pass of ``model``.

        See :meth:`Conversation.prompt_inputs`. Hold ``model_lock(session.model)`` around that pass.

        Raises:
            KVMMError: nothing has been answered yet.
        """
        if self.conversation is None:
            raise KVMMError("There is no prompt yet: ask a question first.")
        return self.conversation.prompt_inputs()

    def report(self, name: str, make: Callable[[], T]) -> T:
        """The analysis ``name`` of the prompt as it is now: made once, kept until the next answer."""
        reports = self.talk.reports
        if name not in reports:
            reports[name] = make()
        return reports[name]

    @property
    def norms(self) -> NormReport | None:
        """Token norms of the prompt as it is now, if they have been measured."""
        return self.talk.reports.get("norms")

    def measure_norms(self) -> NormReport:
        """Token norms of everything said and shown so far, kept until the next answer.

        Raises:
            KVMMError: nothing has been answered yet.
        """

        def measure() -> NormReport:
            inputs = self.prompt_inputs()
            with model_lock(self.model):
                tokenizer = getattr(self.processor, "tokenizer", self.processor)
                return record_norms(self.model, inputs, tokenizer=tokenizer, attention=True)

        return self.report("norms", measure)

    # -- conversations -----------------------------------------------------------------------------------------------

    def ask(self, turn: Turn, settings: Settings) -> Iterator[Step]:
        """Answer in the open conversation; see :meth:`Talk.ask`."""
        yield from self.talk.ask(turn, settings, stop=self.stop)

    def reset(self) -> None:
        """Open a new conversation; an answer in progress stops. The one before stays in the list."""
        if self.talk.is_empty:
            self.open(self.talks.index(self.talk))
        else:
            self._add(Talk(self.models, **self.options))

    def fork(self) -> None:
        """Open a branch of the open conversation, which stays in the list as it is.

        Raises:
            KVMMError: nothing has been answered yet, or an answer is being written.
        """
        self._check_idle("fork")
        self._add(self.talk.fork())

    def save(self, path: str | Path) -> None:
        """Write the open conversation to a file; see :meth:`Talk.save`."""
        self._check_idle("save")
        self.talk.save(path)

    def load(self, path: str | Path, model: str | None) -> Settings:
        """Open a saved conversation; returns the settings it goes on with. See :meth:`Talk.load`."""
        self._check_idle("load")
        talk, settings = Talk.load(path, self.models, model, **self.options)
        self._add(talk)
        return settings

    def _check_idle(self, what: str) -> None:
        if self.running or self.turn is not None:
            raise KVMMError(f"Wait for the answer, or stop it, before you {what} a conversation.")

    def _add(self, talk: Talk) -> None:
        self.talks = [*[other for other in self.talks if not other.is_empty][1 - MAX_TALKS :], talk]
        self.open(len(self.talks) - 1)

    def open(self, index: int) -> None:
        """Go to another conversation of the list; an answer in progress stops."""
        self.stop.set()
        self.stop = threading.Event()
        self.epoch += 1
        self.turn, self.running = None, False
        self.talk = self.talks[index]

    def close(self) -> None:
        """Forget everything; an answer in progress stops."""
        self.talks = [Talk(self.models, **self.options)]
        self.open(0)


__all__ = ["MAX_TALKS", "Session", "Step", "Turn"]
