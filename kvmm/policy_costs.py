"""What each preset costs, in plain words: its measured bits, and how many right answers it keeps.

Bits come from ``kvmm/ui/policy_bits.json`` (``benchmarks/policy_bits.py``), answers from ``kvmm/policy_answers.json``
(``benchmarks/policy_answers.py``, which reads the committed evaluation of the mini sets).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

BITS_PATH = Path(__file__).with_name("ui") / "policy_bits.json"
ANSWERS_PATH = Path(__file__).with_name("policy_answers.json")


@cache
def bits_table() -> dict[str, Any]:
    """What ``benchmarks/policy_bits.py`` measured: ``document``, ``model``, ``tokens``, ``policies {name: {...}}``."""
    return json.loads(BITS_PATH.read_text(encoding="utf-8"))


@cache
def answers_table() -> dict[str, Any]:
    """What ``benchmarks/policy_answers.py`` counted: ``model``, ``tasks``, ``questions``, ``reference``, ``policies``.

    ``policies {name: {"right", "kept"}}``: of the questions that the reference answers right (``right``), how many the
    policy answers right too (``kept``).
    """
    return json.loads(ANSWERS_PATH.read_text(encoding="utf-8"))


def bits_of(name: str) -> float | None:
    """Measured bits per value of a preset; None if it was not measured."""
    found = bits_table()["policies"].get(name)
    return None if found is None else found["bits_per_value"]


def kept_of(name: str) -> int | None:
    """Of 100 answers that full precision gets right, how many a preset keeps, rounded down; None if not measured."""
    found = answers_table()["policies"].get(name)
    return None if found is None else 100 * found["kept"] // found["right"]


def is_reference(name: str) -> bool:
    """Whether the answers of all others are compared with this preset's."""
    return name == answers_table()["reference"]


def plain_cost(name: str) -> str:
    """ "2.45 bits per value, keeps 97 of 100 right answers"; what was not measured is left out."""
    bits, kept = bits_of(name), kept_of(name)
    parts = [] if bits is None else [f"{bits:.2f} bits per value"]
    if is_reference(name):
        parts.append("the reference of all answers")
    elif kept is not None:
        parts.append(f"keeps {kept} of 100 right answers")
    return ", ".join(parts)


def short_cost(name: str) -> str:
    """The same for a narrow list: "2.45 bits · 97 %"."""
    bits, kept = bits_of(name), kept_of(name)
    parts = [] if bits is None else [f"{bits:.2f} bits"]
    if is_reference(name):
        parts.append("reference")
    elif kept is not None:
        parts.append(f"{kept} %")
    return " · ".join(parts)


def measured_on() -> str:
    """One sentence on what the figures of :func:`plain_cost` were measured on."""
    bits, answers = bits_table(), answers_table()
    return (
        f"Bits: {bits['document']}. Right answers kept: of those that full precision gets right among "
        f"{answers['questions']} questions about pages ({answers['model']} model)."
    )


__all__ = [
    "answers_table",
    "bits_of",
    "bits_table",
    "is_reference",
    "kept_of",
    "measured_on",
    "plain_cost",
    "short_cost",
]
