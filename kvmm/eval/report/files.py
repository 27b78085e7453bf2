"""Writing a report of evaluations to a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from kvmm.errors import KVMMError, one_line
from kvmm.eval.report.build import EvaluationReport
from kvmm.eval.report.pages import html_page, markdown, picture_key
from kvmm.eval.report.pictures import Picture, pictures_of, write_pictures
from kvmm.eval.run.records import Run, sample_hash
from kvmm.eval.tasks import Sample, recorded_task


def write_report(folder: str | Path, report: EvaluationReport, runs: Sequence[Run]) -> tuple[Path, Path, Path]:
    """Write ``report.md`` with ``pictures/``, ``report.html`` and ``report.json``; returns the three paths.

    ``runs`` are those that ``report`` was built of, in the same order: the pictures of failures come from their data.

    Raises:
        KVMMError: the folder cannot be written to.
    """
    folder = Path(folder)
    pictures: dict[tuple[str, str, str], list[Picture]] = {}
    for result, run in zip(report.runs, runs, strict=True):
        for task in result.tasks:
            samples = load_samples(run, task.task) if task.failures else {}
            for one in task.failures:
                if one.doc_id in samples:
                    pictures[picture_key(result, task, one)] = pictures_of(samples[one.doc_id])
    paths = tuple(folder / f"report.{ending}" for ending in ("md", "html", "json"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = write_pictures(folder, pictures)
        paths[0].write_text(markdown(report, written), encoding="utf-8")
        paths[1].write_text(html_page(report, written), encoding="utf-8")
        text = json.dumps(report.to_dict(), ensure_ascii=False, allow_nan=False, indent=1)
        paths[2].write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise KVMMError(f"{folder} cannot be written to ({error.strerror}): name another folder with --out.") from None
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        dates = ", ".join(f"{run.date} in {run.folder}" for run in runs)
        reason = one_line(f"{type(error).__name__}: {error}")
        raise KVMMError(f"The files of run {dates} hold what is no score ({reason}): run it anew.") from error
    return paths


def load_samples(run: Run, task: str) -> dict[str, Sample]:
    """The questions of a task by doc_id, for their pictures; empty when the data is not on this machine.

    Nothing is fetched: data that was named by an id is not loaded again. Questions that have changed are left out.
    """
    config = run.config(task, run.policies(task)[0])
    try:
        named_task = recorded_task(task, config.get("task_options"))
        source = config.get("dataset_path") or named_task.default_source
        if source is None or not (source in ("mini", named_task.default_source) or Path(source).expanduser().exists()):
            return {}
        samples = named_task.load(source, split=config.get("split"))
    except (KVMMError, TypeError, ValueError, AttributeError, OSError):
        return {}
    asked = {row["doc_id"]: row.get("doc_hash") for rows in run.samples[task].values() for row in rows}
    return {s.doc_id: s for s in samples if asked.get(s.doc_id) == sample_hash(s.question, s.answers)}


__all__ = ["load_samples", "write_report"]
