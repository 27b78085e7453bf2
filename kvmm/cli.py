"""The command line, ``python -m kvmm``: each subcommand is a module of ``kvmm.commands``, imported when it is named."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from kvmm import __version__
from kvmm.errors import KVMMError

USER_ERROR = 2  # the exit code of everything the user can put right, usage errors included

# What ``kvmm --help`` says of them: the first lines of their docstrings, without importing the modules.
COMMANDS = {
    "app": "Open the browser app: ask, compare, and see what the cache holds.",
    "ask": "Ask about pictures, documents, texts, recordings and videos.",
    "calibrate": "Fit transforms, bits and code books to a model, once; policies such as rd2 then use the file.",
    "drift": "Measure what a policy changes: logit drift, answer lengths, early stops, refusals, seeds.",
    "eval": "Answer a benchmark's questions under several policies, score them and compare.",
    "plan": "Plan a cache: its size by policy, and the longest context that fits a budget.",
    "policies": "List the cache policies by tier, one line each: name, what it costs, what it is.",
    "serve": "Serve the model to OpenAI clients: documents are read once and packed, answers are generated together.",
    "report": "Compare the policies of finished or running evaluations.",
    "analyze": "Figures and numbers of an analysis in a folder: PNG, HTML, JSON.",
}


class Commands(TyperGroup):
    """Shows the table above, and imports a command only to run it or to complete its options."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if found is not None else None, rest


def load_command(name: str) -> Any:
    """The click command ``name`` of :data:`COMMANDS`: its module's ``app``, or its function ``command``."""
    module = importlib.import_module(f"kvmm.commands.{name}")
    group = getattr(module, "app", None)
    if group is None:
        group = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        group.command(
            name, cls=getattr(module, "Command", None), no_args_is_help=getattr(module, "NEEDS_INPUT", False)
        )(module.command)
    found = get_command(group)
    found.name = name
    return found


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvmm {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="kvmm",
    cls=Commands,
    help="Vision-language and omni models with a KV cache of one to two bits a value.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""


def _place(name: str, line: str) -> None:
    """An entry of the help; :class:`Commands` runs the module in its stead."""

    @app.command(name, help=line)
    def place() -> None: ...


for _name, _line in COMMANDS.items():
    _place(_name, _line)


def run(args: Sequence[str] | None = None, command: str | None = None, prog_name: str = "kvmm") -> int:
    """Run the command line; returns its exit code.

    Args:
        args: its words; None for this process's.
        command: a command of :data:`COMMANDS` that is run by itself, without its name among ``args``.
        prog_name: how the program was called, for its help.
    """
    program = get_command(app) if command is None else load_command(command)
    try:
        program.main(None if args is None else list(args), prog_name=prog_name)
    except KVMMError as error:
        print(f"kvmm: {error}", file=sys.stderr)
        return USER_ERROR
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        raise
    return 0


def main() -> None:
    """Entry point: a ``KVMMError`` becomes one line on stderr and exit code 2."""
    sys.exit(run())
