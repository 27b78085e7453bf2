"""Presets that the committed runs do not have yet.

The answers to the mini sets and the steps on a CPU take long. A preset that is added between two runs is named here
until the next one.
"""

from __future__ import annotations

from kvmm import policies

_NEW = ("paper-calibquant2", "paper-kitty-pro", "paper-oscar2-g32")
# of the mini sets, the four-page sample and the worked sample
NOT_ASKED_YET = frozenset(_NEW)
# of benchmarks.cpu_decode
NOT_TIMED_YET = frozenset(
    {
        *("calibquant1-shrunk", "kitty-range", "paper-calibquant1", "paper-kitty", "paper-kivi2", "paper-oscar2"),
        *("paper-ott2", "paper-quarot2", "paper-rotatekv2", "paper-turboquant2.5", *_NEW),
    }
)


def presets_asked() -> list[str]:
    """The presets whose answers and bits are committed, in the order of pickers."""
    return [name for name in policies() if name not in NOT_ASKED_YET]


def presets_timed() -> list[str]:
    """The presets whose steps on a CPU are committed, in the order of pickers."""
    return [name for name in policies() if name not in NOT_TIMED_YET]
