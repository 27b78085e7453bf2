"""Macros of a CUDA kernel's source, from the fields of what it is compiled for."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any


def rounded(x: int, n: int) -> int:
    return -(-x // n) * n


def macro(comment: str, **default: object) -> Any:
    """A field that is a macro of its name in upper case, with what it says."""
    return field(metadata={"comment": comment}, **default)


class Compiled:
    """What a kernel's source has to know to be compiled: every field is a macro, a pair is two, for both planes."""

    @property
    def macros(self) -> dict[str, tuple[int, str]]:
        """Values and comments of all macros, by name."""
        macros = {}
        for entry in fields(self):
            value, comment, name = getattr(self, entry.name), entry.metadata["comment"], entry.name.upper()
            if isinstance(value, tuple):
                macros |= {f"{name}_{plane}": (number, comment) for plane, number in enumerate(value)}
            else:
                macros[name] = int(value), comment
        return macros | {"WARP_BYTES": (self.warp_bytes, "shared memory of a warp")}
