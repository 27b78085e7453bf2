"""One conversation as a visitor sees it: the two answers of every question, the media, and what was shown.

The quantised side and its full-precision twin are conversations of their own. A side that has not followed (another
policy or model, comparison just switched on) starts anew with all media seen so far.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kvmm.cache import MemoryReport
from kvmm.errors import KVMMError
from kvmm.media import Media, load_media
from kvmm.models.conversation import DYNAMIC, Conversation, Progress
from kvmm.models.difference import Difference, difference_of
from kvmm.models.warming import warm_up
from kvmm.ui.bubbles import NOT_ASKED, bubble, escape_markdown
from kvmm.ui.models import Models
from kvmm.ui.settings import Settings

SIDES = ("full", "kvmm")
CHANGED = "Another policy or model reads them from the start."
FREED = "Their cache had made room for others."
TITLE_LENGTH = 40
MAX_GROWTH = 1024  # points of the figure that are kept


@dataclass(frozen=True)
class Turn:
    """What a visitor sent: text and the paths of the uploaded files."""

    question: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """One moment of an answer: which side speaks and how far it is. ``reread``: why earlier media were read again."""

    side: str  # "full" or "kvmm"
    progress: Progress
    reread: str = ""


class Talk:
    """A conversation with its full-precision twin.

    Args:
        models: what the app offers.
        options: ``max_new_tokens`` of an answer, ``graph`` as in :class:`Conversation`; the rest goes to
            :func:`kvmm.media.load_media`.
    """

    def __init__(self, models: Models, *, max_new_tokens: int = 256, graph: Any = None, **media_options: Any) -> None:
        self.models, self.max_new_tokens, self.graph, self.media_options = models, max_new_tokens, graph, media_options
        self.title = ""
        self.chats: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        self.media: list[Media] = []
        self.last: dict[str, Progress] = {}  # by side, of the last question
        self.verdict: Difference | None = None  # of the last question, when both sides answered
        self.same_start = True  # whether both sides of the last question had as much to read
        self.growth: list[tuple[int, MemoryReport]] = []  # bytes of the quantised cache by tokens generated
        self.reports: dict[str, Any] = {}  # analyses of the prompt as it is now
        self.used = time.monotonic()
        self._conversations: dict[str, Conversation] = {}
        self._keys: dict[str, tuple[Any, ...]] = {}
        self._turns: dict[str, int] = {}
        self._answered = 0
        self._settings: Settings | None = None  # of the last answer

    @property
    def conversation(self) -> Conversation | None:
        """The conversation with the quantised cache, once there is one."""
        return self._conversations.get("kvmm")

    @property
    def conversations(self) -> list[Conversation]:
        """Both sides, as far as they exist."""
        return list(self._conversations.values())

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been asked."""
        return not self._conversations and not any(self.chats.values())

    def ask(self, turn: Turn, settings: Settings, *, stop: threading.Event) -> Iterator[Step]:
        """Answer ``turn``, in full precision first when ``settings.compare`` is set.

        Nothing changes if a step raises or the answer is stopped, except that a side may have to read again.

        Raises:
            KVMMError: a file cannot be read, the settings are wrong, or the prompt does not fit.
        """
        if not turn.question and not turn.files:
            raise KVMMError("Type a question, or attach a recording that asks one.")
        policy = settings.kv_policy()
        new = [item for path in turn.files for item in load_media(path, **self.media_options)]
        finals: dict[str, Progress] = {}
        said = self.growth[-1][0] if self.growth else 0
        sides = SIDES if settings.compare else ("kvmm",)
        speakers = {side: self._speaker(side, settings, DYNAMIC if side == "full" else policy) for side in sides}
        # a side that reads everything again is not timed beside one that reads the question only
        self.same_start = len({fresh or talk.cache is None for talk, fresh in speakers.values()}) == 1
        if settings.compare:
            self._warm_up([talk for talk, _ in speakers.values()], [*self.media, *new], stop)
        for side, (talk, fresh) in speakers.items():
            media: Sequence[Media] = [*self.media, *new] if fresh else new
            reread = CHANGED if fresh and self.media else ""
            if self.media and talk.messages and talk.cache is None:
                reread = FREED
            try:
                for progress in talk.ask(turn.question, media, max_new_tokens=self.max_new_tokens, stop=stop):
                    if side == "kvmm":
                        self._note_growth(said, progress)
                    yield Step(side, progress, reread)
            except BaseException:
                self._forget_growth(said)
                self._forget_unasked(speakers, finals)
                raise
            self.used = time.monotonic()
            finals[side] = progress
            self._turns[side] = self._answered + 1
        if any(progress.stopped for progress in finals.values()):
            self._forget_growth(said)
        self.verdict = None
        if settings.compare and not any(progress.stopped for progress in finals.values()):
            self.verdict = difference_of(finals["full"], finals["kvmm"], self.conversation.processor)
        self.title = self.title or _title(turn)
        self.last, self._settings = finals, settings
        self.reports.clear()
        self.media.extend(new)
        self._answered += 1

    def save(self, path: str | Path) -> None:
        """Write the quantised side to a file.

        Raises:
            KVMMError: nothing has been answered yet, the cache was dropped, or a video was shown.
        """
        if self.conversation is None or self._settings is None:
            raise KVMMError("There is nothing to save yet: ask a question first.")
        notes = {"title": self.title, "settings": asdict(self._settings), "answered": self._answered}
        self.conversation.save(path, notes)

    @classmethod
    def load(cls, path: str | Path, models: Models, model: str | None, **options: Any) -> tuple[Talk, Settings]:
        """The talk that :meth:`save` wrote with the same model, and the settings to go on with.

        Args:
            path: the file; only one that you trust.
            models, options: as for a new talk.
            model: the name under which the model is known here.

        Raises:
            KVMMError: the file is damaged, belongs to another model, or was not written by :meth:`save`.
        """
        conversation = Conversation.load(path, *models.get(model))
        try:
            notes = conversation.notes
            settings = replace(Settings(**notes["settings"]), model=model, compare=False)
            settings.kv_policy()
            talk = cls(models, **options)
            talk.title, talk._answered = str(notes["title"])[: 2 * TITLE_LENGTH], int(notes["answered"])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, KVMMError):
                raise
            raise KVMMError(f"{Path(path).name} was not saved by this app; save the conversation again.") from None
        talk.media = [item for turn in conversation._turns for item in turn.media]
        talk._settings = settings
        talk._conversations["kvmm"] = conversation
        talk._keys["kvmm"] = settings.cache_key("kvmm", models.default)
        talk._turns["kvmm"] = talk._answered
        text = _text_of(conversation.messages[-1])
        talk.last = {"kvmm": Progress(text, 0, 0.0, None, 0.0, conversation.memory(), done=True, stopped=False)}
        for message in conversation.messages:
            talk.replay(message)
        return talk, settings

    def fork(self) -> Talk:
        """A branch that goes on from here on its own. Packed pages are shared, so it costs next to nothing.

        Raises:
            KVMMError: nothing has been answered yet, or an answer is being written.
        """
        if self.conversation is None:
            raise KVMMError("There is nothing to fork yet: ask a question first.")
        twin = copy.copy(self)
        twin.title = f"{self.title} (fork)"
        twin.chats = {side: list(chat) for side, chat in self.chats.items()}
        twin.media, twin.growth, twin.reports = list(self.media), list(self.growth), dict(self.reports)
        twin._conversations = {side: talk.fork() for side, talk in self._conversations.items()}
        twin._keys, twin._turns = dict(self._keys), dict(self._turns)
        twin.used = time.monotonic()
        return twin

    def replay(self, message: dict[str, Any]) -> None:
        """Add a message of a loaded conversation to what is shown."""
        bubbles = {"full": [bubble(NOT_ASKED)], "kvmm": [bubble(_text_of(message))]}
        if message["role"] == "user":
            text = escape_markdown(_text_of(message))
            media = sum(block["type"] != "text" for block in message["content"] if isinstance(block, dict))
            if media:
                text = f"*{media} {'file' if media == 1 else 'pages or files'}, see below*\n\n{text}"
            bubbles = {side: [{"role": "user", "content": [{"type": "text", "text": text}]}] for side in SIDES}
        for side in SIDES:
            self.chats[side] += bubbles[side]

    def _note_growth(self, said: int, progress: Progress) -> None:
        if progress.memory is not None and (not self.growth or progress.memory is not self.growth[-1][1]):
            self.growth.append((said + progress.tokens, progress.memory))
            if len(self.growth) > MAX_GROWTH:
                del self.growth[:-1:2]

    def _forget_growth(self, said: int) -> None:
        self.growth = [point for point in self.growth if point[0] <= said]

    def _warm_up(self, talks: list[Conversation], media: Sequence[Media], stop: threading.Event) -> None:
        with contextlib.suppress(KVMMError):  # such as a page that does not fit: the answer says so
            warm_up(talks, media, stop)

    def _forget_unasked(self, speakers: dict[str, tuple[Conversation, bool]], finals: dict[str, Progress]) -> None:
        """Sides that are new and have not answered: the next question has to bring the media again."""
        for side, (_, fresh) in speakers.items():
            if fresh and side not in finals:
                self._keys.pop(side, None)

    def _speaker(self, side: str, settings: Settings, policy: Any) -> tuple[Conversation, bool]:
        """The conversation of ``side`` and whether it is new and therefore has earlier media to read."""
        key = settings.cache_key(side, self.models.default)
        in_step = self._keys.get(side) == key and self._turns.get(side) == self._answered
        if not in_step:
            model, processor = self.models.get(settings.model)
            self._conversations[side] = Conversation(
                model, processor, policy=policy, graph=self.graph, key_norms=side == "kvmm"
            )
            self._keys[side] = key
        return self._conversations[side], not in_step


def _text_of(message: dict[str, Any]) -> str:
    """The question or answer in a message, without the page labels that come before pictures."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return content[-1]["text"] if content and content[-1]["type"] == "text" else ""


def _title(turn: Turn) -> str:
    """A line for the list of conversations: the question, else the first file's name."""
    text = " ".join(turn.question.split()) or turn.files[0].rpartition("/")[2]
    return text if len(text) <= TITLE_LENGTH else f"{text[: TITLE_LENGTH - 1]}…"


__all__ = ["SIDES", "Step", "Talk", "Turn"]
