"""kvmm in the browser: ``python app.py``, then open the address it prints. The same as ``kvmm app``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kvmm.cli import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``kvmm app`` with these words, or those of this process; returns the exit code."""
    return run(argv, "app", "app.py")


if __name__ == "__main__":
    sys.exit(main())
