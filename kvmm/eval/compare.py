"""Policies of a run side by side, paired with full precision question by question."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvmm.eval.records import Run, count_failed

REFERENCES = ("bf16", "dynamic")  # full precision, in order of preference


def reference_of(policies: Sequence[str]) -> str | None:
    """The policy that others are compared with: full precision if it was run."""
    return next((name for name in REFERENCES if name in policies), None)


def pairs(run: Run, task: str, policy: str, reference: str) -> tuple[list[float], list[float]]:
    """The headline metric of the questions that both policies answered, of the policy and of the reference."""
    metric = run.metric(task)
    rows = run.samples[task]
    base = {row["doc_id"]: row[metric] for row in rows[reference] if row["error"] is None and metric in row}
    both = [
        (row[metric], base[row["doc_id"]]) for row in rows[policy] if row["error"] is None and row["doc_id"] in base
    ]
    return [a for a, _ in both], [b for _, b in both]


def table(run: Run, task: str) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    """Columns, rows and caption of the table that ``kvmm eval`` prints for a task."""
    policies = run.policies(task)
    reference = reference_of(policies)
    metric = run.metric(task)
    columns = (
        "policy",
        "n",
        metric,
        f"- {reference}" if reference else "",
        "95 % interval",
        "bits",
        "KV",
        "KV bf16",
        "ttft",
    )
    rows = []
    for name in policies:
        scores = run.scores(task, name)
        good = [row for row in run.samples[task][name] if row["error"] is None]
        rows.append(
            (
                name,
                str(len(good)),
                _percent(scores.get(metric)),
                *_difference(run, task, name, reference),
                _number(scores.get("bits_per_value"), ".2f"),
                _mib(scores.get("kv_bytes")),
                _mib(scores.get("kv_bytes_bf16")),
                _number(scores.get("ttft_s"), ".2f"),
            )
        )
    return columns, rows, caption(run, task)


def caption(run: Run, task: str) -> str:
    """What the table leaves out: failed samples, items that could not be used, speed."""
    config = next(config for config in run.results["configs"].values() if config["task"] == task)
    parts = ["Score and difference in points, memory in MiB a sample, time to the first token in seconds."]
    failed = {name: count_failed(rows) for name, rows in run.samples[task].items()}
    if any(failed.values()):
        worst = max(failed, key=failed.get)
        first = next(row for row in run.samples[task][worst] if row["error"] is not None)
        parts.append(f"{failed[worst]} failed, such as {first['doc_id']}: {first['error']}.")
    if config.get("left_out"):
        doc_id, why = config["left_out"][0]
        parts.append(f"{len(config['left_out'])} left out of the data, such as {doc_id}: {why}.")
    if speed := run.results.get("throughput"):
        parts.append(f"{speed['requests_per_second']:.2f} answers/s, {speed['avg_speed']:.1f} tokens/s.")
    return " ".join(parts)


def _difference(run: Run, task: str, policy: str, reference: str | None) -> tuple[str, str]:
    if reference is None or policy == reference:
        return "", ""
    ours, base = pairs(run, task, policy, reference)
    if not ours:
        return "", ""
    differences = [a - b for a, b in zip(ours, base, strict=True)]
    mean = sum(differences) / len(differences)
    low, high = interval(differences)
    return f"{100 * mean:+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}"


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval of the mean of paired differences."""
    n = len(differences)
    mean = sum(differences) / n
    error = math.sqrt(sum((x - mean) ** 2 for x in differences) / max(n - 1, 1) / n)
    return mean - 1.96 * error, mean + 1.96 * error


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _mib(value: float | None) -> str:
    return "" if value is None else f"{value / 2**20:.2f}"


def summary(run: Run) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Scores by task and policy, as plain values."""
    return {task: {name: run.scores(task, name) for name in run.policies(task)} for task in run.tasks}


__all__ = ["interval", "pairs", "reference_of", "summary", "table"]
