"""Run a task under several policies: write rows as they come, score at the end, resume after a crash."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import torch

from kvmm.calibration import model_fingerprint
from kvmm.errors import KVMMError
from kvmm.eval.run.records import Row, RowWriter, Run, RunFiles, count_failed, sample_hash
from kvmm.eval.run.runner import SampleRunner, Settings, answer_samples, make_settings, share_of
from kvmm.eval.tasks.base import LOWER_IS_BETTER, Sample, SampleSet, Scored, Task
from kvmm.models.caches import policy_config, resolve_policies
from kvmm.policy import KVPolicy
from kvmm.policy.calibrated import fit_digest, load_calibration

Progress = Callable[[int, int, Row], None]
"""Called after each row with the rows done (those of an earlier part of the run included), all rows, and the row."""


def run(
    model: Any,
    processor: Any,
    task: Task,
    samples: SampleSet | Sequence[Sample],
    policies: Sequence[str | Path | KVPolicy] | Mapping[str, str | KVPolicy],
    out: str | Path | RunFiles,
    *,
    model_name: str = "model",
    batch_size: int | None = None,
    max_new_tokens: int | None = None,
    pack_before_question: bool = True,
    fresh: bool = False,
    retry_failed: bool = False,
    settings: Mapping[str, Any] | None = None,
    machine: Mapping[str, Any] | None = None,
    share: tuple[int, int] = (0, 1),
    wait: Callable[[], None] = lambda: None,
    answer: Callable[..., Iterator[Row]] | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    locked: bool = False,
) -> Run:
    """Answer and score a task under several policies, and write the files of the run.

    Samples that have a row in the files are skipped, failed ones too unless ``retry_failed`` is set. The files are
    valid after every row.

    Args:
        samples: what ``task.load`` returned; a plain list when nothing was left out.
        policies: names, files or ``KVPolicy``s, or what :func:`kvmm.models.caches.resolve_policies` returned.
        out: the folder above the model's, or the files of a run that has begun.
        model_name: the name of the model's folder.
        fresh: start a run beside those that are there.
        retry_failed: ask again what could not be answered when the run was begun.
        settings: further settings of the task for the results file: ``dataset_path``, ``split``, ``limit``.
        machine: the description of the machines, when others than this one answer.
        share: which of how many processes this is; each answers its share of the documents.
        wait: returns when all processes have called it.
        answer: replaces :func:`answer_samples`; takes its arguments and yields rows.
        progress: called after every row.
        stop: once it is set, the run ends; it can be gone on with later.
        locked: the caller holds the run's lock already (:meth:`RunFiles.locked`).

    Raises:
        KVMMError: the run that is there has other settings, another process is making it, or a policy does not fit the
            model.
    """
    begin = time.perf_counter()
    if not isinstance(policies, Mapping):
        policies = resolve_policies(policies)
    files = out if isinstance(out, RunFiles) else RunFiles.open(out, model_name, fresh=fresh)
    rank, world = share
    # the processes of other ranks write files of their own
    with files.locked() if rank == 0 and not locked else contextlib.nullcontext():
        made = make_settings(model, task, batch_size, max_new_tokens, pack_before_question)
        skipped = list(getattr(samples, "skipped", ()))
        samples = list(samples)
        # what can be refused is, before anything is written
        SampleRunner(model, processor, task, policies, made)
        rows = _recorded(files, task, samples, policies, retry_failed)
        results: dict[str, Any] = {}
        if rank == 0:
            configs = _configs(model, files, task, policies, made, settings or {}, skipped)
            described = describe(model, processor, model_name, made, world)
            results = files.begin({**described, **(machine or {})}, configs)
        wait()  # all have read what is there before one adds to it
        part = files.results().get("parts", 1)
        shard = share_of(samples, rank, world)
        done = {name: set(recorded) for name, recorded in rows.items()}
        total, before = len(shard) * len(policies), sum(s.doc_id in done[name] for s in shard for name in policies)
        tell = None if progress is None else lambda count, row: progress(before + count, total, row)
        answers = (answer or answer_samples)(model, processor, task, shard, policies, **_arguments(made, done, stop))
        suffix = rank if world > 1 else None
        _write_rows(answers, files, task, policies, suffix, part, begin, tell)
        wait()
        if rank == 0:
            finish(files, task, samples, rows, results, time.perf_counter() - begin, skipped, part)
        wait()
        return _run_of(files, task, policies)


def _configs(
    model: Any,
    files: RunFiles,
    task: Task,
    policies: Mapping[str, str | KVPolicy],
    made: Settings,
    settings: Mapping[str, Any],
    skipped: Sequence[Any],
) -> dict[str, dict[str, Any]]:
    """The settings of each policy's part of a run, for the results file."""
    return {
        f"{task.name}_{name}": {
            "task": task.name,
            "policy": name,
            "metric": task.metric,
            "task_options": task.option_values(),
            "dataset_path": None,
            "split": None,
            "limit": None,
            **settings,
            "generation_kwargs": {"max_new_tokens": made.max_new_tokens, "do_sample": False, "num_beams": 1},
            "pack_before_question": made.pack_before_question,
            "policy_config": policy_config(policy),
            "calibration": _fit_of(model, policy),
            "samples_file": files.samples_path(task.name, name).name,
            "left_out": [list(one) for one in skipped],
        }
        for name, policy in policies.items()
    }


