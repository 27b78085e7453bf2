"""Places in which files are decoded, shared fairly between those who sent them."""

from __future__ import annotations

import threading
from collections import Counter

from kvmm.decoding import limits


class Slots:
    """At most ``count`` files at once: of one owner at most ``per_owner``, of all owners together all but ``reserved``.

    A free place goes to the owner who has the fewest, and among equals to who waits longest. What has no owner (a
    script, or an answer whose turn has come) may take every place, so visitors' files never keep it waiting.
    """

    def __init__(self, count: int, per_owner: int, reserved: int) -> None:
        self.count, self.per_owner, self.reserved = count, per_owner, reserved
        self._changed = threading.Condition()
        self._taken: Counter[str | None] = Counter()
        self._waiting: list[_Wait] = []

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._waiting)

    def acquire(self, owner: str | None = None, stop: threading.Event | None = None) -> bool:
        """Take a place as soon as there is one; False if ``stop`` was set before."""
        wait = _Wait(owner)
        with self._changed:
            self._waiting.append(wait)
            try:
                while self._next() is not wait:
                    if stop is not None and stop.is_set():
                        return False
                    self._changed.wait(limits.STOP_SECONDS)
                self._taken[owner] += 1
                return True
            finally:
                self._waiting.remove(wait)
                self._changed.notify_all()

    def release(self, owner: str | None = None) -> None:
        """Give a place back."""
        with self._changed:
            self._taken[owner] -= 1
            self._taken += Counter()  # owners without a place are forgotten
            self._changed.notify_all()

    def _next(self) -> _Wait | None:
        may = [wait for wait in self._waiting if self._is_free_for(wait.owner)]
        return min(may, key=lambda wait: 0 if wait.owner is None else self._taken[wait.owner], default=None)

    def _is_free_for(self, owner: str | None) -> bool:
        taken = self._taken.total()
        if owner is None:
            return taken < self.count
        return taken < self.count - self.reserved and self._taken[owner] < self.per_owner


class _Wait:
    def __init__(self, owner: str | None) -> None:
        self.owner = owner


__all__ = ["Slots"]
