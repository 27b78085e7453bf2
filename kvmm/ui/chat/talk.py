"""One conversation as a visitor sees it: every question with the messages after it, the media, both caches.

The quantised side and its full-precision twin are conversations of their own. A side that has not followed (another
policy or model, comparison just switched on) takes over all that was said and reads it again in one prefill.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kvmm import decoding
from kvmm.cache import MemoryReport
from kvmm.errors import KVMMError
from kvmm.media import Media, load_media
from kvmm.models.caches import DYNAMIC
from kvmm.models.conversation import Conversation
from kvmm.models.difference import Difference, difference_of
from kvmm.models.generation import Stopped, unless_stopped
from kvmm.models.progress import Progress
from kvmm.models.warming import is_warm, warm_up
from kvmm.ui.models import Models
from kvmm.ui.parts.bubbles import user_messages
from kvmm.ui.parts.logprobs import with_token_texts
from kvmm.ui.settings import Settings

SIDES = ("full", "kvmm")
CHANGED = "Another policy or model reads them from the start."
FREED = "Their cache had made room for others."
JOINED = "Full precision was not asked about them before."
TITLE_LENGTH = 40
MAX_GROWTH = 1024  # points of the figure that are kept
LOADING, WARMING = "Loading the model", "Warming up both caches"
_WAITING = Progress("", 0, 0.0, None, 0.0, None, done=False, stopped=False)
_STOPPED = Progress("", 0, 0.0, None, 0.0, None, done=True, stopped=True)


@dataclass(frozen=True)
class UserMessage:
    """A visitor's message: text and the paths of the uploaded files; ``media`` once the files have been read."""

    question: str
    files: tuple[str, ...] = ()
    media: tuple[Media, ...] | None = field(default=None, compare=False)


@dataclass
class Exchange:
    """A question, and the messages after it on either side.

    Attributes:
        message: the question and its files.
        tails: messages of the chat by side: notes, the answer, an error.
        answered: the models know of it; False for errors and stopped answers, which are shown all the same.
        stopped: the visitor stopped the answer.
        as_links: a file may not be what it says, so none is displayed.
        media: what its files held.
    """

    message: UserMessage
    tails: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {side: [] for side in SIDES})
    answered: bool = False
    stopped: bool = False
    as_links: bool = False
    media: tuple[Media, ...] = ()
    _sent: tuple[bool, list[dict[str, Any]]] | None = field(default=None, repr=False, compare=False)

    def messages(self, side: str) -> list[dict[str, Any]]:
        """The messages of one side's chat. Those of the question are made once, since every frame needs them."""
        if self._sent is None or self._sent[0] != self.as_links:
            sent = user_messages(self.message.question, self.message.files, links=self.as_links)
            self._sent = self.as_links, sent
        return [*self._sent[1], *self.tails[side]]

    def again(self, question: str | None = None) -> UserMessage:
        """The same files with another question; media that were read stay the same objects, which caches match."""
        question = self.message.question if question is None else question
        return UserMessage(question, self.message.files, self.media or None)


@dataclass(frozen=True)
class AnswerUpdate:
    """The progress of an answer: the side that is answering, and its state.

    ``reread``: why earlier media were read again; ``waits_for``: what is done before either side reads.
    """

    side: str  # "full" or "kvmm"
    progress: Progress
    reread: str = ""
    waits_for: str = ""


