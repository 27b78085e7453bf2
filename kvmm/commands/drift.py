"""``kvmm drift``: compare the answers of cache policies with full precision, on your own files or on the samples."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kvmm.commands.inputs import Given, check_modalities, check_output, quiet_transformers, sample_media
from kvmm.commands.options import (
    Audio,
    Device,
    Dtype,
    FuseValues,
    Images,
    Json,
    Model,
    Pdfs,
    Policies,
    Question,
    Quiet,
    Text,
)
from kvmm.commands.progress import Steps
from kvmm.errors import KVMMError

if TYPE_CHECKING:
    from kvmm.analysis.drift.report import DriftReport
    from kvmm.analysis.drift.run import DriftPrompt
    from kvmm.analysis.drift.tool_calls import SchemaIntegrity
    from kvmm.models.forced_text import PositionDrift

Prefill = Annotated[int, typer.Option("--prefill", min=1, help="Tokens of the text that are packed.")]
Forced = Annotated[int, typer.Option("--continue", min=3, help="Tokens of the text that follow them.")]
Seeds = Annotated[int, typer.Option("--seeds", min=0, help="Sampled answers a prompt: 0 for none, else 2 or more.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0.01, help="Of the sampled answers.")]
Refusals = Annotated[
    list[str] | None, typer.Option("--refusal", help="How an answer begins that counts as a refusal; repeatable.")
]
Tools = Annotated[
    Path | None,
    typer.Option(
        "--tools",
        metavar="FILE.json",
        help="Also ask for tool calls: JSON Schemas of tools, and requests (witness W8).",
    ),
]
AnswerTokens = Annotated[  # kvmm.analysis.drift.tool_run.MAX_NEW_TOKENS of a call
    int, typer.Option("--max-new-tokens", min=1, help="Longest answer, in tokens; of tool calls always 96.")
]

NEEDS_INPUT = True  # it measures for minutes: not by accident


def command(
    policy: Policies = None,
    image: Images = None,
    pdf: Pdfs = None,
    audio: Audio = None,
    text: Text = None,
    question: Question = None,
    prefill: Prefill = 1536,
    forced: Forced = 512,
    seeds: Seeds = 2,
    temperature: Temperature = 1.0,
    refusal: Refusals = None,
    tools: Tools = None,
    max_new_tokens: AnswerTokens = 64,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    fuse_values: FuseValues = False,
    out: Annotated[Path | None, typer.Option(help="Write the whole report here, as JSON.")] = None,
    verdicts: Annotated[Path | None, typer.Option(help="Write the witnesses' verdicts here, as JSON.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure what a policy changes: logit drift, answer lengths, early stops, refusals, seeds.

    On your own files, or on the samples where only a policy is named; minutes either way.
    """
    check_output(out, folder=False)
    check_output(verdicts, folder=False)
    if out is not None and verdicts is not None and out.resolve() == verdicts.resolve():
        raise KVMMError(f"--out and --verdicts both name {out}: name two files.")
    positions: dict[str, PositionDrift] = {}
    calls: dict[str, SchemaIntegrity] = {}
    report = measure(
        Given(image or (), pdf or (), audio, text, question),
        policy or ["balanced"],
        model=model,
        device=device,
        dtype=dtype,
        fuse_values=fuse_values,
        prefill=prefill,
        forced=forced,
        seeds=seeds,
        temperature=temperature,
        refusals=refusal,
        tools=tools,
        max_new_tokens=max_new_tokens,
        quiet=quiet or as_json,
        collected=positions,
        called=calls,
    )
    if as_json:
        typer.echo(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        show(report, positions, calls)
    if verdicts is not None:
        from kvmm.analysis.drift import witnesses

        witnesses.save_verdicts(witnesses.verdicts(report, positions, calls), verdicts)
    if out is not None:
        report.save(out)


def measure(
    given: Given,
    policies: Sequence[str],
    *,
    model: str | None,
    device: str | None,
    dtype: str | None,
    prefill: int,
    forced: int,
    seeds: int,
    temperature: float,
    refusals: Sequence[str] | None,
    max_new_tokens: int,
    quiet: bool,
    fuse_values: bool = False,
    tools: Path | None = None,
    collected: dict[str, PositionDrift] | None = None,
    called: dict[str, SchemaIntegrity] | None = None,
) -> DriftReport:
    """The report of a command line, on a text, on media, or on the samples. Raises ``KVMMError`` for wrong input.

    ``collected`` takes the positions of every policy, ``called`` what became of the tool calls of ``tools``.
    """
    with Steps(quiet) as steps:
        steps.say("Reading the files")
        # Importing torch takes seconds: help and usage errors come before it.
        from kvmm.analysis.drift.run import make_report
        from kvmm.analysis.drift.tool_run import read_tools, run_tools
        from kvmm.models import load_model
        from kvmm.models.caches import resolve_policies

        given.check()
        chosen = resolve_policies(policies, transformers_caches=False)
        media, words = given.load(), given.read_text()
        asked = None if tools is None else read_tools(tools)
        steps.say(f"Loading {model or 'the default model'}")
        quiet_transformers()
        network, processor = load_model(model, device=device, dtype=dtype, fuse_values=fuse_values)
        prompts, source = _prompts(network, processor, given, media, words, prefill, forced)
        names = ", ".join(chosen)
        if asked is not None:
            source["tools"] = tools.name
            say = f"Calling tools with {names}"
            found = run_tools(
                network, processor, asked, chosen, progress=lambda done, total: steps.say(say, done, total)
            )
            if called is not None:
                called |= found
        steps.say(f"Measuring {names}")
        return make_report(
            network,
            processor,
            prompts,
            chosen,
            name=Path(network.name_or_path).name if model is None or Path(model).is_dir() else model,
            command=shlex.join(["kvmm", *sys.argv[1:]]),
            settings={**source, "seeds": seeds, "temperature": temperature, "max_new_tokens": max_new_tokens},
            answers=True,
            seeds=seeds,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            refusals=tuple(refusals or ()),
            collected=collected,
            progress=lambda done, total: steps.say(f"Measuring {names}", done, total),
        )


def _prompts(
    network: Any,
    processor: Any,
    given: Given,
    media: dict[str, Any],
    words: str | None,
    prefill: int,
    forced: int,
) -> tuple[list[DriftPrompt], dict[str, Any]]:
    """The prompts of the files, or of the samples without any, and what a report says of their origin."""
    from kvmm.analysis.drift.prompts import text_prompts

    if words is not None:
        prompts = text_prompts(network, processor, words, [prefill], forced, given.text.name)
        return prompts, {"text": given.text.name, "prefill": prefill, "continue": forced}
    if media:
        prompts = [_prompt(network, processor, given.asked(), media)]
        return prompts, {"files": [path.name for path in given.media], "question": given.asked()}
    prompts = [
        _prompt(network, processor, sample.question, sample_inputs, document=sample.files)
        for sample, sample_inputs in sample_media(network)
    ]
    return prompts, {"files": "samples"}


def _prompt(network: Any, processor: Any, question: str, media: dict[str, Any], **fields: Any) -> DriftPrompt:
    from kvmm.analysis.drift.prompts import question_prompt

    check_modalities(network, media)
    return question_prompt(network, processor, question, **media, **fields)


def show(
    report: DriftReport,
    positions: Mapping[str, PositionDrift] | None = None,
    calls: Mapping[str, SchemaIntegrity] | None = None,
) -> None:
    """Print its tables, and with ``positions`` the verdicts of the witnesses, W8 with ``calls``."""
    from kvmm.analysis.drift.report import tables
    from kvmm.analysis.drift.witnesses import lines, witnesses

    for one in tables(report):
        table = Table(title=one.title, caption=one.caption, title_justify="left", caption_justify="left", box=None)
        for index, column in enumerate(one.columns):
            table.add_column(column, justify="right" if index else "left", no_wrap=True)
        for row in one.rows:
            table.add_row(*row)
        Console().print(table)
    for one in report.policies if positions else ():
        Console().print(
            f"Witnesses of {one.policy}",
            *lines(witnesses(one, positions[one.policy], (calls or {}).get(one.policy))),
            sep="\n",
            markup=False,
        )
