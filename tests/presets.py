"""Presets that the committed runs do not have yet.

The drift of all presets on the embedded model and their steps on a CPU take long. A preset that is added between two
runs is named here until the next one.
"""

from __future__ import annotations

from kvmm import policies

NOT_RUN_YET = frozenset(
    {
        *("calibquant1-shrunk", "kitty-range", "paper-calibquant1", "paper-kitty", "paper-kivi2", "paper-oscar2"),
        *("paper-ott2", "paper-quarot2", "paper-rotatekv2", "paper-turboquant2.5"),
    }
)


def presets_run() -> list[str]:
    """The presets that the committed runs have, in the order of pickers."""
    return [name for name in policies() if name not in NOT_RUN_YET]
