"""``kvmm drift``: the witness tests of cache policies on your own files, or on the samples."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvmm.analysis.drift_report import DriftReport
    from kvmm.analysis.drift_run import DriftPrompt


def command(
    policy: Annotated[list[str] | None, typer.Option(help="Preset or YAML file; repeat for several.")] = None,
    image: Annotated[list[Path] | None, typer.Option(help="An image; repeat for the pages of one document.")] = None,
    pdf: Annotated[list[Path] | None, typer.Option(help="A PDF, every page of it; repeat for several.")] = None,
    audio: Annotated[Path | None, typer.Option(help="A recording.")] = None,
    text: Annotated[Path | None, typer.Option(help="A text file, instead of media.")] = None,
    question: Annotated[str | None, typer.Option(help="Asked about the media; default: what they say.")] = None,
    prefill: Annotated[int, typer.Option(min=1, help="Tokens of the text that are packed.")] = 1536,
    forced: Annotated[int, typer.Option("--continue", min=3, help="Tokens of the text that follow them.")] = 512,
    seeds: Annotated[int, typer.Option(min=0, help="Sampled answers a prompt: 0 for none, else 2 or more.")] = 2,
    temperature: Annotated[float, typer.Option(min=0.01, help="Of the sampled answers.")] = 1.0,
    refusal: Annotated[list[str] | None, typer.Option(help="An answer that counts as a refusal; repeatable.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64,
    model: Annotated[str | None, typer.Option(help="Folder or hub id; default is the embedded model.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the whole report here, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object only.")] = False,
) -> None:
    """Measure what a policy changes: logit drift, answer lengths, early stops, refusals, seeds."""
    # Importing torch takes seconds: help and usage errors come before it.
    import transformers

    from kvmm.analysis.drift_prompts import DESCRIBE, TRANSCRIBE, text_prompts
    from kvmm.analysis.drift_run import make_report, resolve_policies
    from kvmm.analysis.witness import REFUSALS
    from kvmm.errors import KVMMError
    from kvmm.models import load_model

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    given = [*(image or ()), *(pdf or ()), *([audio] if audio else [])]
    if text is not None and (given or question is not None):
        raise KVMMError("A text is continued, not asked about: give --text, or media and --question.")
    if question is not None and not given:
        raise KVMMError("There is nothing to ask about: give an --image, a --pdf or a recording with the question.")
    chosen = resolve_policies(policy or ["balanced"])
    media = _media(image or (), pdf or (), audio)
    words = _read_text(text) if text is not None else None
    network, processor = load_model(model, device=device, dtype=dtype)
    if words is not None:
        prompts = text_prompts(network, processor, words, [prefill], forced, text.name)
        source: dict[str, Any] = {"text": text.name, "prefill": prefill, "continue": forced}
    elif media:
        question = question or (TRANSCRIBE if image or pdf else DESCRIBE)
        prompts = [_prompt(network, processor, question, media)]
        source = {"files": [path.name for path in given], "question": question}
    else:
        prompts = _samples(network, processor)
        source = {"files": "samples"}
    report = make_report(
        network,
        processor,
        prompts,
        chosen,
        name=Path(model).name if model and Path(model).is_dir() else model,
        command=shlex.join(["kvmm", *sys.argv[1:]]),
        settings={**source, "seeds": seeds, "temperature": temperature, "max_new_tokens": max_new_tokens},
        answers=True,
        seeds=seeds,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        refusals=tuple(refusal or REFUSALS),
    )
    if out is not None:
        report.save(out)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        _show(report)


def _read_text(path: Path) -> str:
    from kvmm.errors import KVMMError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise KVMMError(f"{path} cannot be read as text ({reason}): name a text file.") from None


def _media(images: Sequence[Path], pdfs: Sequence[Path], audio: Path | None) -> dict[str, Any]:
    """``images`` and ``audio`` as the prompt takes them; empty without files."""
    from kvmm.media import load_audio, load_image, load_pdf

    pages = [load_image(path) for path in images] + [page for path in pdfs for page in load_pdf(path)]
    media: dict[str, Any] = {"images": pages} if pages else {}
    return media | ({"audio": load_audio(audio)} if audio is not None else {})


def _prompt(network: Any, processor: Any, question: str, media: dict[str, Any], **fields: Any) -> DriftPrompt:
    from kvmm.analysis.drift_prompts import question_prompt
    from kvmm.errors import KVMMError
    from kvmm.models import family_of

    senses = family_of(network.config).modalities
    for kind in ("images", "audio"):
        if kind in media and kind.removesuffix("s") not in senses:
            known = ", ".join(("text", *senses))
            raise KVMMError(f"This model reads {known}: leave the {kind} out or name another model.")
    return question_prompt(network, processor, question, **media, **fields)


def _samples(network: Any, processor: Any) -> list[DriftPrompt]:
    """The questions of the sample documents that the model has the senses for."""
    from kvmm.errors import KVMMError
    from kvmm.media import load_media
    from kvmm.models import family_of
    from kvmm.ui.samples import load_samples

    senses = family_of(network.config).modalities
    prompts = []
    for sample in load_samples():
        items = [item for path in sample.files for item in load_media(path)]
        if not {item.kind for item in items} <= set(senses):
            continue
        media: dict[str, Any] = {"images": [item.data for item in items if item.kind == "image"]}
        for item in items:
            if item.kind == "audio":
                media["audio"] = item.data
        prompts.append(_prompt(network, processor, sample.question, media, document=sample.files))
    if not prompts:
        raise KVMMError("There are no samples that this model can read: give --text, or media of your own.")
    return prompts


def _show(report: DriftReport) -> None:
    from rich.console import Console
    from rich.table import Table

    from kvmm.analysis.drift_report import tables

    for one in tables(report):
        table = Table(title=one.title, caption=one.caption, title_justify="left", caption_justify="left", box=None)
        for index, column in enumerate(one.columns):
            table.add_column(column, justify="right" if index else "left", no_wrap=True)
        for row in one.rows:
            table.add_row(*row)
        Console().print(table)
