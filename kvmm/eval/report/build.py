"""The results of a run of ``kvmm eval``: each policy against full precision, paired by question.

:func:`build_report` reads runs and computes; ``kvmm.eval.report.pages`` makes Markdown and HTML of the result.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kvmm.errors import KVMMError, one_line
from kvmm.eval.report.statistics import Difference, McNemar, holm, mcnemar, paired_bootstrap
from kvmm.eval.run.records import Row, Run, count_failed, read_run

FORMAT = "kvmm evaluation report"
FORMAT_VERSION = 1
REFERENCES = ("bf16", "dynamic")  # full precision, in order of preference
FAILURES = 8  # worst failures shown for a policy
RIGHT = 0.5  # a score from here on counts as right where the metric has no yes or no
_MEANS = (
    *("kv_bytes", "kv_bytes_bf16", "packed_bits_per_value"),
    *("ttft_s", "tpot_s", "output_tokens", "repetition_rate"),
)


@dataclass(frozen=True)
class PolicyResult:
    """One policy on one task; means are over the answered questions, None where nothing was measured.

    Attributes:
        score: the headline metric.
        answered, failed: questions with an answer, and with an error instead.
        bits_per_value: of the whole cache; packed_bits_per_value: of its packed pages alone.
        kv_ratio: bytes of the cache in bf16 over those measured.
        difference: paired, to the reference, of the task's ``paired_metric``; None for the reference itself.
        p_holm: McNemar's p-value, adjusted for the number of policies of the task.
        parts: scores by type or group, named as the task names them.
        failures: the doc_ids that the reference answers right and this policy wrong, worst first.
    """

    policy: str
    score: float | None
    answered: int
    failed: int
    bits_per_value: float | None
    packed_bits_per_value: float | None
    kv_ratio: float | None
    kv_bytes: float | None
    ttft_s: float | None
    tpot_s: float | None
    output_tokens: float | None
    repetition_rate: float | None
    difference: Difference | None = None
    mcnemar: McNemar | None = None
    p_holm: float | None = None
    parts: Mapping[str, float] | None = None
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """A question that the reference answers right: the answers of all policies that are wrong, by policy."""

    doc_id: str
    question: str
    target: tuple[str, ...]
    reference_answer: str
    answers: Mapping[str, str]


@dataclass(frozen=True)
class TaskResult:
    """All policies on one task, in the order in which they were run.

    Attributes:
        metric: the headline metric.
        paired_metric: what differences are of; another one where the headline has no value for one question.
        reference: the policy of full precision, or None if it was not run.
        clusters: whether questions of one document were resampled together.
        data: where the questions come from.
        left_out: how many items of the data could not be used.
        failures: the questions that the policies' ``failures`` name.
    """

    task: str
    metric: str
    paired_metric: str | None
    reference: str | None
    clusters: bool
    data: str
    left_out: int
    policies: tuple[PolicyResult, ...]
    failures: tuple[Failure, ...] = ()

    def policy(self, name: str) -> PolicyResult:
        """The result of one policy."""
        return next(one for one in self.policies if one.policy == name)


@dataclass(frozen=True)
class RunResult:
    """One run: a model under its settings."""

    model: str
    date: str
    device: str
    dtype: str
    git_hash: str | None
    versions: Mapping[str, Any]
    complete: bool
    batch_size: int
    seconds: float | None
    tasks: tuple[TaskResult, ...]


@dataclass(frozen=True)
class EvaluationReport:
    """Runs of one or several models."""

    runs: tuple[RunResult, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, for JSON."""
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **_plain(asdict(self))}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


# --------------------------------------------------------------------------------------------------------------------
# Reading


