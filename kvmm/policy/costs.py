"""What each preset costs, in plain words: its measured bits, and how many right answers it keeps.

Bits come from ``kvmm/policy/bits.json`` (``benchmarks/policy_bits.py``), answers from ``kvmm/policy/answers.json``
(``benchmarks/policy_answers.py``, which reads the committed evaluation of the mini sets).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from kvmm.memory_text import bits_text

BITS_PATH = Path(__file__).with_name("bits.json")
SHORT_LEGEND = "bits per value, packed / whole cache · right answers kept"
ANSWERS_PATH = Path(__file__).with_name("answers.json")


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


def bits_of(name: str) -> tuple[float, float] | None:
    """Measured bits per value of a preset: of the whole cache, and of the packed pages; None if it was not measured."""
    found = bits_table()["policies"].get(name)
    return None if found is None else (found["bits_per_value"], found["packed_bits_per_value"])


def kept_of(name: str) -> int | None:
    """Of 100 answers that full precision gets right, how many a preset keeps, rounded down; None if not measured."""
    found = answers_table()["policies"].get(name)
    return None if found is None else 100 * found["kept"] // found["right"]


def is_reference(name: str) -> bool:
    """Whether the answers of all others are compared with this preset's."""
    return name == answers_table()["reference"]


def plain_cost(name: str) -> str:
    """ "packed: 2.1 bits per value, whole cache: 2.5 bits; keeps 97 of 100 right answers", as far as measured."""
    bits, kept = bits_of(name), kept_of(name)
    parts = [] if bits is None else [bits_text(*bits)]
    if is_reference(name):
        parts.append("the reference of all answers")
    elif kept is not None:
        parts.append(f"keeps {kept} of 100 right answers")
    return "; ".join(parts)


def short_cost(name: str) -> str:
    """The same for a narrow list, named by ``SHORT_LEGEND``: "2.1 / 2.5 · 97 %"."""
    bits, kept = bits_of(name), kept_of(name)
    parts = [] if bits is None else [f"{bits[1]:.1f} / {bits[0]:.1f}"]
    if is_reference(name):
        parts.append("reference")
    elif kept is not None:
        parts.append(f"{kept} %")
    return " · ".join(parts)


def measured_on() -> str:
    """One sentence on what the figures of :func:`plain_cost` were measured on."""
    bits, answers = bits_table(), answers_table()
    return (
        f"Bits: {bits['document']}, after its answer. Right answers kept: of those that full precision gets right "
        f"among {answers['questions']} questions about pages. Both with {answers['model']}."
    )


__all__ = [
    "SHORT_LEGEND",
    "answers_table",
    "bits_of",
    "bits_table",
    "is_reference",
    "kept_of",
    "measured_on",
    "plain_cost",
    "short_cost",
]
