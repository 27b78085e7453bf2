"""Policies of a run side by side, paired with full precision question by question."""

from __future__ import annotations

from collections.abc import Sequence

from kvmm.eval.records import Run, count_failed
from kvmm.eval.statistics import Difference, paired_bootstrap

REFERENCES = ("bf16", "dynamic")  # full precision, in order of preference


def reference_of(policies: Sequence[str]) -> str | None:
    """The policy that others are compared with: full precision if it was run."""
    return next((name for name in REFERENCES if name in policies), None)


def difference(run: Run, task: str, policy: str, reference: str) -> Difference | None:
    """The paired difference of the headline metric over the questions that both policies answered, with a bootstrap
    interval over documents; None if there are none.
    """
    metric = run.metric(task)
    rows = run.samples[task]
    base = {row["doc_id"]: row[metric] for row in rows[reference] if row["error"] is None and metric in row}
    both = [row for row in rows[policy] if row["error"] is None and metric in row and row["doc_id"] in base]
    if not both:
        return None
    return paired_bootstrap(
        [row[metric] for row in both],
        [base[row["doc_id"]] for row in both],
        [("group", row["group"]) if row.get("group") is not None else ("own", row["doc_id"]) for row in both],
    )


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
    found = None if reference is None or policy == reference else difference(run, task, policy, reference)
    if found is None:
        return "", ""
    return f"{100 * found.mean:+.1f}", f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _mib(value: float | None) -> str:
    return "" if value is None else f"{value / 2**20:.2f}"


__all__ = ["difference", "reference_of", "table"]
