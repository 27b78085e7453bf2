"""``python -m tests.fuzz --inputs 30000``: every kind of file that somebody may send, broken in fixed ways."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz import KINDS
from tests.fuzz.runner import run, serve, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=900, help="inputs of all kinds together")
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first input of every kind")
    parser.add_argument("--out", type=Path, help="a JSON file for the counts")
    parser.add_argument("--sanitize", action="store_true", help="the C library under address and undefined sanitizers")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # what a child process is started with
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.seed, arguments.start, arguments.inputs)
        return 0
    result = run(arguments.kinds, arguments.inputs, arguments.seed, arguments.start, arguments.sanitize, arguments.out)
    print(table(result))
    return 0 if result["clean"] else 1


if __name__ == "__main__":
    sys.exit(main())
