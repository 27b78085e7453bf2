"""The committed evaluation of the mini sets: one run of most presets, and later ones of presets changed or added."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from kvmm import policies

_SAME = 0.01  # of a score: in 16 bits an answer depends a little on which questions share its batch
RESULTS = Path(__file__).parent / "results"
REPORTS = tuple(RESULTS / name / "report.json" for name in ("mini", "mini_defaults", "mini_papers"))


def combined_run(paths: tuple[Path, ...] = REPORTS) -> dict[str, Any]:
    """The run of the first report, with the rows of policies that later reports have, in place of its own or added.

    Policies stand in the order of the presets.

    Raises:
        ValueError: a later report has other tasks, other questions or another score of the reference, to which its
            rows are compared.
    """
    run, *later = (json.loads(path.read_text(encoding="utf-8"))["runs"][0] for path in paths)
    for other in later:
        tasks = {task["task"]: task for task in other["tasks"]}
        if tasks.keys() != {task["task"] for task in run["tasks"]}:
            raise ValueError("a report of some presets must have the tasks of the report of all")
        for task in run["tasks"]:
            _replace_rows(task, tasks[task["task"]])
    return run


def _replace_rows(task: dict[str, Any], other: dict[str, Any]) -> None:
    rows = {row["policy"]: row for row in other["policies"]}
    (reference,) = (row for row in task["policies"] if row["policy"] == task["reference"])
    own = rows[task["reference"]]
    if own["answered"] != reference["answered"] or abs(own["score"] - reference["score"]) > _SAME:
        raise ValueError(f"{task['task']}: the reports differ in {task['reference']}: run all presets again")
    merged = {row["policy"]: row for row in task["policies"]} | rows | {task["reference"]: reference}
    order = {name: at for at, name in enumerate(policies())}
    task["policies"] = sorted(merged.values(), key=lambda row: order.get(row["policy"], len(order)))


def digest(paths: tuple[Path, ...] = REPORTS) -> str:
    """Of all reports."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


__all__ = ["REPORTS", "combined_run", "digest"]
