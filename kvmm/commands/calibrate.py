"""``kvmm calibrate``: fit the codecs that take a calibration file to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    out: Annotated[Path, typer.Option(help="The file to write, ending in .safetensors.")],
    model: Annotated[str | None, typer.Option(help="Folder or hub id; default is the embedded model.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Questions as JSON lines (images, audio, question, answers), or a text file for a text-only model; "
            "default is the shipped samples."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use so many examples, spread over the data.")] = None,
    gradients: Annotated[
        bool,
        typer.Option(help="Weigh errors by the loss they cause; --no-gradients needs less memory and fits less well."),
    ] = True,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    seed: Annotated[int, typer.Option(help="Of labels and vectors drawn.")] = 0,
) -> None:
    """Fit transforms, bits and code books to a model, once; policies such as rd2 then use the file."""
    from kvmm.errors import KVMMError

    if out.suffix != ".safetensors":
        raise KVMMError(f"--out {out}: calibration files end in .safetensors.")
    if not out.resolve().parent.is_dir():
        raise KVMMError(f"--out {out}: the folder {out.parent} does not exist; make it first.")
    if data is not None and not data.is_file():
        raise KVMMError(f"--data {data}: no such file.")

    import transformers
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from kvmm.analysis.drift_prompts import read_lines, shortened
    from kvmm.calibration.fit import calibrate, examples_of_lines, examples_of_samples, examples_of_text
    from kvmm.models import load_model

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if data is None:
        from kvmm.ui.samples import load_samples

        examples = examples_of_samples((sample.files, sample.question) for sample in load_samples())
    elif data.suffix == ".jsonl":
        examples = examples_of_lines(read_lines(data))
    else:
        examples = None
    loaded, processor = load_model(model, device=device, dtype=dtype)
    if examples is None:
        try:
            examples = examples_of_text(processor, data.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise KVMMError(f"--data {data} is not text; give .jsonl questions or a UTF-8 text.") from None
    examples = shortened(examples, limit)
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task("", total=len(examples))
        steps = calibrate(
            loaded,
            processor,
            examples,
            gradients=gradients,
            name=model or "embedded",
            data=data.name if data else "samples",
            seed=seed,
        )
        for step in steps:
            if isinstance(step, int):
                progress.update(task, completed=step)
    step.save(out)
    size = out.stat().st_size / 2**20
    typer.echo(f"{out}: {step.metadata['examples']} examples, {len(step.tensors)} tensors, {size:.1f} MiB")
