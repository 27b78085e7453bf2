"""``kvmm ask``: one question about pictures, documents, texts, recordings and videos, and the memory of its cache."""

from __future__ import annotations

import json
import mimetypes
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from kvmm import decoding
from kvmm.commands.inputs import quiet_transformers, read_text
from kvmm.commands.options import (
    Device,
    Dtype,
    FuseValues,
    Images,
    Json,
    Logprobs,
    MaxNewTokens,
    Model,
    Pdfs,
    Policy,
    Quiet,
    Seed,
    Speculative,
    Stop,
    Temperature,
    TopP,
)
from kvmm.commands.progress import Steps
from kvmm.errors import KVMMError
from kvmm.memory_text import PACKED, WHOLE, memory_text, ratio_text
from kvmm.policy import get_policy

if TYPE_CHECKING:
    from kvmm.cache import MemoryReport
    from kvmm.media import Media
    from kvmm.models import Conversation, Progress
    from kvmm.models.difference import Difference
    from kvmm.models.generation import Reading

FULL_PRECISION = "bf16"
SHOWN_TEXT = 4000  # characters of a page's text layer on the terminal; --json has all that is kept
NEEDS_INPUT = True
OPTIONS = {"image": "--image", "audio": "--audio", "video": "--video", "text": "--text"}  # of files, by MIME type


class Command(TyperCommand):
    """Says how a file is given that stands beside the question, as in ``ask page.png "What is the total?"``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not ctx.resilient_parsing:  # as completion does
            options, rest, _ = self.make_parser(ctx).parse_args(args=list(args))
            for word in (options.get("question"), *rest):
                if isinstance(word, str):
                    _check_no_file(word)
        return super().parse_args(ctx, args)


def _check_no_file(word: str) -> None:
    """Raise ``KVMMError`` if what is to be a question is a file that an option takes, or one word like its name."""
    kind = mimetypes.guess_type(word)[0] or ""
    option = "--pdf" if kind == "application/pdf" else OPTIONS.get(kind.partition("/")[0])
    if option and (len(word.split()) == 1 or os.path.isfile(word)):
        raise KVMMError(f"{word} stands where the question does: give the file with {option}.")


def command(
    question: Annotated[str, typer.Argument(help="The question; may be left out when a recording asks it.")] = "",
    image: Images = None,
    pdf: Pdfs = None,
    audio: Annotated[list[Path] | None, typer.Option(help="A recording; repeat for several.")] = None,
    video: Annotated[list[Path] | None, typer.Option(help="A video; repeat for several.")] = None,
    fps: Annotated[float, typer.Option(help="Frames read of a second of a video.")] = 2.0,
    max_frames: Annotated[
        int, typer.Option(help="At most so many frames of a video, spread over its length.", min=2)
    ] = 32,
    text: Annotated[
        list[Path] | None, typer.Option(help="A text file that the question is about; repeat for several.")
    ] = None,
    policy: Policy = "balanced",
    key_bits: Annotated[int | None, typer.Option(help="Bits of a key value, instead of the policy's.")] = None,
    value_bits: Annotated[int | None, typer.Option(help="Bits of a value value, instead of the policy's.")] = None,
    group_size: Annotated[int | None, typer.Option(help="Values that share a scale.")] = None,
    residual_length: Annotated[int | None, typer.Option(help="Newest tokens kept in full precision.")] = None,
    num_sink_tokens: Annotated[int | None, typer.Option(help="First tokens kept in full precision.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Also answer with a full-precision cache.")] = False,
    show_text: Annotated[
        bool, typer.Option("--show-text", help="Also print the text layer of PDF pages, to compare with the answer.")
    ] = False,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    fuse_values: FuseValues = False,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    stop: Stop = None,
    logprobs: Logprobs = None,
    speculative: Speculative = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ask about pictures, documents, texts, recordings and videos."""
    overrides = _given(
        key_bits=key_bits, value_bits=value_bits, group_size=group_size, residual_length=residual_length,
        num_sink_tokens=num_sink_tokens,
    )  # fmt: skip
    if not question.strip() and not audio:
        raise KVMMError("There is no question: write one, or record it.")
    chosen = {"temperature": temperature, "top_p": top_p, "seed": seed, "stop": tuple(stop or ()), "logprobs": logprobs}
    _check_chosen(chosen, as_json, speculative)
    with Steps(quiet or as_json) as steps:
        steps.say("Reading the files")
        if image or pdf or audio or video:
            decoding.start()  # a third of a second, which importing torch takes anyway
        _check_policy(policy, overrides)  # wrong names and files are said before the model is loaded
        asking = _asking(max_new_tokens, chosen)
        question = _after(text or (), question)
        media = _load(image or (), pdf or (), audio or ())
        media += _load_videos(video or (), fps, max_frames)
        steps.say(f"Loading {model or 'the default model'}")
        loading = {"device": device, "dtype": dtype, "fuse_values": fuse_values}
        talks = _conversations(model, loading, policy, overrides, compare, speculative)
        if compare:
            steps.say("Warming up both caches")
            _warm_up(talks.values(), media)
        finals: dict[str, Progress] = {}
        for name, talk in talks.items():
            label = f"{name}: " if compare else ""
            finals[name] = _answer(talk, question, media, asking, steps, label=label, echo=not as_json)
    difference = _difference(finals, policy, talks[policy]) if compare else None
    if as_json:
        result = _as_dict(policy, finals, difference, None if logprobs is None else talks[policy].processor)
        if show_text:
            result["pages"] = [{"name": one.name, "page": one.page, "text": one.text} for one in media if one.page]
        typer.echo(json.dumps(result, ensure_ascii=False))
        return
    if difference is not None:
        typer.echo(_verdict(difference, finals[policy], finals["full precision"]))
    if show_text:
        _show_text(media)
    _show(finals)


