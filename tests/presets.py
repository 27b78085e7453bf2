"""Presets that the committed runs do not have yet.

The steps of all presets on a CPU take long. A preset that is added between two runs is named here until the next one.
"""

from __future__ import annotations

from kvmm import policies

# of benchmarks.cpu_decode
NOT_TIMED_YET = frozenset(
    {
        *("calibquant1-shrunk", "kitty-range", "paper-calibquant1", "paper-calibquant2", "paper-kitty"),
        *("paper-kitty-pro", "paper-kivi2", "paper-oscar2", "paper-oscar2-g32", "paper-ott2", "paper-quarot2"),
        *("paper-rotatekv2", "paper-turboquant2.5"),
    }
)


def presets_timed() -> list[str]:
    """The presets whose steps on a CPU are committed, in the order of pickers."""
    return [name for name in policies() if name not in NOT_TIMED_YET]