def _fit_of(model: Any, policy: str | KVPolicy) -> str | None:
    """What tells the calibration that a policy reads on a model from another one, None if it reads none."""
    return fit_digest(policy, load_calibration(model, policy)) if isinstance(policy, KVPolicy) else None


def _recorded(
    files: RunFiles, task: Task, samples: Sequence[Sample], policies: Iterable[str], retry_failed: bool
) -> dict[str, dict[str, Row]]:
    """The rows of each policy that are in the files, by ``doc_id``; with ``retry_failed`` those without an error."""
    rows = {name: files.rows(task.name, name) for name in policies}
    check_rows(files.folder, samples, rows)
    if retry_failed:
        rows = {name: {key: row for key, row in by_id.items() if not row.get("error")} for name, by_id in rows.items()}
    return rows


def _arguments(made: Settings, done: Mapping[str, Any], stop: threading.Event | None) -> dict[str, Any]:
    """Options of :func:`answer_samples`."""
    return {
        "batch_size": made.batch_size,
        "max_new_tokens": made.max_new_tokens,
        "pack_before_question": made.pack_before_question,
        "done": done,
        "stop": stop,
    }


def _write_rows(
    answers: Iterable[Row],
    files: RunFiles,
    task: Task,
    policies: Iterable[str],
    suffix: int | None,
    part: int,
    begin: float,
    tell: Callable[[int, Row], None] | None,
) -> None:
    """Write each row as it comes, then call ``tell`` with how many there are and the row.

    ``begin`` is the time at which this part of the run began.
    """
    writers = {name: RowWriter(files.samples_path(task.name, name, suffix)) for name in policies}
    try:
        for count, row in enumerate(answers, start=1):
            elapsed = round(time.perf_counter() - begin, 3)  # what a part took is known when it is killed, too
            writers[row["policy"]].write({**row, "part": part, "part_s": elapsed})
            if tell is not None:
                tell(count, row)
    finally:
        for writer in writers.values():
            writer.close()


def _run_of(files: RunFiles, task: Task, policies: Mapping[str, Any]) -> Run:
    rows = {task.name: {name: list(files.rows(task.name, name).values()) for name in policies}}
    return Run(files.folder, files.date, files.results(), rows)


