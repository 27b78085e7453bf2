"""Several visitors at once: whose session is whose, how many bytes all caches may hold, and whose files go when."""

from __future__ import annotations

import shutil
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

from kvmm.errors import KVMMError
from kvmm.models.conversation import Conversation
from kvmm.ui.session import Session
from kvmm.ui.talk import Talk


class Visitors:
    """The sessions that exist, and the budget that their caches share.

    The page holds each session; here are only weak references, so a session goes with its page. When all caches
    together hold more than the budget, those of the conversations used longest ago are dropped; what was said stays,
    and the next question there reads the media again.

    Args:
        new_session: makes a visitor's session.
        cache_budget: bytes for all caches of idle conversations.
        upload_folder: where uploads arrive; nothing outside it is ever deleted.
    """

    def __init__(self, new_session: Callable[[], Session], cache_budget: int, upload_folder: str | Path) -> None:
        self._new_session = new_session
        self.cache_budget = cache_budget
        self.upload_folder = Path(upload_folder).resolve()
        self._sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
        # equal uploads of two visitors are one file; its time tells whether it was sent again since
        self._files: weakref.WeakKeyDictionary[Session, dict[Path, int]] = weakref.WeakKeyDictionary()
        self._guard = threading.RLock()

    def session(self, key: str | None = None) -> Session:
        """A new session; ``key`` finds it again when the visitor leaves."""
        session = self._new_session()
        with self._guard:
            self._sessions[key or uuid.uuid4().hex] = session
        return session

    def find(self, key: str | None) -> Session | None:
        """The session that was made with ``key``, if it still exists."""
        return self._sessions.get(key or "")

    @property
    def sessions(self) -> list[Session]:
        """All sessions that exist."""
        with self._guard:
            return list(self._sessions.values())

    # -- files ---------------------------------------------------------------------------------------------------------

    def keep_until_left(self, session: Session, paths: Iterable[str | Path]) -> None:
        """These files are deleted when the visitor leaves, unless another visitor sent the same ones."""
        found = [path for path in (Path(p).resolve() for p in paths) if path.is_relative_to(self.upload_folder)]
        with self._guard:
            self._files.setdefault(session, {}).update({path: _time(path) for path in found})

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
        folder = self.upload_folder / f"kvmm-{uuid.uuid4().hex}"
        folder.mkdir(parents=True)
        self.keep_until_left(session, [folder])
        return folder

    def leave(self, session: Session | None) -> None:
        """The visitor is gone: stop their answer, drop their caches, delete their files."""
        if session is None:
            return
        session.close()
        with self._guard:
            files = self._files.pop(session, {})
            for others in self._files.values():
                files = {path: when for path, when in files.items() if path not in others}
        for path, when in files.items():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif _time(path) == when:
                path.unlink(missing_ok=True)

    # -- memory --------------------------------------------------------------------------------------------------------

    def cache_nbytes(self) -> int:
        """Bytes of all caches of all visitors. What forks share counts for each of them."""
        return sum(conversation.cache_nbytes() for _, conversation in self._conversations())

    def keep_budget(self) -> int:
        """Drop caches until the budget holds, those used longest ago first; returns how many were dropped."""
        with self._guard:
            held = [
                (talk.used, conversation, conversation.cache_nbytes()) for talk, conversation in self._conversations()
            ]
            held = [entry for entry in held if entry[2]]
            total, dropped = sum(nbytes for _, _, nbytes in held), 0
            for _, conversation, nbytes in sorted(held, key=lambda entry: entry[0]):
                if total <= self.cache_budget:
                    break
                if conversation.free_cache():  # not while it answers
                    total, dropped = total - nbytes, dropped + 1
            return dropped

    def _conversations(self) -> list[tuple[Talk, Conversation]]:
        return [
            (talk, conversation)
            for session in self.sessions
            for talk in session.talks
            for conversation in talk.conversations
        ]


def _time(path: Path) -> int:
    """When the file was last written or renamed, in ns; 0 if it is gone."""
    try:
        return path.stat().st_ctime_ns
    except OSError:
        return 0


__all__ = ["Visitors"]