class Talk:
    """A conversation with its full-precision twin.

    Args:
        models: what the app offers.
        options: ``max_new_tokens``, the most that an answer may have, ``graph`` as in :class:`Conversation`, ``now``
            for the time in seconds since the epoch, ``owner`` as in :func:`kvmm.decoding.owned_by`; the rest goes to
            :func:`kvmm.media.load_media`.
    """

    def __init__(
        self,
        models: Models,
        *,
        max_new_tokens: int = 256,
        graph: Any = None,
        now: Callable[[], float] = time.time,
        owner: str | None = None,
        **media_options: Any,
    ) -> None:
        self.models, self.max_new_tokens, self.graph, self.media_options = models, max_new_tokens, graph, media_options
        self.now, self.owner = now, owner
        self.id = uuid.uuid4().hex  # by which pages name it: its place in the list changes
        self.title = ""
        self.renamed = False
        self.exchanges: list[Exchange] = []
        self.answer: Any = None  # the answer that is waited for or written, see kvmm.ui.chat.streaming
        self.last: dict[str, Progress] = {}  # by side, of the last question
        self.answered_by = ""  # the model and policy of ``last``
        self.verdict: Difference | None = None  # of the last question, when both sides answered
        self.same_start = True  # whether both sides of the last question had as much to read
        self.growth: list[tuple[int, MemoryReport]] = []  # bytes of the quantised cache by tokens generated ...
        self._growth_of = ""  # ... of the conversation's last model: bytes of two are no curve
        self.reports: dict[str, Any] = {}  # analyses of the prompt as it is now
        self.used = self.now()
        self.settings: Settings | None = None  # those that the quantised side was made for
        self._conversations: dict[str, Conversation] = {}
        self._keys: dict[str, tuple[Any, ...]] = {}

    @property
    def conversation(self) -> Conversation | None:
        """The conversation with the quantised cache, once there is one."""
        return self._conversations.get("kvmm")

    @property
    def conversations(self) -> list[Conversation]:
        """The conversations of the sides that have one."""
        return list(self._conversations.values())

    @property
    def chats(self) -> dict[str, list[dict[str, Any]]]:
        """All messages, by side."""
        return {side: [message for each in self.exchanges for message in each.messages(side)] for side in SIDES}

    @property
    def media(self) -> list[Media]:
        """Everything that the conversation holds."""
        return [item for each in self.exchanges if each.answered for item in each.media]

    def media_to_read_again(self, settings: Settings) -> list[Media]:
        """Earlier media that the next question reads again, because a side has no cache of them."""
        if self.models.remote:  # whose files are sent as they are
            return []
        for side in SIDES if settings.compare else ("kvmm",):
            conversation = self._conversations.get(side)
            if (
                conversation is None
                or conversation.cache is None
                or self._keys[side] != settings.cache_key(side, self.models.default)
            ):
                return self.media
        return []

    @property
    def files(self) -> list[str]:
        """Paths of all files that were sent."""
        return [path for each in self.exchanges for path in each.message.files]

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been asked."""
        return not self.exchanges

    @property
    def is_busy(self) -> bool:
        """Whether an answer is waited for or written."""
        return self.answer is not None and not self.answer.done

    @property
    def answered(self) -> int:
        """How many questions the models know of."""
        return sum(each.answered for each in self.exchanges)

    def begin(self, message: UserMessage) -> Exchange:
        """Show a question; :meth:`ask` answers it."""
        exchange = Exchange(message)
        self.exchanges.append(exchange)
        self.title = self.title or title_of(message)
        return exchange

    def ask(
        self, message: UserMessage, settings: Settings, *, stop: threading.Event, exchange: Exchange | None = None
    ) -> Iterator[AnswerUpdate]:
        """Answer ``message``, in full precision first when ``settings.compare`` is set.

        Nothing but what ``exchange`` (made by :meth:`begin` unless given) shows changes if a step raises or the answer
        is stopped, except that a side may have to read again.

        Raises:
            KVMMError: a file cannot be read, the settings are wrong, or the prompt does not fit.
        """
        if not message.question and not message.files:
            raise KVMMError("Type a question, or attach a recording that asks one.")
        policy, sampling = settings.kv_policy(), settings.sampling()
        limits = {"max_new_tokens": settings.answer_tokens(self.max_new_tokens), "stop": stop}
        exchange = exchange or self.begin(message)
        try:
            new = message.media
            if new is None:
                try:
                    new = unless_stopped(lambda: self.load(message, stop), stop)
                except KVMMError:
                    if stop.is_set():
                        raise Stopped from None
                    raise
            exchange.media = tuple(new)
            if not self.models.is_loaded(settings.model or self.models.default):
                yield AnswerUpdate("kvmm", _WAITING, waits_for=LOADING)
                unless_stopped(lambda: self.models.get(settings.model), stop)
            sides = {"full": DYNAMIC, "kvmm": policy} if settings.compare else {"kvmm": policy}
            speakers = {side: self._speaker(side, settings, kept_as, stop) for side, kept_as in sides.items()}
            talks, media = [talk for talk, _ in speakers.values()], [*self.media, *new]
            # a side that reads everything again is not timed beside one that reads the question only
            self.same_start = len({talk.cache is None for talk in talks}) == 1
            if settings.compare and not is_warm(talks, media):
                yield AnswerUpdate("kvmm", _WAITING, waits_for=WARMING)
                with contextlib.suppress(KVMMError):  # such as a page that does not fit; the answer reports it
                    unless_stopped(lambda: warm_up(talks, media, stop), stop)
        except Stopped:
            exchange.stopped = True
            yield AnswerUpdate("kvmm", _STOPPED)
            return
        finals: dict[str, Progress] = {}
        before = list(self.growth), self._growth_of
        if self._growth_of != (model := settings.model or self.models.default):
            self.growth, self._growth_of = [], model
        said = self.growth[-1][0] if self.growth else 0
        try:
            for side, (talk, reread) in speakers.items():
                asked = talk.ask(message.question, new, sampling=sampling, **limits)
                with contextlib.closing(asked):
                    for progress in asked:
                        if side == "kvmm":
                            self._note_growth(said, progress)
                        yield AnswerUpdate(side, progress, reread)
                self.used = self.now()
                finals[side] = progress
                if progress.stopped:
                    self._take_back(*before)
                    exchange.stopped = True
                    return
        except BaseException:
            self._take_back(*before)
            raise
        self.verdict = None
        if settings.compare:
            self.verdict = difference_of(finals["full"], finals["kvmm"], self.conversation.processor)
        # as text: the next question may be to another model, whose tokens are others
        self.last = {side: with_token_texts(one, speakers[side][0].processor) for side, one in finals.items()}
        self.answered_by = settings.answered_by(self.models.default, bool(self.models.remote))
        self.reports.clear()
        exchange.answered = True

    def fork(self) -> Talk:
        """A branch that goes on from here on its own.

        Packed pages are shared, so it costs next to nothing. Where they cannot be, because a CUDA graph has room in
        them, they are copied. The full-precision cache is not: that side reads again when it is compared.

        Raises:
            KVMMError: nothing has been answered yet, an answer is being written, or there is no memory for a copy.
        """
        if self.conversation is None:
            raise KVMMError("There is nothing to fork yet: ask a question first.")
        twin = self._twin({"kvmm": "copy", "full": "share"})
        twin.title = f"{self.title} (fork)"
        return twin

    def before(self, index: int) -> Talk:
        """A branch without the question ``index`` and what came after it, to ask something else there.

        A cache that cannot be shared goes with the branch; here the next question reads everything again.

        Raises:
            KVMMError: an answer is being written.
        """
        twin = self._twin(dict.fromkeys(SIDES, "move"))
        twin.exchanges = twin.exchanges[:index]
        for conversation in twin.conversations:
            conversation.truncate(twin.answered)
        twin.last, twin.verdict, twin.growth, twin.reports = {}, None, [], {}
        if not index and not self.renamed:
            twin.title = ""
        return twin

    def close(self) -> None:
        """Stop the answer and let the caches go."""
        if self.answer is not None:
            self.answer.cancel()
        self._conversations, self._keys, self.reports = {}, {}, {}

    def _twin(self, caches: dict[str, Literal["copy", "share", "move"]]) -> Talk:
        """A copy of this conversation; ``caches``: what becomes of each side's, as in :meth:`Conversation.fork`."""
        if self.is_busy:
            raise KVMMError("Wait for the answer, or stop it: then the conversation can branch.")
        twin = copy.copy(self)
        twin.id = uuid.uuid4().hex
        twin.exchanges = [copy.copy(each) for each in self.exchanges]
        twin.growth, twin.reports, twin.answer = list(self.growth), dict(self.reports), None
        twin._conversations = {side: talk.fork(caches[side]) for side, talk in self._conversations.items()}
        twin._keys = dict(self._keys)
        twin.used = self.now()
        return twin

    def load(self, message: UserMessage, stop: threading.Event) -> list[Media]:
        """Read the files of a question; see :func:`kvmm.media.load_media`.

        Raises:
            KVMMError: one of them is gone or cannot be used; where files lie on the server is not said.
        """
        for path in map(Path, message.files):
            if not path.is_file():
                raise KVMMError(f"{path.name} is gone: upload it again.")
        options = {"stop": stop, "keep": True, **self.media_options}
        with decoding.owned_by(self.owner):
            return [item for path in message.files for item in load_media(path, **options)]

    def _note_growth(self, said: int, progress: Progress) -> None:
        if progress.memory is not None and (not self.growth or progress.memory is not self.growth[-1][1]):
            self.growth.append((said + progress.tokens, progress.memory))
            if len(self.growth) > MAX_GROWTH:
                del self.growth[:-1:2]

    def _take_back(self, growth: list[tuple[int, MemoryReport]], growth_of: str) -> None:
        """Remove the last, unanswered question from both sides; full precision may have answered it already."""
        self.growth, self._growth_of = growth, growth_of
        for conversation in self.conversations:
            if len(conversation.messages) > 2 * self.answered:
                conversation.truncate(self.answered)

    def _speaker(self, side: str, settings: Settings, policy: Any, stop: threading.Event) -> tuple[Conversation, str]:
        """The conversation of ``side``, which knows all that was said, and why it has to read that again, if it has.

        Raises ``Stopped`` once ``stop`` is set while earlier media are prepared for another model.
        """
        key = settings.cache_key(side, self.models.default)
        before = self._conversations.get(side)
        if before is not None and self._keys.get(side) == key:
            conversation = before
            reason = FREED
        else:
            norms = side == "kvmm"
            conversation = self.models.converse(settings.model, policy, graph=self.graph, key_norms=norms)
            if before is not None:
                conversation.adopt(before, stop)
            reason = JOINED if side == "full" and before is None else CHANGED
        conversation.forget_stopped()  # what was stopped is asked anew with all its files, or not
        if self.conversation is not None:
            conversation.adopt(self.conversation, stop)  # what this side was not asked
        self._conversations[side], self._keys[side] = conversation, key
        if side == "kvmm":
            self.settings = settings
        return conversation, reason if conversation.reads_again else ""


def title_of(message: UserMessage) -> str:
    """A line for the list of conversations: the question, else the first file's name."""
    text = " ".join(message.question.split()) or message.files[0].rpartition("/")[2]
    return text if len(text) <= TITLE_LENGTH else f"{text[: TITLE_LENGTH - 1]}…"


def shown_files(exchanges: Sequence[Exchange]) -> list[str]:
    """Paths of the files of some exchanges, each once."""
    return list(dict.fromkeys(path for each in exchanges for path in each.message.files))


__all__ = ["SIDES", "AnswerUpdate", "Exchange", "Talk", "UserMessage", "shown_files", "title_of"]
