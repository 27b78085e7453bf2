"""The result file of a benchmark: what ran where, and rows that are written as they come."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.ask_policies import ROOT, git_hash, machine

PACKAGES = ("torch", "triton", "transformers")


def add_common_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Options that every kernel benchmark has."""
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="toy sizes: shows that the script runs, measures nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--append", action="store_true", help="keep the rows that the file already has")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / f"{name}.json")


class Report:
    """Rows of measurements with the run that made them; the file is complete after every row.

    ``runs`` says what ran (command, machine, versions, measured bandwidth), ``results`` holds rows, each with the
    number of its run and a ``name`` that is unique: a row of the same name replaces an older one.
    """

    def __init__(self, module: str, arguments: Sequence[str], options: argparse.Namespace):
        self.path: Path = options.output
        self.failed = False
        self.runs: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []
        if options.append and self.path.is_file():
            held = json.loads(self.path.read_text(encoding="utf-8"))
            self.runs, self.rows = held["runs"], held["results"]
        self.run: dict[str, Any] = {
            "command": shlex.join(["python", "-m", f"benchmarks.{module}", *_without_output(arguments)]),
            "machine": machine(torch.get_num_threads(), torch.device(options.device)),
            "versions": _versions(),
            "git_hash": git_hash(),
            "date": time.strftime("%Y-%m-%d"),
            "smoke": options.smoke,
        }
        self.runs.append(self.run)

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, write the file and say so on stderr."""
        row = {**row, "run": len(self.runs) - 1}
        self.rows = [old for old in self.rows if old["name"] != row["name"]] + [row]
        used = sorted({one["run"] for one in self.rows} | {len(self.runs) - 1})
        text = json.dumps({"runs": [self.runs[i] for i in used], "results": _renumbered(self.rows, used)}, indent=1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text + "\n", encoding="utf-8")
        print(f"{row['name']}: {row.get('failed', 'done')}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def guarded(self, row: dict[str, Any]) -> Iterator[None]:
        """What fails inside becomes ``failed`` in the row, which is added either way."""
        try:
            yield
        except Exception as error:  # one row must not cost the others
            self.failed = True
            row["failed"] = _one_line(error)
        self.add(row)

    def finish(self) -> None:
        """Exit with code 1 if a row failed."""
        if self.failed:
            sys.exit(1)


def _without_output(arguments: Sequence[str]) -> list[str]:
    """Arguments without where files went, which is nobody else's."""
    left = list(arguments)
    for option in {"--output", "--programs"}.intersection(left):
        at = left.index(option)
        del left[at : at + 2]
    return left


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def attempt(results: dict[str, Any], failures: dict[str, str], name: str, measure: Any) -> None:
    """Put ``measure()`` into ``results``, or why it does not run into ``failures``: of baselines the best counts."""
    try:
        results[name] = measure()
    except Exception as error:
        failures[name] = _one_line(error)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _renumbered(rows: list[dict[str, Any]], used: list[int]) -> list[dict[str, Any]]:
    return [{**row, "run": used.index(row["run"])} for row in rows]


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found | {"cuda": torch.version.cuda}


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a plain table; the first column is left-aligned, the others right-aligned, None is a dash."""
    cells = [[_cell(value) for value in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for row in cells:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *rest]))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
