"""The table of a task with its policies, as ``kvmm eval``, ``kvmm report`` and the app show it."""

from __future__ import annotations

from kvmm.eval.report.build import TaskResult, task_result
from kvmm.eval.report.pages import rows_of
from kvmm.eval.run.records import Run, count_failed
from kvmm.memory_text import AXIS, WHOLE

SHOWN = ("policy", "score", "difference", "95 % interval", "p", WHOLE, "KV", "failed")
"""Columns of the report's table that a terminal of 80 columns has room for."""
_SHORT = {WHOLE: "bits"}
SHORT_LEGEND = f"bits: {AXIS}"


def shown(task: TaskResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows of a task's table, those of :data:`SHOWN`."""
    columns, rows = rows_of(task)
    keep = [i for i, column in enumerate(columns) if column in SHOWN]
    return tuple(_SHORT.get(columns[i], columns[i]) for i in keep), [tuple(row[i] for i in keep) for row in rows]


def table(run: Run, task: str) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    """Columns, rows and caption of a task's table: paired differences and tests are those of :mod:`.build`.

    A task without a single row has no rows in the table either.
    """
    if not any(run.samples[task].values()):
        return SHOWN[:2], [], caption(run, task, None)
    result = task_result(run, task, failures=0)
    return *shown(result), caption(run, task, result)


def caption(run: Run, task: str, result: TaskResult | None) -> str:
    """The caption: the meaning of the columns, failed samples, unusable items, and speed."""
    configs = [config for config in run.results["configs"].values() if config["task"] == task]
    parts = []
    if result is not None:
        text = f"score: {result.metric}, points of 100"
        compared = [one.difference for one in result.policies if one.difference is not None]
        if compared:
            number = compared[0].clusters
            documents = f" over {number} document{'s' * (number != 1)}" if result.clusters else ""
            text += f"; difference: {result.paired_metric} minus {result.reference} on the same questions, with its "
            text += f"bootstrap interval{documents}; p: McNemar's exact test, Holm's correction"
        parts.append(f"{text}; {SHORT_LEGEND}; KV: bytes of bf16 over measured bytes.")
    failed = {name: count_failed(rows) for name, rows in run.samples[task].items()}
    if any(failed.values()):
        worst = max(failed, key=failed.get)
        first = next(row for row in run.samples[task][worst] if row["error"] is not None)
        parts.append(f"{failed[worst]} failed, such as {first['doc_id']}: {first['error'].rstrip('.')}.")
    if left_out := configs[0].get("left_out"):
        doc_id, why = left_out[0]
        parts.append(f"{len(left_out)} left out of the data, such as {doc_id}: {why}.")
    if speed := run.results.get("throughput"):
        parts.append(f"{speed['requests_per_second']:.2f} answers/s, {speed['avg_speed']:.1f} tokens/s.")
    return " ".join(parts)


__all__ = ["SHORT_LEGEND", "SHOWN", "caption", "shown", "table"]
