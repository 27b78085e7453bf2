"""``kvmm report``: the results of ``kvmm eval`` as Markdown, HTML and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from kvmm.commands.options import Quiet
from kvmm.commands.progress import Steps
from kvmm.errors import KVMMError

if TYPE_CHECKING:
    from kvmm.eval.report.build import EvaluationReport


def command(
    results: Annotated[list[Path], typer.Argument(help="Folders that `kvmm eval --out` wrote, or results files.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the report; default the first folder of results, or its file's.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="Print only a Markdown table and write nothing: of a task, of `all`, or their `summary`."),
    ] = None,
    failures: Annotated[int, typer.Option(min=0, help="Worst failures shown for a policy.")] = 8,
    quiet: Quiet = False,
) -> None:
    """Compare the policies of finished or running evaluations.

    Writes report.md, report.html (which needs nothing else) and report.json: scores with paired differences to bf16,
    bootstrap intervals and McNemar's test, bits, times, parts, and the worst failures with their pictures.
    """
    with Steps(quiet) as steps:
        steps.say("Reading the results")
        from kvmm.eval.report.build import build_report, find_runs
        from kvmm.eval.report.pages import summary_table

        runs = [run for path in results for run in find_runs(path)]
        steps.say("Comparing the policies")
        report = build_report(runs, failures=0 if table else failures)
    if table:
        tables = [summary_table(run) for run in report.runs] if table == "summary" else _tables(report, table)
        typer.echo("\n".join(tables), nl=False)
        return
    from kvmm.eval.report.files import write_report

    folder = out or (results[0].parent if results[0].is_file() else results[0])
    files = write_report(folder, report, runs)
    _show(report)
    for path in files:
        typer.echo(str(path))


def _tables(report: EvaluationReport, name: str) -> list[str]:
    from kvmm.eval.report.pages import table_of

    tables = [table_of(run, task) for run in report.runs for task in run.tasks if name in ("all", task.task)]
    if not tables:
        task_names = ", ".join(dict.fromkeys(task.task for run in report.runs for task in run.tasks))
        raise KVMMError(f"There is no task {name} in the results: choose one of {task_names}, all or summary.")
    return tables


def _show(report: EvaluationReport) -> None:

    from kvmm.eval.report.compare import SHORT_LEGEND, shown
    from kvmm.eval.report.pages import title_of

    console = Console()
    for run in report.runs:
        for task in run.tasks:
            table = Table(title=title_of(run, task), title_justify="left", box=None)
            columns, rows = shown(task)
            for index, column in enumerate(columns):
                table.add_column(column, justify="right" if index else "left", no_wrap=True)
            for row in rows:
                table.add_row(*row)
            console.print(table)
            console.print(f"{SHORT_LEGEND}.", highlight=False, style="dim")
