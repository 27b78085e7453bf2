"""``kvmm calibrate``: fit the codecs that take a calibration file to a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvmm.commands.inputs import quiet_transformers
from kvmm.commands.options import Device, Dtype, FuseValues, Model, Quiet
from kvmm.commands.progress import Steps
from kvmm.errors import KVMMError
from kvmm.samples import load_samples

if TYPE_CHECKING:
    from kvmm.calibration.fit import Example

NEEDS_INPUT = True


def command(
    out: Annotated[Path, typer.Option(help="The file to write, ending in .safetensors.")],
    model: Model = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Questions as JSON lines (images, audio, question, answers), or a text file for a text-only model; "
            "default is the shipped samples."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use so many examples, spread over the data.")] = None,
    gradients: Annotated[
        bool | None,
        typer.Option(
            help="Weigh errors by the loss they cause, or by queries and weights, which needs less memory; default is "
            "what is better on a fifth of the examples, and gradients where there are fewer than five."
        ),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    fuse_values: FuseValues = False,
    refine_steps: Annotated[
        int,
        typer.Option(
            min=0,
            help="After the fit, improve rd's transforms by so many steps of gradient descent on what packing changes; "
            "an example each.",
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of labels and vectors drawn.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Fit transforms, bits and code books to a model, once; policies such as rd2 then use the file."""
    if out.suffix != ".safetensors":
        raise KVMMError(f"--out {out}: calibration files end in .safetensors.")
    if not out.resolve().parent.is_dir():
        raise KVMMError(f"--out {out}: the folder {out.parent} does not exist; make it first.")
    if data is not None and not data.is_file():
        raise KVMMError(f"--data {data}: no such file.")

    with Steps(quiet) as steps:
        steps.say(f"Loading {model or 'the default model'}")
        # Importing torch takes seconds: help and usage errors come before it.
        from kvmm.analysis.drift.prompts import shortened
        from kvmm.calibration.fit import calibrate
        from kvmm.models import load_model

        quiet_transformers()
        examples = None if data is not None and data.suffix != ".jsonl" else _questions(data)
        loaded, processor = load_model(model, device=device, dtype=dtype, fuse_values=fuse_values)
        examples = shortened(_texts(processor, data) if examples is None else examples, limit)
        steps.say("Reading the examples", 0, len(examples))
        fitted = calibrate(
            loaded,
            processor,
            examples,
            gradients=gradients,
            name=model or Path(loaded.name_or_path).name,
            data=data.name if data else "samples",
            seed=seed,
            refine_steps=refine_steps,
        )
        for step in fitted:
            if isinstance(step, int) and step < len(examples):
                steps.say("Reading the examples", step, len(examples))
            elif isinstance(step, int):
                steps.say("Fitting")
            elif isinstance(step, tuple):
                steps.say("Refining", step[0], refine_steps)
    step.save(out)
    size = out.stat().st_size / 2**20
    typer.echo(f"{out}: {step.metadata['examples']} examples, {len(step.tensors)} tensors, {size:.1f} MiB")
    for importance, divergence in step.metadata["importance_kl"].items():
        chosen = "  (taken)" if importance == step.metadata["importance"] else ""
        found = ", ".join(f"{name} {kl:.4f}" for name, kl in divergence.items())
        typer.echo(f"{importance}: KL {found}{chosen}")


def _questions(data: Path | None) -> list[Example]:
    """Examples of a file of JSON lines; without one, of the samples."""
    from kvmm.analysis.drift.prompts import read_lines
    from kvmm.calibration.fit import examples_of_lines, examples_of_samples

    if data is None:
        return examples_of_samples((sample.files, sample.question) for sample in load_samples())
    return examples_of_lines(read_lines(data))


def _texts(processor: Any, data: Path) -> list[Example]:
    """Examples of a text."""
    from kvmm.calibration.fit import examples_of_text

    try:
        return examples_of_text(processor, data.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise KVMMError(f"--data {data} is not text; give .jsonl questions or a UTF-8 text.") from None
