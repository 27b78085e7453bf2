"""One page of one visitor: the conversations, which of them is open, and the answers that are due.

Nothing here knows Gradio, so the flow can be tested without a browser. Conversations live in the server's memory only.
The pages (tabs) of one browser share the list of conversations; each has its own open one. Another visitor shares
nothing.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kvmm.analysis import NormReport, record_norms
from kvmm.errors import KVMMError
from kvmm.models.conversation import Conversation, model_lock
from kvmm.models.progress import Progress
from kvmm.ui.chat.streaming import Answer
from kvmm.ui.chat.talk import AnswerUpdate, Talk, UserMessage
from kvmm.ui.chat.talk_file import load_talk, save_talk
from kvmm.ui.models import Models
from kvmm.ui.settings import Settings

MAX_TALKS = 50  # conversations a visitor may keep; the oldest one goes first
MAX_TITLE = 80
MAX_QUESTION = 100_000  # characters; every frame of an answer shows the question again
MAX_FILES = 64  # of one question
DELETED = "This conversation was deleted on another page."
LOST = "The app has forgotten this conversation, because its page was away for too long: ask again in a new one."

T = TypeVar("T")


@dataclass(eq=False)
class Desk:
    """The state that the pages of one visitor share.

    Attributes:
        talks: the conversations, the newest last.
        current: the one that was opened last, which a reloaded page shows.
        settings: of the last question, which a reloaded page goes on with.
        lock: held while a question is put into a conversation, so that two pages cannot ask in it at once.
        long_works: how many are running that belong to no conversation, such as evaluations.
        id: of the visitor, among those who have files decoded.
    """

    talks: list[Talk] = field(default_factory=list)
    current: Talk | None = None
    settings: Settings | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    long_works: int = 0
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


class Session:
    """A visitor's conversations as one page shows them.

    Args:
        models: what the app offers; shared by all sessions.
        desk: the conversations of this visitor; None for new ones.
        options: ``max_new_tokens``, ``graph`` and the limits of media, as in :class:`Talk`.
    """

    def __init__(self, models: Models, desk: Desk | None = None, **options: Any) -> None:
        self.models, self.desk = models, desk or Desk()
        self.options = {"owner": self.desk.id, **options}
        if not self.desk.talks:
            self.desk.talks.append(Talk(models, **self.options))
        current = self.desk.current
        self._talk = current if current in self.desk.talks else self.desk.talks[-1]
        self._lost = False
        self._asked: list[Answer] = []  # here, and not all done
        self.naming: str | None = None  # the conversation whose name is being typed on this page, by its id
        self.folder: Callable[[], Path] | None = None  # makes a folder that lives as long as the conversations

    @property
    def talks(self) -> list[Talk]:
        """All conversations of the visitor."""
        return self.desk.talks

    @property
    def talk(self) -> Talk:
        """The conversation that is open on this page, though another page may have deleted it: see :attr:`is_gone`."""
        return self._talk

    @property
    def is_gone(self) -> bool:
        """Whether the shown conversation was deleted on another page or forgotten; False for an empty one."""
        return self._lost or (self._talk not in self.talks and not self._talk.is_empty)

    def lose(self) -> None:
        """The page shows a conversation that the app has forgotten; until it is drawn anew nothing is asked there."""
        self._lost = True

    def leave_deleted(self) -> None:
        """Open the newest conversation where the open one is not in the list any more; the page is drawn anew."""
        self._lost = False
        if self._talk not in self.talks:
            self._show(self.talks[-1])

    @property
    def is_busy(self) -> bool:
        """Whether the open conversation waits for an answer."""
        return self.talk.is_busy

    # -- what the tabs analyse ---------------------------------------------------------------------------------------

    @property
    def conversation(self) -> Conversation | None:
        """The open conversation's quantised side, once there is one."""
        return self.talk.conversation

    @property
    def chats(self) -> dict[str, list[dict[str, Any]]]:
        """The messages of the open conversation, by side."""
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

    def begin(self, message: UserMessage, settings: Settings) -> Answer:
        """Show a question in the open conversation; the answer that is returned has not been started.

        Raises:
            KVMMError: the question before is still being answered, or there is nothing to ask, or too much.
        """
        check_size(message.question, message.files)
        if not message.question and not message.files:
            raise KVMMError("Type a question, or attach a recording that asks one.")
        with self.desk.lock:
            talk = self._there()
            if talk not in self.talks:
                self.talks.append(talk)  # another page has dropped the empty conversation that is open here
            if talk.is_busy:
                raise KVMMError("The last question is still being answered: wait, or press stop.")
            self.desk.settings = settings
            answer = talk.answer = Answer(talk, message, settings)
            self._asked = [*(each for each in self._asked if not each.done), answer]
            return answer

    def ask(self, message: UserMessage, settings: Settings) -> Iterator[AnswerUpdate]:
        """Answer in the open conversation, in this thread; see :meth:`Talk.ask`."""
        answer = self.begin(message, settings)
        yield from answer.updates()

    def stop(self) -> None:
        """Stop the answer of the open conversation, whether it is being written or waits for its turn."""
        if self.talk.answer is not None:
            self.talk.answer.cancel()

    def go_on_alone(self) -> None:
        """Answer the waiting questions of this page although the page was closed."""
        for answer in self._asked:
            answer.start(alone=True)
        self._asked.clear()

    def reset(self) -> None:
        """Open a new conversation. The one before stays in the list, and an answer there goes on."""
        if not self.talk.is_empty:
            self._add(Talk(self.models, **self.options))

    def fork(self) -> None:
        """Open a branch of the open conversation, which stays in the list as it is.

        Raises:
            KVMMError: nothing has been answered yet, or an answer is being written.
        """
        self._check_idle("fork")
        self._add(self.talk.fork())

    def ask_again(self, index: int, question: str | None, settings: Settings) -> Answer:
        """Ask the question ``index`` of the open conversation once more, with its files; what came after it goes.

        A conversation that loses an answer by this stays in the list as it was; the branch is opened.

        Args:
            index: of the exchange.
            question: the edited text; None leaves it as it is.
            settings: those of now.

        Raises:
            KVMMError: an answer is being written, there is no such question, nothing is left to ask, or too much.
        """
        check_size(question or "", ())
        with self.desk.lock:
            self._check_idle("change")
            talk = self.talk
            if not 0 <= index < len(talk.exchanges):
                raise KVMMError("This question is not there any more.")
            message = talk.exchanges[index].again(None if question is None else question.strip())
            if not message.question and not message.files:
                raise KVMMError("Type a question, or attach a recording that asks one.")
            branch = talk.before(index)
            if any(each.answered for each in talk.exchanges[index:]):
                talk.title = f"{talk.title} (before the edit)"
                self._add(branch)
            else:
                branch.id = talk.id  # it takes the place of the other, also on pages whose list is older
                self.talks[self.talks.index(talk)] = branch
                talk.close()
                self._show(branch)
            return self.begin(message, settings)

    def rename(self, title: str, talk_id: str | None = None) -> None:
        """Give a conversation another name in the list: the open one, or another by its :attr:`Talk.id`.

        Raises:
            KVMMError: the name is empty, or the conversation is gone.
        """
        title = " ".join(title.split())[:MAX_TITLE]
        if not title:
            raise KVMMError("Type a name for the conversation.")
        talk = self._there() if talk_id is None else self._find(talk_id)
        talk.title, talk.renamed = title, True

    def give_name(self, title: str) -> None:
        """Name the conversation that is being named, which need not be open any more.

        Raises:
            KVMMError: as :meth:`rename`; it is still being named then.
        """
        self.rename(title, self.naming)
        self.naming = None

    def delete(self) -> None:
        """Delete the open conversation: its answer is stopped and its caches go now. The one before it is opened.

        Raises:
            KVMMError: another page has deleted it already.
        """
        with self.desk.lock:
            talk = self._there()
            index = self.talks.index(talk) if talk in self.talks else len(self.talks)
            if talk in self.talks:
                self.talks.remove(talk)
            talk.close()
            self._asked = [each for each in self._asked if each.talk is not talk]
            if not self.talks:
                self.talks.append(Talk(self.models, **self.options))
            self._show(self.talks[max(index - 1, 0)])

    def save(self, path: str | Path) -> None:
        """Write the open conversation to a file; see :func:`kvmm.ui.chat.talk_file.save_talk`."""
        self._check_idle("save")
        save_talk(self.talk, path)

    def load(self, path: str | Path, model: str | None) -> Settings:
        """Open a saved conversation; returns its settings. See :func:`kvmm.ui.chat.talk_file.load_talk`."""
        talk, settings = load_talk(path, self.models, model, self.folder, **self.options)
        self._add(talk)
        self.desk.settings = settings
        return settings

    def open(self, talk_id: str) -> None:
        """Go to another conversation of the list, by its :attr:`Talk.id`; an answer in progress goes on.

        Raises:
            KVMMError: another page has deleted it.
        """
        self._show(self._find(talk_id))

    def close(self) -> None:
        """Stop answers in progress and drop all conversations."""
        for talk in self.talks:
            talk.close()
        self.desk.talks[:] = [Talk(self.models, **self.options)]
        self._show(self.desk.talks[0])

    def _find(self, talk_id: str) -> Talk:
        talk = next((talk for talk in self.talks if talk.id == talk_id), None)
        if talk is None:
            raise KVMMError(DELETED)
        return talk

    def _there(self) -> Talk:
        """The open conversation, to change it: never another one than the page shows."""
        if self.is_gone:
            raise KVMMError(LOST if self._lost else DELETED)
        return self._talk

    def _check_idle(self, what: str) -> None:
        if self._there().is_busy:
            raise KVMMError(f"Wait for the answer, or stop it, before you {what} a conversation.")

    def _add(self, talk: Talk) -> None:
        for other in self.talks[: max(len(self.talks) + 1 - MAX_TALKS, 0)]:
            other.close()
            self.talks.remove(other)
        for other in [other for other in self.talks if other.is_empty]:
            self.talks.remove(other)
        self.talks.append(talk)
        self._show(talk)

    def _show(self, talk: Talk) -> None:
        self._talk = self.desk.current = talk


def check_size(question: str, files: Sequence[object]) -> None:
    """Raise ``KVMMError`` for a question that is too long, or has too many files."""
    if len(question) > MAX_QUESTION:
        raise KVMMError(f"A question may have {MAX_QUESTION:,} characters: shorten it, or attach the text as a PDF.")
    if len(files) > MAX_FILES:
        raise KVMMError(f"A question may have {MAX_FILES} files: send fewer, or ask again with the others.")


__all__ = ["MAX_FILES", "MAX_QUESTION", "MAX_TALKS", "AnswerUpdate", "Desk", "Session", "UserMessage", "check_size"]
