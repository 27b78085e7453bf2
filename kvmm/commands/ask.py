"""``kvmm ask``: one question about images, PDFs and recordings, and what the cache held for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvmm.cache import MemoryReport
    from kvmm.media import Media
    from kvmm.models import Conversation, Progress

FULL_PRECISION = "bf16"


def command(
    question: Annotated[str, typer.Argument(help="The question; may be left out when a recording asks it.")] = "",
    image: Annotated[list[Path] | None, typer.Option(help="An image; repeat for several.")] = None,
    pdf: Annotated[list[Path] | None, typer.Option(help="A PDF, every page of it; repeat for several.")] = None,
    audio: Annotated[list[Path] | None, typer.Option(help="A recording; repeat for several.")] = None,
    video: Annotated[list[Path] | None, typer.Option(help="A video; needs torchvision.")] = None,
    policy: Annotated[
        str, typer.Option(help="Cache policy: one that `kvmm policies` lists, or a .yaml file.")
    ] = "balanced",
    key_bits: Annotated[int | None, typer.Option(help="Bits of a key value, instead of the policy's.")] = None,
    value_bits: Annotated[int | None, typer.Option(help="Bits of a value value, instead of the policy's.")] = None,
    group_size: Annotated[int | None, typer.Option(help="Values that share a scale.")] = None,
    residual_length: Annotated[int | None, typer.Option(help="Newest tokens kept in full precision.")] = None,
    num_sink_tokens: Annotated[int | None, typer.Option(help="First tokens kept in full precision.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Also answer with a full-precision cache.")] = False,
    model: Annotated[str | None, typer.Option(help="Folder or hub id; default is the embedded model.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Ask about a picture, a document or a recording."""
    # Importing torch takes seconds: help and usage errors come before it.
    import transformers

    from kvmm.models import Conversation, load_model
    from kvmm.models.conversation import DYNAMIC
    from kvmm.policy import get_policy

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    given = {
        "key_bits": key_bits,
        "value_bits": value_bits,
        "group_size": group_size,
        "residual_length": residual_length,
        "num_sink_tokens": num_sink_tokens,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    if policy != DYNAMIC:
        get_policy(policy, **overrides)  # wrong names and files are said before the model is loaded
    media = _load(image or (), pdf or (), audio or (), video or ())
    network, processor = load_model(model, device=device, dtype=dtype)
    talks = {policy: Conversation(network, processor, policy, **overrides)}
    if compare:
        talks["full precision"] = Conversation(network, processor, FULL_PRECISION)

    finals: dict[str, Progress] = {}
    for name, talk in talks.items():
        if compare and not as_json:
            typer.echo(f"{name}: ", nl=False)
        finals[name] = _answer(talk, question, media, max_new_tokens, echo=not as_json)
    if as_json:
        result = {"policy": policy, **_as_dict(finals[policy])}
        if compare:
            result["full_precision"] = _as_dict(finals["full precision"])
        typer.echo(json.dumps(result, ensure_ascii=False))
    else:
        for name, final in finals.items():
            _show(name, final)


def _load(images: Sequence[Path], pdfs: Sequence[Path], audio: Sequence[Path], video: Sequence[Path]) -> list[Media]:
    from kvmm.media import Media, load_audio, load_image, load_media, load_pdf

    media = [Media("image", load_image(path), path.name) for path in images]
    for path in pdfs:
        media += [Media("image", page, path.name, number) for number, page in enumerate(load_pdf(path), start=1)]
    media += [Media("audio", load_audio(path), path.name) for path in audio]
    return media + [item for path in video for item in load_media(path)]


def _answer(talk: Conversation, question: str, media: Sequence[Media], max_new_tokens: int, *, echo: bool) -> Progress:
    """Ask, writing the answer to stdout as it comes."""
    written = 0
    for progress in talk.ask(question, media, max_new_tokens=max_new_tokens):
        if echo:
            typer.echo(progress.text[written:], nl=False)
            written = len(progress.text)
    if echo:
        typer.echo()
    return progress


def _as_dict(final: Progress) -> dict[str, Any]:
    return {
        "answer": final.text,
        "memory": final.memory.to_dict() if final.memory is not None else None,
        "tokens": final.tokens,
        "tokens_per_second": final.tokens_per_second,
        "ttft_seconds": final.ttft,
        "seconds": final.seconds,
    }


def _show(name: str, final: Progress) -> None:
    """The memory table of one answer."""
    from rich.console import Console
    from rich.table import Table

    rate = f"{final.tokens_per_second:.1f} tokens/s" if final.tokens_per_second else f"{final.tokens} token"
    ttft = f"first token after {final.ttft:.2f} s" if final.ttft is not None else "no token"
    table = Table(title=f"KV cache, {name}", caption=f"{rate}, {ttft}", title_justify="left", caption_justify="left")
    table.add_column("")
    for column in ("tokens", "bytes", "in bf16", "bits a value", "ratio"):
        table.add_column(column, justify="right")
    if final.memory is not None:
        for row in memory_rows(final.memory):
            table.add_row(*row)
    Console().print(table)


def memory_rows(report: MemoryReport) -> list[tuple[str, ...]]:
    """The rows of the table: every modality that holds tokens, and the total."""
    entries = {name: entry for name, entry in report.by_modality.items() if entry["tokens"]}
    rows = [
        (
            name,
            f"{entry['tokens']:.0f}",
            _size(entry["nbytes"]),
            _size(entry["nbytes_dense"]),
            f"{entry['bits_per_value']:.2f}",
            f"{entry['nbytes_dense'] / entry['nbytes']:.2f}" if entry["nbytes"] else "",
        )
        for name, entry in entries.items()
    ]
    tokens = sum(entry["tokens"] for entry in entries.values())
    total = ("total", f"{tokens:.0f}", _size(report.nbytes), _size(report.nbytes_dense))
    return [*rows, (*total, f"{report.bits_per_value:.2f}", f"{report.ratio:.2f}")]


def _size(count: float) -> str:
    """Bytes for people: 512 B, 34.2 KiB, 1.3 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
