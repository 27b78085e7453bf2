"""Several visitors at once: whose conversations are whose, how long they live, and with them their caches and files.

A visitor is one browser. It carries a token that nobody can guess (:mod:`kvmm.ui.cookie`); the pages it has open share
its conversations, and a page that is reloaded finds them again. They live as long as a page is open, and for a grace
period after the last one closed. Caches are dropped earlier, when nobody asked for a while or others need the memory;
then the next question reads the media again. Files live as long as a conversation shows them.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kvmm.errors import KVMMError
from kvmm.media import media_nbytes
from kvmm.models.conversation import Conversation
from kvmm.ui.cookie import token_of_request, visitor_key
from kvmm.ui.session import LOST, Desk, Session
from kvmm.ui.talk import Talk
from kvmm.ui.uploads import PREFIX, delete_file, is_visitors_own, new_folder
from kvmm.ui.visit import Visit

GRACE_SECONDS = 30 * 60  # from the moment the last page closed until everything goes
IDLE_SECONDS = 30 * 60  # without a question, after which a conversation's caches are dropped
FILE_SECONDS = 60 * 60  # age at which files go that no conversation shows, such as uploads that were never sent
PAGE_SECONDS = 24 * 60 * 60  # a page that has not been heard of for so long is closed, whatever its connection says
CLEAN_SECONDS = 10 * 60  # between two clean-ups
MAX_IDLE_VISITS = 1000  # visitors who have said nothing; above, those heard of longest ago are forgotten
MAX_PAGES = 64  # of one visitor; above, those heard of longest ago are

logger = logging.getLogger(__name__)


class Visitors:
    """The visitors that exist, and the budget that their caches share.

    When the caches of all idle conversations hold more than the budget, those used longest ago are dropped; what was
    said stays, and the next question there reads the media again.

    Args:
        new_session: makes a page's session of a visitor's :class:`Desk`.
        cache_budget: bytes for all caches and media of idle conversations.
        upload_folder: where uploads arrive; nothing outside it is ever deleted.
        now: the time in seconds since the epoch.
    """

    def __init__(
        self,
        new_session: Callable[[Desk], Session],
        cache_budget: int,
        upload_folder: str | Path,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._new_session, self.now = new_session, now
        self.cache_budget = cache_budget
        self.upload_folder = Path(upload_folder).resolve()
        self.kept: set[Path] = set()  # files of the app itself, such as icons
        self.at_clean_up: list[Callable[[], object]] = []  # what else is done then
        self._visits: list[Visit] = []
        self._forgotten: dict[str, float] = {}  # when, by page
        self._guard = threading.RLock()
        self._deleting = ThreadPoolExecutor(1, thread_name_prefix="kvmm-delete")

    # -- visitors and pages --------------------------------------------------------------------------------------------

    def session(self, key: str | None = None, token: str | None = None) -> Session:
        """The session of a page, made now if it has none.

        Args:
            key: names the page; None for one that nobody finds again.
            token: names the visitor; pages with the same token share their conversations. Without one, a page is a
                visitor of its own.
        """
        key = key or uuid.uuid4().hex
        with self._guard:
            visit = self._visit_of(key) or self._visit(token)
            if visit is None:
                self._make_room()
                visit = Visit(token)
                self._visits.append(visit)
            visit.heard.pop(key, None)
            visit.heard[key] = self.now()  # the one heard of longest ago is the first
            if len(visit.heard) > MAX_PAGES:
                self._drop_page(visit, next(iter(visit.heard)))
            if key in visit.away:  # its computer slept, or the network was away
                visit.pages[key] = visit.away.pop(key)
            if key not in visit.pages:
                visit.pages[key] = session = self._new_session(visit.desk)
                session.folder = lambda: self._new_folder(visit)
                if self._forgotten.pop(key, None) is not None:
                    session.lose()
            return visit.pages[key]

    def find(self, key: str | None) -> Session | None:
        """The session of a page, if it still exists; also of one whose connection ended."""
        with self._guard:
            visit = self._visit_of(key or "")
            return None if visit is None else visit.sessions[key]

    def heard(self, key: str) -> None:
        """A page is open. It may have been away: its computer slept, or the network did."""
        with self._guard:
            visit = self._visit_of(key)
            if visit is not None:
                visit.heard.pop(key, None)
                visit.heard[key] = self.now()
                if key in visit.away:
                    visit.pages[key] = visit.away.pop(key)

    def returned(self, key: str, token: str | None) -> Session | None:
        """The session of a page that has just been opened, if its visitor was here before."""
        with self._guard:
            return None if self._visit(token) is None else self.session(key, token)

    def closed(self, key: str | None) -> None:
        """A page was closed or is being reloaded, or its connection ended; it or its visitor may come back."""
        with self._guard:
            visit = self._visit_of(key or "")
            if visit is None or key not in visit.pages:
                return
            session = visit.away[key] = visit.pages.pop(key)
            visit.left = self.now()
            if visit.token is None and not visit.pages:
                self._forget(visit)
            else:
                session.go_on_alone()

    def leave(self, session: Session | None) -> None:
        """This visitor is gone for good: stop their answers, drop their caches, delete their files."""
        with self._guard:
            for visit in [visit for visit in self._visits if session in visit.sessions.values()]:
                self._forget(visit)

    @property
    def sessions(self) -> list[Session]:
        """All sessions that exist."""
        with self._guard:
            return [session for visit in self._visits for session in visit.pages.values()]

    def _visit_of(self, key: str) -> Visit | None:
        return next((visit for visit in self._visits if key in visit.sessions), None)

    def _visit(self, token: str | None) -> Visit | None:
        return next((visit for visit in self._visits if token is not None and visit.token == token), None)

    def _remember_lost(self, visit: Visit, key: str) -> None:
        """A page that shows something may be open still; when it is heard of again, it is told that this is gone."""
        if not visit.away[key].talk.is_empty:
            self._forgotten[key] = self.now()

    def needed(self) -> tuple[set[str], set[str]]:
        """The pages that have something to lose: those that are open, and those that are away."""
        with self._guard:
            there = [visit for visit in self._visits if not visit.is_empty]
            return {key for visit in there for key in visit.pages}, {key for visit in there for key in visit.away}

    def _make_room(self) -> None:
        idle = [visit for visit in self._visits if visit.is_empty]
        if len(idle) >= MAX_IDLE_VISITS:
            idle.sort(key=lambda visit: max(visit.heard.values(), default=0.0))
            for visit in idle[: MAX_IDLE_VISITS // 10]:
                self._forget(visit)

    def _drop_page(self, visit: Visit, key: str) -> None:
        """One page of a visitor goes; the conversations stay with the others."""
        self.closed(key)
        self._remember_lost(visit, key)
        del visit.away[key], visit.heard[key]

    def _forget(self, visit: Visit) -> None:
        self._visits.remove(visit)
        for talk in visit.desk.talks:
            talk.close()
        for session in visit.sessions.values():
            session.close()
        self._delete(visit.files)

    # -- the clean-up --------------------------------------------------------------------------------------------------

    def clean_up(self, made: Iterable[str | Path] = ()) -> None:
        """Forget visitors who did not come back, drop caches nobody uses, delete files nobody shows.

        Args:
            made: files that the app has received or made; those outside the folders of visitors are left alone.
        """
        now = self.now()
        with self._guard:
            for visit in list(self._visits):
                if visit.is_working:  # what is worked on is needed, and for as long again once it is done
                    visit.left = now
                    continue
                for key, heard in list(visit.heard.items()):
                    if now - heard > PAGE_SECONDS:
                        self.closed(key)
                        if visit.pages:  # the others keep the conversations
                            self._drop_page(visit, key)
                if visit not in self._visits:
                    continue
                if visit.is_empty and all(now - heard > IDLE_SECONDS for heard in visit.heard.values()):
                    self._forget(visit)
                elif not visit.pages and now - visit.left > GRACE_SECONDS:
                    for key in visit.away:
                        self._remember_lost(visit, key)
                    self._forget(visit)
            self._forgotten = {key: when for key, when in self._forgotten.items() if now - when <= PAGE_SECONDS}
            for talk, conversation in self._conversations():
                if now - talk.used > IDLE_SECONDS:
                    conversation.free_cache()
            living = {path for visit in self._visits for path in self._living(visit)} | self.kept
        for path in (Path(p).resolve() for p in made):
            unused = self._is_own(path) and not any(p in living for p in (path, *path.parents))
            if unused and now - _time(path) / 1e9 > FILE_SECONDS:
                self._unlink(path)
        for also in self.at_clean_up:
            also()
        self._deleting.submit(bool).result()  # until all that went is deleted

    def clean_up_regularly(self, made: Callable[[], Iterable[str | Path]], seconds: float = CLEAN_SECONDS) -> None:
        """Run :meth:`clean_up` every so often, in a thread that ends when these visitors are no longer needed."""
        visitors, tick = weakref.ref(self), threading.Event()

        def run() -> None:
            while not tick.wait(seconds) and (there := visitors()) is not None:
                try:
                    there.clean_up(made())
                except Exception:  # the next one may go well, and without it memory and disk fill up
                    logger.exception("a clean-up failed")
                del there

        threading.Thread(target=run, name="kvmm-clean-up", daemon=True).start()

    # -- files ---------------------------------------------------------------------------------------------------------

    def keep_until_left(self, session: Session, paths: Iterable[str | Path]) -> None:
        """These files live as long as the visitor, unless their conversation is deleted before.

        Files that are not in the folder of a visitor, such as the samples, are left alone.
        """
        found = [path for path in (Path(p).resolve() for p in paths) if self._is_own(path)]
        with self._guard:
            for visit in [visit for visit in self._visits if session in visit.sessions.values()]:
                visit.files.update({path: _time(path) for path in found})

    def discard(self, session: Session, paths: Iterable[str]) -> None:
        """Delete files of a conversation that was deleted, as far as no other one shows them."""
        with self._guard:
            for visit in [visit for visit in self._visits if session in visit.sessions.values()]:
                shown = {Path(path).resolve() for talk in visit.desk.talks for path in talk.files}
                gone = {}
                for path in {Path(path).resolve() for path in paths} - shown:
                    # files of an opened conversation have a folder of their own
                    known = next((p for p in (path, path.parent) if p in visit.files), None)
                    if known is not None:
                        gone[known] = visit.files.pop(known)
                self._delete(gone)

    def discard_upload(self, path: str | Path) -> None:
        """Delete a file whose content has been read, unless it is one that others see, too."""
        with self._guard:
            found = Path(path).resolve()
            if self._is_own(found) and not any(found in self._living(visit) for visit in self._visits):
                self._unlink(found)

    def free_unsent(self, uploads: Iterable[tuple[Path, str]], nbytes: int) -> int:
        """Delete uploads that no conversation shows and whose visitor has no page open, until ``nbytes`` are free.

        Args:
            uploads: paths, in the order in which they go, with their visitor's token.
            nbytes: that are wanted.

        Returns:
            The bytes that were freed.
        """
        with self._guard:
            open_tokens = {visit.token for visit in self._visits if visit.pages}
            living = {path for visit in self._visits for path in self._living(visit)} | self.kept
        freed = 0
        for path, token in uploads:
            found = path.resolve()
            if freed >= nbytes:
                break
            if token in open_tokens or not self._is_own(found) or any(p in living for p in (found, *found.parents)):
                continue
            size = found.stat().st_size if found.is_file() else 0
            self._unlink(found)
            freed += 0 if found.exists() else size
        return freed

    def uploaded(self, path: str | Path) -> Path:
        """The path of a file that was sent to this app.

        Raises:
            KVMMError: it is any other file of the server, or gone.
        """
        found = Path(path)
        try:
            found = found.resolve()
            if found.is_relative_to(self.upload_folder) and found.is_file():
                return found
        except (OSError, ValueError, RuntimeError):  # names that no file system has
            pass
        raise KVMMError(f"{Path(path).name[:80]} was not sent to this app, or is gone: upload it again.")

    def folder(self, session: Session) -> Path:
        """A new folder for files made for this visitor, such as saved conversations; deleted when they leave."""
        return session.folder()

    def saving_folder(self, session: Session) -> Path:
        """A new folder for a conversation that is being saved; the one of the visitor's last saving is deleted."""
        folder = self.folder(session)
        with self._guard:
            for visit in [visit for visit in self._visits if session in visit.sessions.values()]:
                before, visit.saved = visit.saved, folder
                if before is not None:
                    self._delete({before: visit.files.pop(before, 0)})
        return folder

    def _new_folder(self, visit: Visit) -> Path:
        with self._guard:
            if visit not in self._visits:  # nobody would ever delete it
                raise KVMMError(LOST)
            folder = new_folder(self.upload_folder)
            visit.files[folder] = _time(folder)
        return folder

    def _living(self, visit: Visit) -> set[Path]:
        return set(visit.files) | {Path(path).resolve() for talk in visit.desk.talks for path in talk.files}

    def _delete(self, files: dict[Path, int]) -> None:
        """Delete files unless another visitor sent the same ones, or one was sent again since."""
        others = {path for visit in self._visits for path in self._living(visit)} | self.kept
        for path, when in files.items():
            if path in others or not self._is_own(path):
                continue
            if path.is_dir():
                self._remove_folder(path)
            elif _time(path) == when:
                self._unlink(path)

    def _remove_folder(self, path: Path) -> None:
        """Take a folder away now, and delete what is in it in a thread: that takes time, and others need the lock."""
        gone = self.upload_folder / f"{PREFIX}{uuid.uuid4().hex}"
        try:
            path.rename(gone)
        except OSError:  # it is gone, or the file system refuses
            gone = path
        self._deleting.submit(shutil.rmtree, gone, ignore_errors=True)

    def _is_own(self, path: Path) -> bool:
        return is_visitors_own(path, self.upload_folder)

    def _unlink(self, path: Path) -> None:
        """Delete a file, or leave it to the next clean-up where the file system refuses."""
        with contextlib.suppress(OSError):
            delete_file(path, self.upload_folder)

    # -- memory --------------------------------------------------------------------------------------------------------

    def cache_nbytes(self) -> int:
        """Bytes of all caches of all visitors. What forks share counts for each of them."""
        return sum(conversation.cache_nbytes() for _, conversation in self._conversations())

    def media_nbytes(self) -> int:
        """Bytes that the media of all idle conversations take, each counted once."""
        with self._guard:
            talks = [talk for visit in self._visits for talk in visit.desk.talks if not talk.is_busy]
            return media_nbytes(item for talk in talks for each in talk.exchanges for item in each.media)

    def keep_budget(self) -> int:
        """Free memory until the budget holds, conversations used longest ago first; returns how many caches went.

        With its caches goes what a conversation holds of the files it was sent, as far as they are on disk. One that is
        being answered counts once it is done: what is being written cannot be measured.
        """
        with self._guard:
            idle = [talk for visit in self._visits for talk in visit.desk.talks if not talk.is_busy]
            held = [(talk, [(one, one.cache_nbytes()) for one in talk.conversations]) for talk in idle]
            total = self.media_nbytes() + sum(nbytes for _, caches in held for _, nbytes in caches)
            dropped = 0
            for talk, caches in sorted(held, key=lambda entry: entry[0].used):
                if total <= self.cache_budget:
                    break
                for conversation, nbytes in caches:
                    if nbytes and conversation.free_cache():  # not while it answers
                        total, dropped = total - nbytes, dropped + 1
                media = [item for each in talk.exchanges for item in each.media]
                total -= media_nbytes(media)
                for item in media:
                    item.put_away()
                total += media_nbytes(media)
            return dropped

    def _conversations(self) -> list[tuple[Talk, Conversation]]:
        with self._guard:
            return [
                (talk, conversation)
                for visit in self._visits
                for talk in visit.desk.talks
                for conversation in talk.conversations
            ]


def _time(path: Path) -> int:
    """When the file was last written or renamed, in ns; 0 if it is gone."""
    try:
        return path.stat().st_ctime_ns
    except OSError:
        return 0


def session_of(visitors: Visitors, request: Any) -> Session:
    """The session of the page that sent a Gradio request."""
    return visitors.session(request.session_hash, token_of_request(request, visitor_key()))


__all__ = ["Visitors", "session_of"]
