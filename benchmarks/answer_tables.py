"""What the committed reports of the mini sets say, put where it is shown.

python -m benchmarks.answer_tables      # the tables in docs/ and README.md, and docs/figures/scores.png

A ``report.json`` is what ``kvmm report`` wrote of a run (:mod:`benchmarks.mini_report`); the figure needs Chrome or
Chromium.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from benchmarks.mini_report import REPORTS, combined_run, digest
from kvmm.analysis.plots import score_by_bits
from kvmm.analysis.report.files import write_png
from kvmm.eval.report.build import PolicyResult, RunResult, TaskResult
from kvmm.eval.report.pages import markdown_table, summary_of
from kvmm.eval.report.statistics import Difference

ROOT = Path(__file__).resolve().parents[1]
VARIANTS = ROOT / "benchmarks" / "results" / "mini_variants" / "report.json"  # of rd
STREAMED = ROOT / "benchmarks" / "results" / "mini_streamed" / "report.json"  # of rd in a stream
AT_REST = ROOT / "benchmarks" / "results" / "mini_at_rest" / "report.json"  # of files as small as a twelfth
FIGURE = ROOT / "docs" / "figures" / "scores.png"
SHORT = ("bf16", "kivi2", "oscar4-2", "balanced", "small")  # the README's rows
BEGIN, END = "<!-- python -m benchmarks.answer_tables: begin -->", "<!-- end -->"
BEGIN_VARIANTS = "<!-- python -m benchmarks.answer_tables variants: begin -->"
BEGIN_STREAMED = "<!-- python -m benchmarks.answer_tables streamed: begin -->"
BEGIN_AT_REST = "<!-- python -m benchmarks.answer_tables at rest: begin -->"
LOST = 0.1  # of the score: policies that lose more are not in the figure
_SOURCE = "report.json"  # what the figure was drawn of, in its metadata


def committed_run(*paths: Path) -> RunResult:
    """The run of the reports, with what tables and figures read of it; what it is too old to have is None."""
    values = combined_run(paths or REPORTS)
    tasks = tuple(
        _made(TaskResult, task, policies=tuple(map(_policy, task["policies"])), failures=()) for task in values["tasks"]
    )
    return _made(RunResult, values, tasks=tasks)


def _policy(values: dict[str, Any]) -> PolicyResult:
    difference = values["difference"]
    return _made(PolicyResult, values, difference=None if difference is None else _made(Difference, difference))


def _made(kind: type, values: dict[str, Any], **instead: Any) -> Any:
    return kind(**{one.name: values.get(one.name) for one in fields(kind)} | instead)


def table(run: RunResult, policies: tuple[str, ...] | None = None) -> str:
    """Markdown of a run's summary, of some policies or of all."""
    columns, rows = summary_of(run)
    return markdown_table(columns, [row for row in rows if policies is None or row[0] in policies])


def marked(text: str, begin: str = BEGIN) -> str:
    """What stands between the marks of a page.

    Raises:
        ValueError: unless there is exactly one pair of marks.
    """
    (found,) = re.findall(f"{re.escape(begin)}\n(.*?){re.escape(END)}", text, re.DOTALL)
    return found


def drawn_of(path: Path = FIGURE) -> str:
    """The digest of the reports that :func:`draw` has put into a figure."""
    with Image.open(path) as picture:
        return picture.text.get(_SOURCE, "")


def draw(run: RunResult, path: Path = FIGURE) -> None:
    """The first task's scores over measured bits."""
    task = run.tasks[0]
    best = task.policy(task.reference).score
    shown = tuple(one for one in task.policies if (one.score or 0) > best - LOST)
    figure = score_by_bits(replace(task, policies=shown)).update_layout(paper_bgcolor="white", plot_bgcolor="white")
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "scores.png"
        if missing := write_png([figure], [raw], scale=1.5):
            raise SystemExit(missing)
        picture = Image.open(raw).convert("RGB").quantize(128, dither=Image.Dither.NONE)
        info = PngInfo()
        info.add_text(_SOURCE, digest())
        picture.save(path, optimize=True, pnginfo=info)


def main() -> None:
    run = committed_run()
    variants, streamed, at_rest = (committed_run(path) for path in (VARIANTS, STREAMED, AT_REST))
    for page, begin, shown in (
        ("docs/results.md", BEGIN, table(run)),
        ("README.md", BEGIN, table(run, SHORT)),
        ("docs/results.md", BEGIN_VARIANTS, table(variants)),
        ("docs/results.md", BEGIN_STREAMED, table(streamed)),
        ("docs/python.md", BEGIN_AT_REST, table(at_rest)),
    ):
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        old = f"{begin}\n{marked(text, begin)}{END}"
        path.write_text(text.replace(old, f"{begin}\n{shown}{END}"), encoding="utf-8")
        print(page)
    draw(run)
    print(FIGURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