def _given(**options: Any) -> dict[str, Any]:
    """The options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


def _after(files: Sequence[Path], question: str) -> str:
    """The question behind the texts of files."""
    if not files:
        return question
    texts = [read_text(path) for path in files]
    from kvmm.models.question import with_documents

    return with_documents(question, texts)


def _check_policy(policy: str, overrides: Mapping[str, Any]) -> None:
    # Importing torch takes seconds: help and usage errors come before it.
    from kvmm.models.caches import DYNAMIC

    if policy != DYNAMIC:
        get_policy(policy, **overrides)


def _conversations(
    model: str | None,
    loading: Mapping[str, Any],
    policy: str,
    overrides: Mapping[str, Any],
    compare: bool,
    speculative: str | None = None,
) -> dict[str, Conversation]:
    from kvmm.models import Conversation, load_model
    from kvmm.models.speculative import drafter_of

    quiet_transformers()
    network, processor = load_model(model, **loading)

    def drafter() -> Any:  # one each: a draft model has a cache
        options = {"device": loading.get("device"), "dtype": loading.get("dtype")}
        return None if speculative is None else drafter_of(speculative, processor, **options)

    talks = {policy: Conversation(network, processor, policy, drafter=drafter(), **overrides)}
    if compare:
        talks["full precision"] = Conversation(network, processor, FULL_PRECISION, drafter=drafter())
    return talks


def _check_chosen(chosen: Mapping[str, Any], as_json: bool, speculative: str | None) -> None:
    """Raise ``KVMMError`` for options that do not go together."""
    if chosen["logprobs"] is not None and not as_json:
        raise KVMMError("--logprobs are shown by --json: add it.")
    if speculative is not None and (chosen["temperature"] or chosen["logprobs"] is not None):
        raise KVMMError("--speculative is for the most likely tokens: leave --temperature and --logprobs out.")


def _asking(max_new_tokens: int, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Options of :meth:`Conversation.ask`."""
    from kvmm.models import Sampling

    return {"max_new_tokens": max_new_tokens, "sampling": Sampling(**chosen)}


def _warm_up(talks: Iterable[Conversation], media: Sequence[Media]) -> None:
    from kvmm.models.warming import warm_up

    warm_up(talks, media)


def _load(images: Sequence[Path], pdfs: Sequence[Path], audio: Sequence[Path]) -> list[Media]:
    from kvmm.media import Media, load_audio, load_document, load_image

    media = [Media("image", load_image(path), path.name) for path in images]
    for path in pdfs:
        media += load_document(path)
    return media + [Media("audio", load_audio(path), path.name) for path in audio]


def _load_videos(paths: Sequence[Path], fps: float, max_frames: int) -> list[Media]:
    from kvmm.media import load_media

    media = [item for path in paths for item in load_media(path)]
    for path, item in zip(paths, media, strict=False):
        if item.kind != "video":
            raise KVMMError(f"{path.name} is no video: give it with --{item.kind}.")
        item.sampling = {"fps": fps, "max_frames": max_frames}
    return media


def _answer(
    talk: Conversation,
    question: str,
    media: Sequence[Media],
    asking: Mapping[str, Any],
    steps: Steps,
    *,
    label: str,
    echo: bool,
) -> Progress:
    """Ask, writing the answer to stdout as it comes, after ``label``."""
    written = ""
    steps.say(f"{label}{_reading(media, None)}")
    for progress in talk.ask(question, media, **asking):
        if progress.reading is not None:
            steps.say(f"{label}{_reading(media, progress.reading)}", progress.reading.share, 1.0)
        elif echo and progress.text:
            steps.stop()  # it may be on the same terminal
            typer.echo(f"{'' if written else label}{progress.text[len(written) :]}", nl=False)
            written = progress.text
    steps.stop()
    if echo:
        typer.echo("" if written else label)
        if progress.confidence is not None and progress.confidence.unsure:
            typer.echo(progress.confidence.line)
        if progress.nearest_text is not None:
            typer.echo(f"The PDF's text has: {progress.nearest_text}")
    return progress


