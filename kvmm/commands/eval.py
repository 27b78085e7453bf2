"""``kvmm eval``: benchmarks under several cache policies."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from typer.core import TyperCommand

from kvmm.commands.inputs import quiet_transformers
from kvmm.commands.options import Device, Dtype, FuseValues, Model, Quiet, complete_policy
from kvmm.commands.progress import Steps
from kvmm.errors import KVMMError
from kvmm.eval.run.records import count_failed

_SAY_EVERY = 30.0  # seconds between lines on the progress where there is no terminal to draw a bar on
SEVERAL = ("--policies", "--cache", "--data")  # options that take every word up to the next option


class Command(TyperCommand):
    """Reads ``--policies bf16 rd2`` as ``--policies bf16 --policies rd2``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def spread(args: Sequence[str]) -> list[str]:
    """The arguments with every further word after an option of :data:`SEVERAL` given the option's name."""
    words: list[str] = []
    option, has_value = "", False
    for word in args:
        if word.startswith("-") and len(word) > 1:
            option, has_value = word if word in SEVERAL else "", False
        elif option and has_value:
            words.append(option)
        else:
            has_value = True
        words.append(word)
    return words


def command(
    tasks: Annotated[list[str], typer.Argument(metavar="TASK...", help="docvqa, ocrbench ...; several are possible.")],
    data: Annotated[
        list[str] | None,
        typer.Option(help="File, folder, data set id or `mini`: one for all tasks or one for each."),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            help="Presets, .yaml files or `dynamic`; the first words after it are taken.",
            autocompletion=complete_policy,
        ),
    ] = None,
    cache: Annotated[
        list[str] | None, typer.Option(help="Peers to compare with: hf-quanto, hf-hqq (2 bits), hf-quanto4, hf-hqq4.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
    split: Annotated[str | None, typer.Option(help="Part of the data; default the task's own choice.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first questions of each task.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Questions decoded together; default 8 on a GPU, 1 on a CPU.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer; default the task's.")] = None,
    question_first: Annotated[
        bool, typer.Option("--question-first", help="Read the question before the document is packed (easier).")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Start a new run, or go on with the newest one in --out.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Ask again what failed earlier in the run that goes on.")
    ] = False,
    engine: Annotated[str, typer.Option(help="local, or ray for the actors of a Ray cluster.")] = "local",
    address: Annotated[str | None, typer.Option(help="Ray cluster to join; default one on this machine.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Ray actors; default one a GPU, or one.")] = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    fuse_values: FuseValues = False,
    quiet: Quiet = False,
) -> None:
    """Answer a benchmark's questions under several policies, score them and compare.

    A stopped run goes on where it was. Several processes share the work: `accelerate launch --multi_gpu -m kvmm eval
    ...`, or `torchrun --nproc_per_node 4 -m kvmm eval ...` with or without GPUs.
    """
    if engine not in ("local", "ray"):
        raise KVMMError(f"There is no engine {engine!r}: use local or ray.")
    if engine == "local" and (address is not None or workers is not None):
        raise KVMMError("--address and --workers belong to a Ray cluster: add --engine ray, or leave them out.")
    with Steps(quiet or os.environ.get("RANK", "0") != "0") as steps:
        steps.say(f"Loading {model or 'the default model'}")
        # Importing torch takes seconds: help and usage errors come before it.
        from kvmm.eval.run import launch

        quiet_transformers()
        options = launch.EvalOptions(
            tasks=tuple(tasks),
            data=tuple(data or ()),
            policies=(*(policies or ("bf16", "balanced", "small")), *(cache or ())),
            peers=tuple(cache or ()),
            out=out,
            split=split,
            limit=limit,
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
            pack_before_question=not question_first,
            fresh=fresh,
            retry_failed=retry_failed,
            model=model,
            device=device,
            dtype=dtype,
            fuse_values=fuse_values,
            engine=engine,
            address=address,
            workers=workers,
        )
        _execute(options, steps, quiet)


def _execute(options: Any, steps: Steps, quiet: bool) -> None:
    """Run the evaluation in this process and those beside it; only the main one shows anything."""
    from kvmm.eval.run import launch

    with launch.Processes() as processes:
        if processes.is_main:
            _show(options, processes, steps, quiet)
            return
        begun = False
        try:
            for _ in launch.execute(options, processes):
                begun = True
        except KVMMError as error:
            if begun:  # until then the main process says the same
                print(f"kvmm, process {processes.rank + 1}: {error}", file=sys.stderr)
            sys.exit(2)


def _show(options: Any, processes: Any, steps: Steps, quiet: bool) -> None:
    """Run the evaluation with a progress bar on stderr; tables come on stdout, after each task."""

    from kvmm.eval.run import launch

    console = Console(stderr=True, quiet=quiet)
    said = time.monotonic()
    bar, handle = _progress(console), None
    try:
        for event in launch.execute(options, processes):
            steps.stop()  # the model is there
            bar.start()
            if isinstance(event, launch.Loaded):
                console.print(event.line, highlight=False, soft_wrap=True)
                if handle is not None:
                    bar.remove_task(handle)
                share = f", process 1 of {processes.world}" if processes.world > 1 else ""
                handle = bar.add_task(f"{event.task}{share}", total=None, rate="")
            elif isinstance(event, launch.RowWritten):
                bar.update(handle, completed=event.done, total=event.total, rate=event.rate)
                if not console.is_terminal and time.monotonic() - said > _SAY_EVERY:
                    said = time.monotonic()
                    minutes, seconds = divmod(round(event.seconds_left), 60)
                    left = f"about {minutes} min {seconds} s left"
                    console.print(f"{event.done} of {event.total}  {event.rate}  {left}", soft_wrap=True)
            else:
                bar.update(handle, visible=False)
                _report(event)
    except KeyboardInterrupt:
        steps.stop()
        console.print(f"Stopped. The same command goes on from here; the rows are in {options.out}.", soft_wrap=True)
        sys.exit(130)
    finally:
        bar.stop()


def _progress(console: Any) -> Any:

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=console.quiet or not console.is_terminal,
    )


def _report(done: Any) -> None:

    from kvmm.eval.report import compare

    console = Console()
    columns, rows, caption = compare.table(done.run, done.task)
    title = f"{done.task}, {done.run.model}, {max(map(len, done.run.samples[done.task].values()))} questions"
    table = Table(title=title, title_justify="left", box=None)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(caption, highlight=False, style="dim")
    if any(map(count_failed, done.run.samples[done.task].values())):
        console.print("The same command with --retry-failed asks again what failed.", soft_wrap=True)
    console.print(f"Results: {done.run.folder / done.run.date}_results.json", highlight=False, soft_wrap=True)


__all__ = ["Command", "command", "spread"]
