"""One visitor of the app: the pages they have open, their conversations and their files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kvmm.ui.session import Desk, Session


@dataclass(eq=False)
class Visit:
    """One visitor. ``pages``: session by open page; ``away``: by page whose connection ended, which may come back;
    ``heard``: when either was last heard of; ``files``: times by path.

    ``saved``: the folder of the conversation that was saved last, which is in ``files``, too.
    """

    token: str | None
    desk: Desk = field(default_factory=Desk)
    pages: dict[str, Session] = field(default_factory=dict)
    away: dict[str, Session] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    left: float = 0.0  # when the last page closed
    files: dict[Path, int] = field(default_factory=dict)
    saved: Path | None = None

    @property
    def sessions(self) -> dict[str, Session]:
        """Of all pages, open or away."""
        return self.away | self.pages

    @property
    def is_working(self) -> bool:
        """Whether a question is being answered, or long work such as an evaluation is done."""
        answers = [talk.answer for talk in self.desk.talks if talk.answer is not None]
        return self.desk.long_works > 0 or any(answer.is_running for answer in answers)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said or sent, so that nothing is lost with it."""
        return not self.files and all(talk.is_empty for talk in self.desk.talks)


__all__ = ["Visit"]
