"""Writing a report of evaluations to a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from kvmm.errors import KVMMError
from kvmm.eval.pictures import Picture, pictures_of, write_pictures
from kvmm.eval.records import Run
from kvmm.eval.report import EvaluationReport, load_samples
from kvmm.eval.report_pages import html_page, markdown, picture_key


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
    return paths


__all__ = ["write_report"]