def _reading(media: Sequence[Media], reading: Reading | None) -> str:
    """The progress of the prefill: "Reading page 2 of 4", else "Reading 3 pages and 1 recording"."""
    if reading is not None and reading.pages > 1:
        return f"Reading page {reading.page} of {reading.pages}"
    counts = [
        f"{count} {name}{'s' * (count > 1)}"
        for kind, name in (("image", "page"), ("audio", "recording"), ("video", "video"))
        if (count := sum(item.kind == kind for item in media))
    ]
    return f"Reading {' and '.join(counts)}" if counts else "Answering"


def _difference(finals: Mapping[str, Progress], policy: str, talk: Conversation) -> Difference:
    from kvmm.models.difference import difference_of

    return difference_of(finals["full precision"], finals[policy], talk.processor)


def _verdict(difference: Difference, final: Progress, full: Progress) -> str:
    """Whether the answers differ, and the memory of both, in one line."""
    if final.memory is None or full.memory is None:
        return f"{difference.verdict}."
    return (
        f"{difference.verdict}; KV cache {_size(final.memory.held_nbytes)} instead of {_size(full.memory.held_nbytes)}."
    )


def _as_dict(
    policy: str, finals: Mapping[str, Progress], difference: Difference | None, processor: Any = None
) -> dict[str, Any]:
    """The object that ``--json`` prints; with ``processor`` the log-probabilities are in it."""

    def one(final: Progress) -> dict[str, Any]:
        return {
            "answer": final.text,
            "memory": final.memory.to_dict() if final.memory is not None else None,
            "tokens": final.tokens,
            "tokens_per_second": final.tokens_per_second,
            "ttft_seconds": final.ttft,
            "first_step_seconds": final.first_step,
            "seconds": final.seconds,
            **({} if final.confidence is None else {"confidence": final.confidence.to_dict()}),
            **({} if final.nearest_text is None else {"nearest_text": final.nearest_text}),
            **({} if final.speculation is None else {"speculation": final.speculation.to_dict()}),
            **({} if processor is None else {"logprobs": _logprobs(final, processor)}),
        }

    result = {"policy": policy, **one(finals[policy])}
    if difference is not None:
        result |= {"full_precision": one(finals["full precision"]), **difference.to_dict()}
    return result


def _logprobs(final: Progress, processor: Any) -> list[dict[str, Any]]:
    """Every token with its log-probability, and the most likely ones."""
    decode = getattr(processor, "tokenizer", processor).decode
    return [
        {
            "token": decode([one.token]),
            "logprob": one.logprob,
            "top": [{"token": decode([token]), "logprob": logprob} for token, logprob in one.top],
        }
        for one in final.choices
    ]


def _show_text(media: Sequence[Media]) -> None:
    """The text layer of every page that has one; the model does not read it."""
    for item in media:
        if item.text:
            shown = item.text[:SHOWN_TEXT]
            more = f"\n... and {item.text_length - len(shown):,} more characters" if len(item.text) > SHOWN_TEXT else ""
            typer.echo(f"\nText layer of {item.name}, page {item.page}:\n{shown}{more}")
    if not any(item.text for item in media):
        typer.echo("There is no text layer: the files are pictures.", err=True)


def _show(finals: Mapping[str, Progress]) -> None:
    """The memory tables of all answers."""
    for name, final in finals.items():
        _show_one(name, final)


def _show_one(name: str, final: Progress) -> None:
    """The memory table of one answer."""

    rate = f"{final.tokens_per_second:.1f} tokens/s" if final.tokens_per_second else f"{final.tokens} token"
    ttft = f"first token after {final.ttft:.2f} s" if final.ttft is not None else "no token"
    caption = f"{rate}, {ttft}" + (f", the next {final.first_step:.2f} s later" if final.first_step is not None else "")
    if (drafts := final.speculation) is not None:
        caption += f"\n{drafts.accepted} of {drafts.drafted} drafted tokens were right, {drafts.calls} steps"
    title = f"KV cache, {name}"
    if final.memory is not None:
        title += f"\n{memory_text(final.memory)}"
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    table.add_column("")
    for column in ("tokens", "bytes", "in bf16", PACKED, WHOLE, "ratio"):
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
            f"{entry['packed_bits_per_value']:.2f}" if entry["packed_tokens"] else "",
            f"{entry['bits_per_value']:.2f}",
            ratio_text(entry["nbytes_dense"] / entry["nbytes"]) if entry["nbytes"] else "",
        )
        for name, entry in entries.items()
    ]
    tokens = sum(entry["tokens"] for entry in entries.values())
    total = ("total", f"{tokens:.0f}", _size(report.held_nbytes), _size(report.nbytes_dense))
    packed = f"{report.packed_bits_per_value:.2f}" if report.packed_tokens else ""
    return [*rows, (*total, packed, f"{report.bits_per_value:.2f}", ratio_text(report.ratio))]


def _size(count: float) -> str:
    """Bytes for people: 512 B, 34.2 KiB, 1.3 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