def describe(model: Any, processor: Any, model_name: str, settings: Settings, world: int = 1) -> dict[str, Any]:
    """The part of the results file that is about the model and the machine."""
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else model.device.type
    return {
        "model": model_name,
        "model_args": f"pretrained={model_name},dtype={str(model.dtype).removeprefix('torch.')}",
        "model_type": model.config.model_type,
        "model_fingerprint": model_fingerprint(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": device,
        "image_processor": pixel_budget(processor),
        "batch_size": settings.batch_size,
        "processes": world,
    }


def pixel_budget(processor: Any) -> dict[str, Any] | None:
    """The settings that determine the number of tokens per image, and with it scores and bytes; None without images."""
    images = getattr(processor, "image_processor", None)
    if images is None:
        return None
    names = ("size", "min_pixels", "max_pixels", "patch_size", "merge_size", "image_grid_pinpoints")
    settings = {name: value for name in names if (value := getattr(images, name, None)) is not None}
    if is_dataclass(size := settings.get("size")):
        settings["size"] = {name: value for name, value in asdict(size).items() if value is not None}
    return json.loads(json.dumps(settings, default=str))


def check_rows(folder: Path, samples: Sequence[Sample], rows: Mapping[str, Mapping[str, Row]]) -> None:
    """Raise :class:`KVMMError` if recorded rows answer other questions than those of the same ids."""
    for sample in samples:
        for by_id in rows.values():
            row = by_id.get(sample.doc_id)
            if row is not None and row.get("doc_hash") != sample_hash(sample.question, sample.answers):
                raise KVMMError(
                    f"The run in {folder} asked something else as {sample.doc_id}: the data has changed; add "
                    "--fresh to start another run."
                )


def higher_is_better(scored: Iterable[Scored]) -> dict[str, bool]:
    """For each metric that an answer has, whether more of it is better; error rates and rejections are to be low."""
    return {metric: metric not in LOWER_IS_BETTER for one in scored for metric in one.scores}


def finish(
    files: RunFiles,
    task: Task,
    samples: Sequence[Sample],
    before: Mapping[str, Mapping[str, Row]],
    results: dict[str, Any],
    seconds: float,
    skipped: Sequence[Any] = (),
    part: int = 1,
) -> None:
    """Merge the files of all processes, score, and write the results file.

    ``before`` has the rows that each policy had when this part of the run began, its ``part``-th, which took
    ``seconds``. Parts that were killed before they came here are counted by what their rows say.
    """
    order = [sample.doc_id for sample in samples]
    by_id = {sample.doc_id: sample for sample in samples}
    answered, tokens, killed = 0, 0, {}
    counted = {part, *results.get("throughput", {}).get("parts", ())}
    for name, old_rows in before.items():
        key = f"{task.name}_{name}"
        rows = [row for row in files.merge(task.name, name, order).values() if row["doc_id"] in by_id]
        good = [row for row in rows if row["error"] is None]
        scored = []
        for row in good:
            sample, text = by_id[row["doc_id"]], row["filtered_resps"]
            known = {name: row[name] for name in task.recorded if row.get(name) is not None}
            scored.append(Scored(sample, known or task.score(sample, text), text))
        metrics: dict[str, Any] = {f"{metric},none": value for metric, value in task.aggregate(scored).items()}
        results["results"][key] = {"alias": key, "samples": len(good), **(metrics if good else {}), **means(good)}
        results["n-samples"][key] = {
            "original": len(samples) + len(skipped),
            "effective": len(good),
            "failed": count_failed(rows),
            "left_out": len(skipped),
            "recorded": len(rows),
        }
        new = [row for row in rows if row["doc_id"] not in old_rows]
        answered += len(new)
        tokens += sum(row["output_tokens"] for row in new)
        for row in rows:
            if (other := row.get("part", part)) not in counted and row["doc_id"] in old_rows:
                killed[other] = max(killed.get(other, 0.0), row["part_s"])
                answered, tokens = answered + 1, tokens + row["output_tokens"]
        results.setdefault("higher_is_better", {})[key] = higher_is_better(scored)
    tasks = dict.fromkeys(config["task"] for config in results["configs"].values())
    results["group_subtasks"] = {
        name: [key for key, config in results["configs"].items() if config["task"] == name] for name in tasks
    }
    seconds += sum(killed.values())
    results["total_evaluation_time_seconds"] = str(float(results.get("total_evaluation_time_seconds", 0)) + seconds)
    if answered:
        old = results.get("throughput", {})
        total_tokens = old.get("total_gen_tokens", 0) + tokens
        total_seconds = old.get("total_elapsed_time", 0.0) + seconds
        total_requests = old.get("total_requests", 0) + answered
        results["throughput"] = {
            "total_gen_tokens": total_tokens,
            "total_elapsed_time": total_seconds,
            "avg_speed": total_tokens / total_seconds,
            "total_requests": total_requests,
            "requests_per_second": total_requests / total_seconds,
            "parts": sorted(counted | set(killed)),
        }
    results["complete"] = all(
        results["n-samples"].get(key, {}).get("recorded", 0) + results["n-samples"].get(key, {}).get("left_out", 0)
        >= results["n-samples"].get(key, {}).get("original", 1)
        for key in results["configs"]
    )
    files.write_results(results)


_MEANS = (
    *("kv_bytes", "kv_bytes_bf16", "bits_per_value", "packed_bits_per_value"),
    *("ttft_s", "tpot_s", "output_tokens", "repetition_rate"),
)


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means of what an answer took; ``bits_per_value`` is over all bytes, not a mean of quotients."""
    mean_values = {}
    for name in _MEANS:
        values = [row[name] for row in rows if row.get(name) is not None]
        if values:
            mean_values[f"{name},none"] = sum(values) / len(values)
    if "kv_bytes,none" in mean_values:
        mean_values["bits_per_value,none"] = 16 * mean_values["kv_bytes,none"] / mean_values["kv_bytes_bf16,none"]
    return mean_values


__all__ = ["Progress", "answer_samples", "describe", "higher_is_better", "pixel_budget", "run"]
