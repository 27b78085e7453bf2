"""Docstrings as the API reference wants them: ``key, value: ...`` of an "Args:" section becomes two entries."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SHARED = re.compile(r"( +)(\*{0,2}\w+(?:, \*{0,2}\w+)+): (.*)")


def split_entries(text: str) -> str:
    """Give every name of an entry for several its own copy, in the sections that have entries."""
    lines, inside = [], False
    rows = text.splitlines()
    for index, line in enumerate(rows):
        if re.fullmatch(r"(Args|Attributes):", line):
            inside = True
        elif line and not line.startswith(" "):
            inside = False
        shared = _SHARED.fullmatch(line) if inside else None
        if shared is None or len(shared[1]) != 4:
            lines.append(line)
            continue
        *others, last = shared[2].split(", ")
        rest = _continuation(rows[index + 1 :])
        for name in others:
            lines += [f"{shared[1]}{name}: {shared[3]}", *rest]
        lines.append(f"{shared[1]}{last}: {shared[3]}")
    return "\n".join(lines)


def _continuation(rows: list[str]) -> list[str]:
    end = next((index for index, row in enumerate(rows) if not row.startswith(" " * 8)), len(rows))
    return rows[:end]


class SharedEntries(griffe.Extension):
    """Applies :func:`split_entries` to everything that is documented."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = split_entries(obj.docstring.value)