def find_runs(path: str | Path) -> list[Run]:
    """The newest run of every model below ``path``, or the one that a results file or a model's folder means.

    Raises:
        KVMMError: there is no run, or a file of it cannot be read.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise KVMMError(f"{path} does not exist: give the folder that `kvmm eval --out` wrote.")
    if path.is_file() and not path.name.endswith("_results.json"):
        raise KVMMError(f"{path} is no results file: give a ..._results.json, or the folder that holds it.")
    below = () if path.is_file() or any(path.glob("*_results.json")) else path.glob("*/*_results.json")
    folders = sorted({file.parent for file in below if file.name[0] != "."})
    return [_checked_run(folder) for folder in folders or [path]]


def _checked_run(path: Path) -> Run:
    """Read a run; :class:`KVMMError` for a results file of another program, or one without a single answer."""
    try:
        run = read_run(path)
        if not all({"task", "policy", "metric"} <= set(one) for one in run.results["configs"].values()):
            raise KeyError("metric")
    except (AttributeError, KeyError, TypeError):
        raise KVMMError(f"{path} holds results that `kvmm eval` did not write: give another folder.") from None
    if not any(rows for policies in run.samples.values() for rows in policies.values()):
        raise KVMMError(f"The run {run.date} in {run.folder} has no answers: its samples files are missing or empty.")
    return run


# --------------------------------------------------------------------------------------------------------------------
# Computing


def build_report(runs: Sequence[Run], *, failures: int = FAILURES) -> EvaluationReport:
    """Compute the report of some runs; ``failures`` is how many of the worst a policy shows.

    Raises:
        KVMMError: a file of a run does not hold what ``kvmm eval`` writes.
    """
    results = []
    for run in runs:
        try:
            results.append(_run_result(run, failures))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = one_line(f"{type(error).__name__}: {error}")
            raise KVMMError(
                f"The files of run {run.date} in {run.folder} are damaged ({reason}): run it anew."
            ) from error
    return EvaluationReport(tuple(results))


def _run_result(run: Run, failures: int) -> RunResult:
    config = run.results.get("config", {})
    seconds = run.results.get("total_evaluation_time_seconds")
    return RunResult(
        model=run.model,
        date=run.date,
        device=str(config.get("device", "")),
        dtype=str(config.get("dtype", "")),
        git_hash=run.results.get("git_hash"),
        versions={k: v for k, v in run.results.get("versions", {}).items() if isinstance(v, str)},
        complete=bool(run.results.get("complete", False)),
        batch_size=int(config.get("batch_size") or 1),
        seconds=None if seconds is None else float(seconds),
        tasks=tuple(task_result(run, task, failures) for task in run.tasks if any(run.samples[task].values())),
    )


def reference_of(policies: Sequence[str]) -> str | None:
    """The policy that others are compared with: full precision if it was run."""
    return next((name for name in REFERENCES if name in policies), None)


def task_result(run: Run, task: str, failures: int = FAILURES) -> TaskResult:
    """All policies of a run on one task that has rows; ``failures`` as for :func:`build_report`."""
    names = [name for name in run.policies(task) if run.samples[task][name]]
    reference = reference_of(names)
    config = run.config(task, names[0])
    metric = run.metric(task)
    paired = _paired_metric(run, task, metric, names)
    good = {name: {row["doc_id"]: row for row in run.samples[task][name] if row["error"] is None} for name in names}
    results, asked = [], {}
    for name in names:
        result = _policy_result(run, task, name, metric, list(good[name].values()))
        if reference is not None and name != reference and paired is not None:
            both = [
                key for key in good[reference] if key in good[name] and _scored(good, (reference, name), key, paired)
            ]
            result = _compared(result, good[reference], good[name], both, paired, failures)
            for key in result.failures:
                asked[key] = None
        results.append(result)
    tested = [one for one in results if one.mcnemar is not None]
    adjusted = holm([one.mcnemar.p_value for one in tested])
    by_policy = {one.policy: p for one, p in zip(tested, adjusted, strict=True)}
    return TaskResult(
        task=task,
        metric=metric,
        paired_metric=paired,
        reference=reference,
        clusters=any(row.get("group") is not None for rows in good.values() for row in rows.values()),
        data=str(config.get("dataset_path") or ""),
        left_out=len(config.get("left_out") or ()),
        policies=tuple(replace(one, p_holm=by_policy.get(one.policy)) for one in results),
        failures=tuple(_failure(key, good, reference, paired) for key in asked),
    )


def _paired_metric(run: Run, task: str, metric: str, names: Sequence[str]) -> str | None:
    """The headline metric, or where it is only one of all answers (CIDEr) the first that answers have and that is to be
    high: what is right, and what is lost, is read from it.
    """
    rows = [row for name in names for row in run.samples[task][name] if row["error"] is None]
    if any(metric in row for row in rows):
        return metric
    named = run.results.get("higher_is_better", {}).values()
    high = [one for per_task in named for one, higher in per_task.items() if higher]
    return next((one for one in high if any(one in row for row in rows)), None)


def _scored(good: Mapping[str, Mapping[str, Row]], names: Sequence[str], key: str, metric: str) -> bool:
    return all(metric in good[name][key] for name in names)


def _group(row: Row) -> Hashable:
    """The document of a question, or what tells it from all others."""
    return ("group", row["group"]) if row.get("group") is not None else ("own", row["doc_id"])


def _policy_result(run: Run, task: str, name: str, metric: str, rows: Sequence[Row]) -> PolicyResult:
    # a run that went on with a smaller --limit, or was killed since, has scores of fewer answers than there are
    scores = run.scores(task, name) if run.num_scored(task, name) in (None, len(rows)) else {}
    means = {key: _mean([row.get(key) for row in rows]) for key in _MEANS}
    measured = means["kv_bytes"] and means["kv_bytes_bf16"]
    headline = scores.get(metric, _mean([row.get(metric) for row in rows]))
    return PolicyResult(
        policy=name,
        score=headline,
        answered=len(rows),
        failed=count_failed(run.samples[task][name]),
        bits_per_value=16 * means["kv_bytes"] / means["kv_bytes_bf16"] if measured else None,
        packed_bits_per_value=means["packed_bits_per_value"],
        kv_ratio=means["kv_bytes_bf16"] / means["kv_bytes"] if measured else None,
        **{key: means[key] for key in ("kv_bytes", "ttft_s", "tpot_s", "output_tokens", "repetition_rate")},
        parts={key.split("/", 1)[1]: value for key, value in scores.items() if key.startswith(f"{metric}/")},
    )


def _mean(values: Sequence[Any]) -> float | None:
    numbers = [float(value) for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def is_right(row: Row, metric: str) -> bool:
    """Whether an answer counts as right: an exact match where that is scored, else a score of at least one half."""
    return float(row.get("exact_match", row[metric])) >= RIGHT


def _compared(
    result: PolicyResult,
    base: Mapping[str, Row],
    rows: Mapping[str, Row],
    both: Sequence[str],
    metric: str,
    failures: int,
) -> PolicyResult:
    """``result`` with the paired difference, the test, and the worst failures, over the questions of ``both``."""
    if not both:
        return result
    ours, theirs = [float(rows[key][metric]) for key in both], [float(base[key][metric]) for key in both]
    right, right_base = [is_right(rows[key], metric) for key in both], [is_right(base[key], metric) for key in both]
    lost = [i for i in range(len(both)) if right_base[i] and not right[i]]
    lost.sort(key=lambda i: (ours[i] - theirs[i], i))
    return replace(
        result,
        difference=paired_bootstrap(ours, theirs, [_group(base[key]) for key in both]),
        mcnemar=mcnemar(right, right_base),
        failures=tuple(both[i] for i in lost[:failures]),
    )


def _failure(key: str, good: Mapping[str, Mapping[str, Row]], reference: str, metric: str) -> Failure:
    row = good[reference][key]
    answers = {name: rows[key] for name, rows in good.items() if key in rows and metric in rows[key]}
    return Failure(
        doc_id=key,
        question=str((row.get("metadata") or {}).get("question") or row.get("input") or ""),
        target=tuple(str(answer) for answer in row.get("target") or ()),
        reference_answer=str(row.get("filtered_resps", "")),
        answers={k: str(v.get("filtered_resps", "")) for k, v in answers.items() if not is_right(v, metric)},
    )


__all__ = [
    "EvaluationReport",
    "Failure",
    "PolicyResult",
    "RunResult",
    "TaskResult",
    "build_report",
    "find_runs",
    "is_right",
    "reference_of",
    "task_result",
]
