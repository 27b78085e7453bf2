"""One answer that is being generated: a thread of its own writes it, any number of pages watch it.

A page that is reloaded or closed does not end it; the page that comes back goes on watching.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvmm import decoding
from kvmm.errors import KVMMError
from kvmm.markdown_text import literal_markdown
from kvmm.media import Media
from kvmm.models.generation import Reading, Stopped, unless_stopped
from kvmm.models.progress import Progress
from kvmm.ui.chat.talk import SIDES, AnswerUpdate, Talk, UserMessage
from kvmm.ui.parts.answers import memory_note, nearest_note, unsure_note
from kvmm.ui.parts.bubbles import NOT_ASKED, bubble, note
from kvmm.ui.parts.compare import mark_words
from kvmm.ui.parts.markdown import safe_markdown
from kvmm.ui.server import running
from kvmm.ui.server.arenas import return_memory
from kvmm.ui.settings import Settings

WAITING_NBYTES = 256 * 2**20  # of decoded pictures of all questions that wait for the model
_WAITING: weakref.WeakSet[Answer] = weakref.WeakSet()  # waiting answers with files in memory
_WAITING_GUARD = threading.Lock()
_ALONE = threading.Lock()  # held by the one answer that goes on without its page
TEXT_SECONDS = 0.06  # between two updates of the text
READ_AGAIN, FILES_READ_AGAIN = "Earlier pages read again", "Earlier files read again"
FAILED = "⚠️ The server could not answer this. The conversation is kept; try again."

logger = logging.getLogger(__name__)


class Answer:
    """A question that is waiting or being answered. It is shown from the moment it is made.

    Attributes:
        stop: set once it is to stop, see :meth:`cancel`.
        last: how far each side is.
        side: the one that is busy.
        error: one line for the visitor, if it failed.
    """

    def __init__(self, talk: Talk, message: UserMessage, settings: Settings) -> None:
        self.talk, self.message, self.settings = talk, message, settings
        self.stop = threading.Event()
        self.last: dict[str, Progress] = {}
        self.side = ""
        self.error: str | None = None
        self.done = False
        self.returned = False  # a stopped question is back in the box
        self.exchange = talk.begin(message)
        self._reasons: dict[str, str] = {}
        self._changed = threading.Condition()
        self._version = 0
        self._begun = False  # it has a thread, or answers
        self._answers = False  # it holds what it has read, and works on it
        self._watched = False  # by a page
        self._reading = threading.Lock()
        self._problem: Exception | None = None  # with the files
        self._earlier_media: list[Media] = []  # earlier pictures, decoded for it
        for side in self._sides:
            self._show(side, note("Waiting for the model", "", pending=True))

    @property
    def _sides(self) -> tuple[str, ...]:
        return SIDES if self.settings.compare else ("kvmm",)

    @property
    def is_running(self) -> bool:
        """Whether it has begun and is not done."""
        return self._begun and not self.done

    @property
    def stopped(self) -> bool:
        """Whether the visitor stopped it."""
        return self.exchange.stopped

    @property
    def reading(self) -> Reading | None:
        """How far the prompt has been read, while it is."""
        return None if self.done or self.side not in self.last else self.last[self.side].reading

    def start(self, *, alone: bool = False) -> None:
        """Begin, in a thread of its own; once.

        Args:
            alone: no page watches. Of these one answers at a time, however many pages were closed: each holds its
                pictures and prompt, and comes before a question that somebody waits for once.
        """
        with self._changed:  # several pages may watch it
            self._watched |= not alone
            if self._begun or self.done:
                return
            self._begun = True
        threading.Thread(target=self._run_alone if alone else self._run, name="kvmm-answer", daemon=True).start()

    def prepare(self) -> None:
        """Read the files now, before it begins; what is wrong with them is raised by :meth:`updates`.

        Earlier pictures that have to be read again are decoded now, too: not in the turn that others wait for. Pictures
        beyond ``WAITING_NBYTES`` are decoded once more when they are used: many questions may wait.
        """
        with self._reading:
            if self._begun or self.done or self._problem is not None or self.message.media is not None:
                return
            try:
                media = unless_stopped(lambda: self.talk.load(self.message, self.stop), self.stop)
            except Stopped:
                return
            except Exception as error:
                self._problem = None if self.stop.is_set() else error
                return
            if self.done:
                return
            self.message = replace(self.message, media=tuple(media))
            with _WAITING_GUARD:
                left = self._left()
                _WAITING.add(self)
                for item in media:
                    if item.nbytes > left:
                        item.release()
                    left -= item.nbytes
            self._hold_earlier()

    def _left(self) -> int:
        """Bytes left for pictures of waiting questions; call it inside ``_WAITING_GUARD``."""
        waiting = [each for each in _WAITING if not (each._answers or each.done)]
        decoded = {id(item): item for each in waiting for item in (*(each.message.media or ()), *each._earlier_media)}
        return WAITING_NBYTES - sum(item.nbytes for item in decoded.values())

    def _hold_earlier(self) -> None:
        """Decode earlier pictures that have to be read again, until the memory for waiting answers is full."""
        with decoding.owned_by(self.talk.owner), decoding.stopped_by(self.stop):
            for item in self.talk.media_to_read_again(self.settings):
                if item.nbytes:  # it is there, or another question holds it
                    continue
                try:
                    item.hold()
                except KVMMError:  # the answer reports the error
                    return
                with _WAITING_GUARD:
                    self._earlier_media.append(item)
                    is_needed = not (self._begun or self.done) and self._left() >= 0
                if not is_needed:
                    item.release()
                    return

    def cancel(self) -> None:
        """Stop the answer. One that has not begun ends at once and never begins."""
        self.stop.set()
        with self._changed:
            if self._begun or self.done:
                return
            self.exchange.stopped = True
            self._finish()
            self.done = True
            self._let_go()  # the decoded files are not needed
            self._tell()

    def _let_go(self) -> None:
        for item in self._earlier_media:
            item.release()
        self.message, self._earlier_media = replace(self.message, media=None), []

    def watch(self) -> Iterator[None]:
        """Yield whenever something has changed, and at least once; ends with the answer."""
        seen = -1
        while True:
            with self._changed:
                self._changed.wait_for(lambda seen=seen: self._version != seen or self.done, timeout=1)
                done, changed, seen = self.done, self._version != seen, self._version
            if changed:
                yield
            if done:
                return
            time.sleep(TEXT_SECONDS)

    def updates(self) -> Iterator[AnswerUpdate]:
        """Answer in this thread; errors are raised. At the end, or when it is closed, the chat shows the result."""
        self._begun = self._answers = True
        running.began(self.stop)
        for side in self._sides:
            self._show(side, note("Reading" if self.message.files else "Answering", "", pending=True))
        self._tell()
        try:
            with self._reading:  # it may be prepared just now
                if self._problem is not None:
                    raise self._problem
            for update in self.talk.ask(self.message, self.settings, stop=self.stop, exchange=self.exchange):
                if update.waits_for:
                    for side in self._sides:
                        self._show(side, note(update.waits_for, "", pending=True))
                    self._tell()
                    yield update
                    continue
                self.side = update.side
                self.last[update.side], self._reasons[update.side] = update.progress, update.reread
                self._show(update.side, *self._tail(update.side, safe_markdown(update.progress.text)))
                self._tell()
                yield update
            self._finish()
        except KVMMError as error:
            self.exchange.as_links = not self.exchange.media  # a file may not be what it says
            for item in self.exchange.media:  # a recording that the model does not take may be hours long
                item.put_away()
            self._fail(str(error), literal_markdown(str(error)))
            raise
        except GeneratorExit:
            self.exchange.stopped = not self.exchange.answered
            self._finish()
            raise
        except Exception:
            self._fail(FAILED, FAILED.removeprefix("⚠️ "))
            raise
        finally:
            for item in self.exchange.media:
                item.release()
            self._let_go()
            if self.exchange.media:
                return_memory()
            self.done = True
            self._tell()
            running.ended(self.stop)

    def _run(self) -> None:
        try:
            for _ in self.updates():
                pass
        except KVMMError:
            pass
        except Exception:
            logger.exception("an answer failed")

    def _run_alone(self) -> None:
        while not _ALONE.acquire(timeout=0.2):
            if self.stop.is_set() or self._watched:  # its visitor came back
                return self._run()
        try:
            self._run()
        finally:
            _ALONE.release()

    def _tell(self) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _show(self, side: str, *tail: dict[str, Any] | None) -> None:
        self.exchange.tails[side] = [message for message in tail if message]

    def _tail(self, side: str, text: str) -> list[dict[str, Any] | None]:
        """The messages of one side; its answer is ``text`` as Markdown."""
        progress, reread = self.last[side], self._reasons[side]
        pages = all(item.kind == "image" for item in self.talk.media)
        before = note(READ_AGAIN if pages else FILES_READ_AGAIN, reread) if reread else None
        if progress.stopped:
            text = f"{text} *stopped*" if text else "*stopped*"
        if not progress.done:
            return [before, bubble(text) if text else self._reading_note(progress.reading)]
        # what a stopped answer held is dropped, so there is nothing to note
        by = self.settings.answered_by(self.talk.models.default, bool(self.talk.models.remote))
        notes = [nearest_note(progress), unsure_note(progress), memory_note(progress, by)]
        after = [] if progress.stopped else notes
        return [before, bubble(text), *after]

    def _reading_note(self, reading: Reading | None) -> dict[str, Any]:
        if reading is None or not reading.pages:
            return note("Reading" if self.message.files else "Answering", "", pending=True)
        return note(f"Reading page {reading.page} of {reading.pages}", "", pending=True)

    def _finish(self) -> None:
        verdict = self.talk.verdict
        if self.exchange.answered and self.settings.compare and verdict is not None and verdict.index is not None:
            marked = mark_words(*(safe_markdown(self.last[side].text) for side in SIDES))
            for side, text in zip(SIDES, marked, strict=True):
                self._show(side, *self._tail(side, text))
        for side in SIDES:
            if side not in self._sides:
                self._show(side, bubble(NOT_ASKED))  # keeps the turn's place for when the column is shown
            elif side not in self.last:
                self._show(side, bubble("*stopped*"))
            elif not self.last[side].done:
                self._show(side, bubble(f"{safe_markdown(self.last[side].text)} *stopped*".strip()))

    def _fail(self, line: str, shown: str) -> None:
        self.error = line
        for side in SIDES:
            if side not in self.last or not self.last[side].done:  # an answer that is there stays readable
                self._show(side, bubble(f"⚠️ {shown}"))


__all__ = ["READ_AGAIN", "Answer"]
