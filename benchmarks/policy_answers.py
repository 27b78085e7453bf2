"""Count, from the committed evaluation of the mini sets, how many right answers every preset keeps.

python -m benchmarks.policy_answers     # reads its reports, writes kvmm/policy/answers.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.mini_report import REPORTS, combined_run
from kvmm.errors import KVMMError
from kvmm.models.loading import TINY_MODEL
from kvmm.policy.costs import ANSWERS_PATH

ROOT = Path(__file__).resolve().parents[1]
TASKS = ("docvqa", "mp-docvqa")  # questions about one page, and about several


def count_answers(run: dict[str, Any]) -> dict[str, Any]:
    """``policies {name: {"right", "kept"}}`` over ``TASKS``, from the paired counts of a report's run.

    Raises:
        KVMMError: a policy misses one of the tasks, or questions of it.
    """
    tasks = [task for task in run["tasks"] if task["task"] in TASKS]
    if len(tasks) != len(TASKS):
        raise KVMMError(f"The report has no {' or no '.join(TASKS)}: run kvmm eval on both.")
    (reference,) = {task["reference"] for task in tasks}
    right = {name: 0 for name in (one["policy"] for one in tasks[0]["policies"])}
    kept, questions = dict(right), dict(right)
    for task in tasks:
        rows = {one["policy"]: one["mcnemar"] for one in task["policies"]}
        rows[reference] = _of_reference(rows)
        if rows.keys() != right.keys():
            raise KVMMError(f"Task {task['task']} has other policies than {tasks[0]['task']}: evaluate all on both.")
        for name, counts in rows.items():
            right[name] += counts["both"] + counts["lost"]
            kept[name] += counts["both"]
            questions[name] += sum(counts[key] for key in ("both", "lost", "gained", "neither"))
    if len(set(questions.values())) != 1 or len(set(right.values())) != 1:
        raise KVMMError("Some policies were not asked all questions: evaluate them to the end.")
    return {
        "command": "python -m benchmarks.policy_answers",
        "source": [path.relative_to(ROOT).as_posix() for path in REPORTS],
        "model": TINY_MODEL,
        "dtype": run["dtype"],
        "date": run["date"],
        "tasks": list(TASKS),
        "questions": questions[reference],
        "reference": reference,
        "policies": {name: {"right": right[name], "kept": kept[name]} for name in right},
    }


def _of_reference(rows: dict[str, dict[str, int] | None]) -> dict[str, int]:
    """The counts of the reference with itself, from those of any other policy."""
    other = next(counts for counts in rows.values() if counts is not None)
    return {
        "both": other["both"] + other["lost"],
        "lost": 0,
        "gained": 0,
        "neither": other["gained"] + other["neither"],
    }


def main() -> None:
    result = count_answers(combined_run())
    ANSWERS_PATH.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, row in result["policies"].items():
        print(f"{name:18} keeps {row['kept']} of {row['right']} right answers")


if __name__ == "__main__":
    main()
