"""``kvmm analyze``: figures and numbers of one prompt, or of a plan, in a folder: PNG, one HTML page, JSON."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from kvmm.analysis.cost.shapes import find_shape, shape_of
from kvmm.commands import drift as drift_command
from kvmm.commands import plan
from kvmm.commands.inputs import Given, PromptInputs, check_output, one_prompt, quiet_transformers
from kvmm.commands.options import (
    Audio,
    Device,
    Dtype,
    Images,
    MaxNewTokens,
    Model,
    Pdfs,
    Policies,
    Question,
    Quiet,
    Text,
    complete_shape,
)
from kvmm.commands.progress import Steps
from kvmm.errors import KVMMError
from kvmm.policy import get_policy

if TYPE_CHECKING:
    from kvmm.analysis.report.files import Figure, Table

Out = Annotated[Path, typer.Option("--out", help="Folder for JSON, HTML and PNG.")]
NoPng = Annotated[bool, typer.Option("--no-png", help="Leave the PNG files out; they need Chrome or Chromium.")]
Scale = Annotated[float, typer.Option("--scale", min=0.5, max=4, help="Pixels of a PNG over those on the page.")]
Layer = Annotated[int | None, typer.Option("--layer", min=0, help="Decoder layer shown in detail.")]

_ERROR_POLICIES = ("kivi2", "oscar2", "calibquant1", "rd2")

app = typer.Typer(
    help="Figures and numbers of an analysis in a folder: PNG, HTML, JSON.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("norms", no_args_is_help=True)
def norms(
    image: Images = None,
    pdf: Pdfs = None,
    audio: Audio = None,
    text: Text = None,
    question: Question = None,
    layer: Layer = None,
    head: Annotated[int, typer.Option(min=0, help="KV head shown in detail.")] = 0,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = Path("report"),
    no_png: NoPng = False,
    scale: Scale = 2.0,
    quiet: Quiet = False,
) -> None:
    """Token norms by layer, head and modality, and a layer's channels at the stages of codec oscar."""
    check_output(out, folder=True)
    with Steps(quiet) as steps:
        steps.say("Reading the files")
        from kvmm.analysis.norms.attention_map import record_attention
        from kvmm.analysis.norms.channels import record_channels
        from kvmm.analysis.norms.measure import record_norms
        from kvmm.analysis.report.pages import norm_figures, norm_tables
        from kvmm.models.conversation import model_lock

        given = Given(image or (), pdf or (), audio, text, question)
        network, processor, prompt = _load(given, model, device, dtype, steps)
        tokenizer = getattr(processor, "tokenizer", processor)
        with model_lock(network):
            steps.say("Measuring token norms")
            report = record_norms(network, prompt.inputs, tokenizer=tokenizer, attention=True)
            if layer is None:
                layer = report.summary("key")["worst_layer"]
            elif layer not in report.layers:
                raise KVMMError(
                    f"There is no layer {layer} with a cache: choose {report.layers[0]} to {report.layers[-1]}."
                )
            if head >= report.key.shape[1]:
                raise KVMMError(f"There is no KV head {head}: this model has {report.key.shape[1]}, counted from 0.")
            channels = record_channels(network, prompt.inputs, layer, tokenizer=tokenizer)
            attention = record_attention(network, prompt.inputs, layer)
        _write(
            "norms",
            f"Token norms of {_name(model)}",
            {**_origin(model, prompt), "norms": report.to_dict(), "channels": channels.to_dict()},
            norm_figures(report, channels, head, attention),
            norm_tables(report, channels),
            intro=_intro(prompt, report.modality.size),
            out=out,
            png=0 if no_png else scale,
            steps=steps,
        )


