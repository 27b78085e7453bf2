"""``kvmm plan``: what a cache will take, by policy; needs no weights and no GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from kvmm.analysis.shapes import find_shape
from kvmm.commands.options import Json, Policies, complete_shape
from kvmm.errors import KVMMError

if TYPE_CHECKING:
    from kvmm.analysis.plan import PlanReport
    from kvmm.calibration import Calibration

_UNITS = {"": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "mb": 10**6, "gb": 10**9, "tb": 10**12}

ImageCount = Annotated[int, typer.Option("--images", min=0, help="Images among them.")]
ImageTokens = Annotated[int, typer.Option("--image-tokens", min=1, help="Tokens of one image.")]
AudioTokens = Annotated[int, typer.Option("--audio-tokens", min=0, help="Tokens of recordings among them.")]
VideoTokens = Annotated[int, typer.Option("--video-tokens", min=0, help="Tokens of videos among them.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Sequences, all alike.")]
Budget = Annotated[str | None, typer.Option("--budget", help="Memory for weights and cache: 24GiB, 512MiB, 80GB ...")]
CacheOnly = Annotated[bool, typer.Option("--cache-only", help="The budget is for the cache alone, without weights.")]


def command(
    model: Annotated[
        str,
        typer.Option(help="A common model by name, or a folder with config.json.", autocompletion=complete_shape),
    ],
    policy: Policies = None,
    context: Annotated[int, typer.Option(min=1, help="Tokens of one sequence, media included.")] = 32768,
    images: ImageCount = 0,
    image_tokens: ImageTokens = 1024,
    audio_tokens: AudioTokens = 0,
    video_tokens: VideoTokens = 0,
    batch: Batch = 1,
    budget: Budget = None,
    cache_only: CacheOnly = False,
    as_json: Json = False,
) -> None:
    """Plan a cache: its size by policy, and the longest context that fits a budget."""
    # Importing torch takes seconds: help and usage errors come before it.
    from kvmm.analysis.plan import PLAN_POLICIES, count_tokens, make_plan

    room = None if budget is None else parse_bytes(budget)
    tokens = count_tokens(context, {"image": images * image_tokens, "video": video_tokens, "audio": audio_tokens})
    report = make_plan(
        find_shape(model),
        policy or PLAN_POLICIES,
        tokens,
        batch=batch,
        budget=room,
        cache_only=cache_only,
        calibration=calibration_in(model),
    )
    if as_json:
        typer.echo(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        _show(report)


def parse_bytes(text: str) -> int:
    """Bytes of ``24GiB``, ``512 MiB``, ``80GB``; a bare number is GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if not found or found[2] not in _UNITS or not (nbytes := int(float(found[1]) * _UNITS[found[2]])):
        raise KVMMError(f"--budget {text!r} is no amount of memory: write 24GiB, 512MiB or 80GB.")
    return nbytes


def calibration_in(model: str) -> Calibration | None:
    """The calibration file in the model's folder, if there is one."""
    from kvmm.calibration import FILE_NAME, read_calibration

    path = Path(model) / FILE_NAME
    return read_calibration(path) if path.is_file() else None


def _show(report: PlanReport) -> None:

    shape = report.shape
    layers = f"{shape.num_layers} layers"
    if shape.num_sliding_layers:
        layers += f" and {shape.num_sliding_layers} with a window of {shape.sliding_window}"
    held = ", ".join(f"{count:,} {name}" for name, count in report.tokens.items() if count)
    title = f"{shape.name}: {layers}, {shape.num_key_value_heads} KV heads of {shape.head_dim}"
    title += f"\n{held} tokens, batch {report.batch}"
    table = Table(title=title, title_justify="left", box=None)
    for index, column in enumerate(report.columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=not index)
    for row in report.rows:
        table.add_row(*report.cells(row))
    console = Console()
    console.print(table)
    for note in report.notes:
        console.print(note, style="dim", highlight=False)
