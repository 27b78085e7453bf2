"""The command line, ``python -m kvmm``: each subcommand is a module of ``kvmm.commands``."""

from __future__ import annotations

import sys

import typer

from kvmm.commands import analyze, ask, calibrate, drift, eval, plan, policies, report
from kvmm.errors import KVMMError

USER_ERROR = 2  # the exit code of everything the user can put right, usage errors included

app = typer.Typer(
    name="kvmm",
    help="Vision-language and omni models with a KV cache of one to two bits a value.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for name, module in {
    "ask": ask,
    "calibrate": calibrate,
    "drift": drift,
    "eval": eval,
    "plan": plan,
    "policies": policies,
    "report": report,
}.items():
    app.command(name, cls=getattr(module, "Command", None))(module.command)
app.add_typer(analyze.app, name="analyze", help="Figures and numbers of an analysis in a folder: PNG, HTML, JSON.")


def main() -> None:
    """Entry point: a ``KVMMError`` becomes one line on stderr and exit code 2."""
    try:
        app(prog_name="kvmm")
    except KVMMError as error:
        print(f"kvmm: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