@app.command("errors", no_args_is_help=True)
def errors(
    policy: Policies = None,
    image: Images = None,
    pdf: Pdfs = None,
    audio: Audio = None,
    text: Text = None,
    question: Question = None,
    layer: Layer = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = Path("report"),
    no_png: NoPng = False,
    scale: Scale = 2.0,
    quiet: Quiet = False,
) -> None:
    """Errors of stored keys and values by channel, token and modality, and what attention makes of them."""
    check_output(out, folder=True)
    with Steps(quiet) as steps:
        steps.say("Reading the files")
        from kvmm.analysis.errors import measure_errors
        from kvmm.analysis.report.pages import error_figures, error_tables
        from kvmm.analysis.scores.measure import measure_scores
        from kvmm.models.conversation import model_lock

        chosen = [get_policy(name) for name in policy or _ERROR_POLICIES]
        given = Given(image or (), pdf or (), audio, text, question)
        network, _, prompt = _load(given, model, device, dtype, steps)
        with model_lock(network):
            steps.say("Measuring errors of keys and values")
            report = measure_errors(network, prompt.inputs, chosen)
            steps.say("Measuring attention")
            scores = measure_scores(network, prompt.inputs, chosen)
        if layer is None:
            layer = report.layers[len(report.layers) // 2]
        elif layer not in report.layers:
            raise KVMMError(
                f"There is no layer {layer} of full attention: choose {report.layers[0]} to {report.layers[-1]}."
            )
        _write(
            "errors",
            f"Errors of a quantised cache, {_name(model)}",
            {**_origin(model, prompt), "errors": report.to_dict(), "scores": scores.to_dict()},
            error_figures(report, scores, layer),
            error_tables(report, scores),
            intro=_intro(prompt, report.modality.size),
            out=out,
            png=0 if no_png else scale,
            steps=steps,
        )


@app.command("drift", no_args_is_help=True)
def drift(
    policy: Policies = None,
    image: Images = None,
    pdf: Pdfs = None,
    audio: Audio = None,
    text: Text = None,
    question: Question = None,
    prefill: drift_command.Prefill = 1536,
    forced: drift_command.Forced = 512,
    seeds: drift_command.Seeds = 2,
    temperature: drift_command.Temperature = 1.0,
    refusal: drift_command.Refusals = None,
    max_new_tokens: MaxNewTokens = 64,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = Path("report"),
    no_png: NoPng = False,
    scale: Scale = 2.0,
    quiet: Quiet = False,
) -> None:
    """What `kvmm drift` measures, with figures: logit drift over bits and along the answer, and agreement."""
    check_output(out, folder=True)
    report = drift_command.measure(
        Given(image or (), pdf or (), audio, text, question),
        policy or ["kivi4", "oscar2", "rd2", "rd1"],
        model=model,
        device=device,
        dtype=dtype,
        prefill=prefill,
        forced=forced,
        seeds=seeds,
        temperature=temperature,
        refusals=refusal,
        max_new_tokens=max_new_tokens,
        quiet=quiet,
    )
    with Steps(quiet) as steps:
        from kvmm.analysis.report.pages import drift_page

        figures, tables = drift_page(report)
        prompts = f"{report.prompts} prompt{'s' * (report.prompts != 1)}"
        title = f"Drift of {_name(model)}"
        _write(
            "drift",
            title,
            report.to_dict(),
            figures,
            tables,
            intro=f"{prompts}.",
            out=out,
            png=0 if no_png else scale,
            steps=steps,
        )


@app.command("cost", no_args_is_help=True)
def cost(
    policy: Policies = None,
    image: Images = None,
    pdf: Pdfs = None,
    audio: Audio = None,
    text: Text = None,
    question: Question = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one sequence, files included; default: 32768, or the files'.")
    ] = None,
    images: plan.ImageCount = 0,
    image_tokens: plan.ImageTokens = 1024,
    audio_tokens: plan.AudioTokens = 0,
    video_tokens: plan.VideoTokens = 0,
    batch: plan.Batch = 1,
    budget: plan.Budget = None,
    cache_only: plan.CacheOnly = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="A common model by name, a folder or a hub id; default is the embedded one.",
            autocompletion=complete_shape,
        ),
    ] = None,
    out: Out = Path("report"),
    no_png: NoPng = False,
    scale: Scale = 2.0,
    quiet: Quiet = False,
) -> None:
    """Bytes and operations by policy, for a context or for the tokens of files (which needs the model's weights)."""
    check_output(out, folder=True)
    with Steps(quiet) as steps:
        steps.say("Counting bytes and operations")
        from kvmm.analysis.cost.plan import PLAN_POLICIES, count_tokens, make_plan
        from kvmm.analysis.report.pages import cost_page
        from kvmm.models.loading import default_model

        nbytes = None if budget is None else plan.parse_budget(budget)
        given = Given(image or (), pdf or (), audio, text, question).check()
        if not given.empty and (images or audio_tokens or video_tokens):
            raise KVMMError("Tokens are counted in the files: leave --images, --audio-tokens and --video-tokens out.")
        origin: dict[str, Any] = {"command": _command()}
        if given.empty:
            shape = find_shape(model or default_model())
            counted = {"image": images * image_tokens, "video": video_tokens, "audio": audio_tokens}
            tokens = count_tokens(context or 32768, counted)
        else:
            network, _, prompt = _load(given, model, "cpu", None, steps)
            parameters = sum(parameter.numel() for parameter in network.parameters())
            shape = replace(shape_of(network.config, _name(model)), parameters=parameters)
            counts = _counts(prompt, network)
            media = {name: count for name, count in counts.items() if name != "text"}
            tokens = count_tokens(max(context or 0, sum(counts.values())), media)
            origin |= prompt.to_dict()
        report = make_plan(
            shape,
            policy or PLAN_POLICIES,
            tokens,
            batch=batch,
            budget=nbytes,
            cache_only=cache_only,
            calibration=plan.calibration_in(str(model or default_model())),
        )
        figures, tables = cost_page(report)
        title = f"Cost of a cache of {shape.name}"
        _write(
            "cost",
            title,
            {**origin, **report.to_dict()},
            figures,
            tables,
            out=out,
            png=0 if no_png else scale,
            steps=steps,
        )


