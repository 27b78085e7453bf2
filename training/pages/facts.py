"""What a page says: the facts that questions can ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """Something the page says.

    ``key`` names the kind of fact ("total", "field", "cell", ...), ``label`` is what is printed beside the value (or
    the column of a table), ``subject`` what it is about (an item, a row of a table). ``asks`` are questions of its own;
    the last of four or more is kept out of training.
    """

    key: str
    value: str
    label: str = ""
    subject: str = ""
    asks: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, str, str]:
        """Two facts with one identity cannot be told apart by a question."""
        by_label = self.key in ("field", "cell", "entry", "doc_number", "section_first", "section_count")
        return self.key, self.label.lower() if by_label else "", self.subject.lower()
