"""``kvmm plan``: the size of a cache by policy; needs no weights and no GPU."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from kvmm.analysis.cost.shapes import find_shape
from kvmm.commands.options import Json, Policies, complete_shape
from kvmm.errors import KVMMError
from kvmm.policy.files import parse_bytes

if TYPE_CHECKING:
    from kvmm.analysis.cost.plan import PlanReport
    from kvmm.calibration import Calibration

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
    from kvmm.analysis.cost.plan import PLAN_POLICIES, count_tokens, make_plan

    nbytes = None if budget is None else parse_budget(budget)
    tokens = count_tokens(context, {"image": images * image_tokens, "video": video_tokens, "audio": audio_tokens})
    report = make_plan(
        find_shape(model),
        policy or PLAN_POLICIES,
        tokens,
        batch=batch,
        budget=nbytes,
        cache_only=cache_only,
        calibration=calibration_in(model),
    )
    if as_json:
        typer.echo(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        _show(report)


def parse_budget(text: str) -> int:
    """Bytes of ``24GiB``, ``512 mib``, ``80GB``; a bare number is GiB."""
    number, unit = re.match(r"([\d.]*)\s*(.*)", text.strip(), re.DOTALL).groups()
    try:
        return parse_bytes(f"{number} {unit.upper().replace('I', 'i') or 'GiB'}")
    except KVMMError:
        raise KVMMError(f"--budget {text!r} is no amount of memory: write 24GiB, 512MiB or 80GB.") from None


def calibration_in(model: str) -> Calibration | None:
    """The calibration file in the model's folder, if there is one."""
    from kvmm.calibration import FILE_NAME, read_calibration
    from kvmm.models.loading import embedded_folder

    path = embedded_folder(model) / FILE_NAME
    return read_calibration(path) if path.is_file() else None


def _show(report: PlanReport) -> None:

    shape = report.shape
    layers = f"{shape.num_layers} layers"
    if shape.num_sliding_layers:
        layers += f" and {shape.num_sliding_layers} with a window of {shape.sliding_window}"
    counts = ", ".join(f"{count:,} {name}" for name, count in report.tokens.items() if count)
    title = f"{shape.name}: {layers}, {shape.num_key_value_heads} KV heads of {shape.head_dim}"
    title += f"\n{counts} tokens, batch {report.batch}"
    table = Table(title=title, title_justify="left", box=None)
    for index, column in enumerate(report.columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=not index)
    for row in report.rows:
        table.add_row(*report.cells(row))
    console = Console()
    console.print(table)
    for note in report.notes:
        console.print(note, style="dim", highlight=False)