def _load(
    given: Given, model: str | None, device: str | None, dtype: str | None, steps: Steps
) -> tuple[Any, Any, PromptInputs]:
    """Model, processor and the one prompt; files are read before the model is, as that may take long."""
    from kvmm.models import load_model

    quiet_transformers()
    given.check()
    media, words = given.load(), given.read_text()
    steps.say(f"Loading {_name(model)}")
    network, processor = load_model(model, device=device, dtype=dtype)
    return network, processor, one_prompt(network, processor, given, media, words)


def _counts(prompt: PromptInputs, network: Any) -> dict[str, int]:
    from kvmm.modality import MODALITY_NAMES, modality_of_ids

    codes = modality_of_ids(prompt.inputs["input_ids"], network.config)[0].tolist()
    return {name: codes.count(code) for code, name in enumerate(MODALITY_NAMES)}


def _name(model: str | None) -> str:
    from kvmm.models.loading import default_model  # imports torch

    return default_model().name if model is None else Path(model).name or model


def _command() -> str:
    return shlex.join(["kvmm", *sys.argv[1:]])


def _origin(model: str | None, prompt: PromptInputs) -> dict[str, Any]:
    return {"model": _name(model), "command": _command(), **prompt.to_dict()}


def _intro(prompt: PromptInputs, tokens: int) -> str:
    question = f", “{prompt.question}”" if prompt.question else ""
    return f"{', '.join(prompt.files)}{question}: {tokens:,} tokens."


def _write(
    name: str,
    title: str,
    report: dict[str, Any],
    figures: Sequence[Figure],
    tables: Sequence[Table],
    *,
    out: Path,
    png: float,
    steps: Steps,
    intro: str = "",
) -> None:
    """Write the files, print the tables, and say where the files are; ``png`` is the scale of pictures, 0 for none."""

    from kvmm.analysis.report.files import write_report

    steps.say("Drawing the figures")
    written = write_report(out, name, title, report, figures, intro=intro, tables=tables, png=png > 0, scale=png)
    steps.stop()
    for one in tables:
        table = RichTable(title=one.title, caption=one.caption, title_justify="left", caption_justify="left", box=None)
        for index, column in enumerate(one.columns):
            table.add_column(column, justify="right" if index else "left")
        for row in one.rows:
            table.add_row(*row)
        Console().print(table)
    pictures = f" and {len(written.png)} PNG files" if written.png else ""
    typer.echo(f"Wrote {written.html}, {written.json}{pictures}.")
    if written.note:
        typer.echo(written.note, err=True)
