"""HTML of the Ask tab beside the chat: the note on memory, figures, the verdict, thumbnails."""

from __future__ import annotations

import base64
import html
import io
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvmm.analysis.plots import format_bytes
from kvmm.markdown_text import literal_line
from kvmm.media import SAMPLE_RATE, Media
from kvmm.memory_text import PACKED, WHOLE, memory_text, ratio_text
from kvmm.models.confidence import LARGER_MODEL
from kvmm.models.difference import Difference
from kvmm.models.progress import Progress
from kvmm.ui.parts.bubbles import note
from kvmm.ui.parts.page_text import page_text_html
from kvmm.ui.parts.strip import strip_html

LARGE_THUMBNAIL, SMALL_THUMBNAIL = 640, 240  # pixels of the longer side
MANY_MEDIA = 8  # above this thumbnails are small
_THUMBNAILS: weakref.WeakKeyDictionary[Media, dict[int, str]] = weakref.WeakKeyDictionary()

# What kvmm does, for somebody who has never heard of it; the bars are 16 bits, and the 2 (calibrated) to 4 bits of the
# default policy.
WELCOME = """
<div class="stat wide welcome" id="welcome"><p>To answer, a model keeps <b>a key and a value of every token it has
read</b>: the KV cache. A page is hundreds of tokens, and the cache is what fills the memory.</p>
<div class="row"><span>usual: 16 bits</span><i></i></div>
<div class="row"><span>kvmm: 2 to 4</span><i class="packed" style="width:19%"></i></div>
<p style="margin-top:10px">Here you see what that saved, measured while the answer streams. Tick <b>Compare with full
precision</b> to see that the answer stays the same, or where it does not.</p></div>"""


def memory_note(progress: Progress, by: str = "") -> dict[str, Any] | None:
    """ "KV 412 KiB -> 38 KiB" with the table by modality inside, and ``by`` which model and policy."""
    report, by = progress.memory, f"{literal_line(f'Answered by {by}.')} " if by else ""
    if report is None:
        return usage_note(progress, by)
    rows = "\n".join(
        f"| {name} | {row['tokens']:,} | {format_bytes(row['nbytes_dense'])} | {format_bytes(row['nbytes'])} "
        f"| {_packed(row)} | {row['bits_per_value']:.2f} |"
        for name, row in report.by_modality.items()
        if row["tokens"]
    )
    parts = ", ".join(f"{name} {format_bytes(n)}" for name, n in report.by_component.items() if n)
    return note(
        f"KV {format_bytes(report.nbytes_dense)} → {format_bytes(report.held_nbytes)}",
        f"| modality | tokens | bf16 | kvmm | {PACKED} | {WHOLE} |\n| --- | ---: | ---: | ---: | ---: | ---: |\n{rows}"
        f"\n\n{by}{_capitalized(memory_text(report))}. Stored: {parts}. {progress.tokens} tokens in "
        f"{progress.seconds:.2f} s.",
    )


def unsure_note(progress: Progress) -> dict[str, Any] | None:
    """ "Unsure: ..." under an answer that may well be wrong, with what to do inside; None under others."""
    confidence = progress.confidence
    if confidence is None or not confidence.unsure:
        return None
    why = f"An answer like this one is right about {confidence.probability:.0%} of the time."
    if confidence.supported is False:
        why = "The text layer of the PDF does not have this answer: compare it with *Text in the PDF*."
    return note(
        "Unsure: check it, or ask a larger model",
        f"{why} A larger model reads more: choose one under *Model*, or start the app with `--model {LARGER_MODEL}`.",
    )


def nearest_note(progress: Progress) -> dict[str, Any] | None:
    """ "The PDF's text has: ..." under an answer that a passage of the text layer misses by a few characters."""
    if progress.nearest_text is None:
        return None
    return note(
        f"The PDF's text has: {literal_line(progress.nearest_text)}",
        "The answer is not in the text layer of the PDF, and this passage is nearest to it. The model may have misread "
        "the page: compare both with *Text in the PDF*. The passage need not answer the question.",
    )


def usage_note(progress: Progress, by: str = "") -> dict[str, Any] | None:
    """What a server told of an answer: "KV 412 KiB -> 38 KiB" if it is kvmm's, with the tokens inside, after ``by``,
    a sentence."""
    usage = progress.usage
    if usage is None:
        return None
    read = "" if usage.prompt_tokens is None else f"{usage.prompt_tokens:,} tokens of prompt"
    if read and usage.cached_tokens is not None:
        read += f", {usage.cached_tokens:,} of them read before"
    text = ". ".join(filter(None, (read, f"{progress.tokens} tokens in {progress.seconds:.2f} s")))
    title = "Told by the server"
    if usage.ratio is not None:
        title = f"KV {format_bytes(usage.cache_nbytes_bf16)} → {format_bytes(usage.cache_nbytes)}"
    return note(title, f"{by}{text}.")


def _packed(row: dict[str, float]) -> str:
    return f"{row['packed_bits_per_value']:.2f}" if row["packed_tokens"] else "–"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def stats_html(progress: Progress | None, full: Progress | None = None, same_start: bool = True, by: str = "") -> str:
    """The strip of figures. Before the first answer it says what will be there.

    ``same_start``: whether ``full`` had as much to read as ``progress``; else times to the first token do not compare.
    ``by``: the model and policy that answered, which need not be those of the sidebar any more.
    """
    if progress is not None and progress.usage is not None:
        return usage_html(progress, by)
    if progress is None or progress.memory is None:
        return WELCOME if progress is None else strip_html(progress.key_norms) + WELCOME
    report = progress.memory
    share = min(100 / max(report.ratio, 1), 100)
    nbytes, dense = format_bytes(report.held_nbytes), format_bytes(report.nbytes_dense)
    packed_bits = f"packed {report.packed_bits_per_value:.2f}" if report.packed_tokens else "nothing packed yet"
    waiting = "–" if progress.done else "…"  # a loaded conversation has answered elsewhere
    speed = f"{progress.tokens_per_second:.1f}" if progress.tokens_per_second else waiting
    ttft = waiting if progress.ttft is None else f"{progress.ttft:.2f} s"
    beside = {"speed": "", "ttft": ""}
    step = ""
    if progress.first_step is not None and report.packed_tokens:
        step = f'<small data-stat="first-step">the next, with packing, {progress.first_step:.2f} s later</small>'
    if full is not None:
        beside["speed"] = f"<small>full precision {full.tokens_per_second:.1f}</small>"
        first = "" if full.ttft is None else f"full precision {full.ttft:.2f} s"
        beside["ttft"] = f"<small>{first if same_start else 'one side read everything again'}</small>" if first else ""
    return f"""
<div class="stats" id="stats">{_by(by)}
  <div class="stat wide"><span>KV cache</span><strong data-stat="kv">{nbytes}</strong>
    <div class="bar"><i style="width:{share:.1f}%"></i></div><small>of {dense} in bf16</small>
    <small data-stat="memory">{memory_text(report)}</small></div>
  <div class="stat"><span>Smaller by</span><strong data-stat="ratio">{ratio_text(report.ratio)}</strong></div>
  <div class="stat"><span>Bits, whole cache</span><strong data-stat="bits">{report.bits_per_value:.2f}</strong>
    <small data-stat="packed-bits">{packed_bits}</small></div>
  <div class="stat"><span>Tokens per second</span><strong data-stat="speed">{speed}</strong>{beside["speed"]}</div>
  <div class="stat"><span>First token after</span><strong data-stat="ttft">{ttft}</strong>{beside["ttft"]}{step}</div>
  {strip_html(progress.key_norms)}
</div>"""


def _by(by: str) -> str:
    return f'<p class="by" data-stat="by">{html.escape(by)}</p>' if by else ""


def usage_html(progress: Progress, by: str = "") -> str:
    """The strip of figures of a server's answer: those that it told."""
    usage, tiles = progress.usage, []
    if usage.ratio is not None:
        share = min(100 / max(usage.ratio, 1), 100)
        nbytes, dense = format_bytes(usage.cache_nbytes), format_bytes(usage.cache_nbytes_bf16)
        tiles.append(
            f'<div class="stat wide"><span>KV cache on the server</span><strong data-stat="kv">{nbytes}</strong>'
            f'<div class="bar"><i style="width:{share:.1f}%"></i></div><small>of {dense} in bf16</small></div>'
        )
        tiles.append(_stat("Smaller by", "ratio", ratio_text(usage.ratio)))
    if usage.bits_per_value is not None:
        tiles.append(_stat("Bits, whole cache", "bits", f"{usage.bits_per_value:.2f}"))
    if usage.cached_tokens is not None:
        of = "" if usage.prompt_tokens is None else f"of {usage.prompt_tokens:,} tokens of prompt"
        tiles.append(_stat("Read before", "cached", f"{usage.cached_tokens:,}", of))
    speed = f"{progress.tokens_per_second:.1f}" if progress.tokens_per_second else "–"
    tiles.append(_stat("Tokens per second", "speed", speed))
    tiles.append(_stat("First token after", "ttft", "–" if progress.ttft is None else f"{progress.ttft:.2f} s"))
    return f'<div class="stats" id="stats">{_by(by)}{"".join(tiles)}</div>'


def _stat(name: str, key: str, value: str, beside: str = "") -> str:
    small = f"<small>{beside}</small>" if beside else ""
    return f'<div class="stat"><span>{name}</span><strong data-stat="{key}">{value}</strong>{small}</div>'


def verdict_html(difference: Difference | None) -> str:
    """Whether both answers are the same, else the token in which they part."""
    if difference is None:
        return ""
    if difference.index is None:
        tokens = "1 token" if difference.tokens == 1 else f"{difference.tokens} tokens"
        text = f"<b>Identical</b><span>{tokens}, the same as in full precision</span>"
        return f'<div class="verdict same" id="verdict">{text}</div>'

    def token(text: str) -> str:
        return f"<code>{html.escape(text)}</code>" if text else "the end of the answer"

    return (
        f'<div class="verdict differs" id="verdict"><b>Differs</b><span>from token {difference.index}: '
        f"full precision has {token(difference.full)}, kvmm {token(difference.kvmm)}</span></div>"
    )


def thumbnails_html(media: Sequence[Media]) -> str:
    """Small pictures of everything that the conversation holds; a click enlarges one. No file is written for them."""
    if not media:
        return ""
    side = LARGE_THUMBNAIL if len(media) <= MANY_MEDIA else SMALL_THUMBNAIL
    tiles = []
    for item in media:
        name = html.escape(item.name if item.page is None else f"{item.name}, page {item.page}")
        label = html.escape(item.name) if item.page is None else f"page {item.page}"
        if item.kind == "image":
            inner = f'<img src="{_thumbnail(item, side)}" alt="{name}" loading="lazy">'
        elif item.kind == "audio":
            inner = f'<span class="sound">{_wave(item.data)}{len(item.data) / SAMPLE_RATE:.1f} s</span>'
        else:
            inner = '<span class="sound">video</span>'
        tiles.append(
            f'<button type="button" class="thumb" title="{name}" aria-label="{name}" '
            f"onclick=\"this.classList.toggle('large')\">{inner}<small>{label}</small></button>"
        )
    strip = f'<div class="thumbs">{"".join(tiles)}</div>'
    return f'<div class="section">Held by this conversation</div>{strip}{page_text_html(media)}'


def _thumbnail(item: Media, side: int) -> str:
    """A data URL, made once: every page that shows the conversation asks for it."""
    made = _THUMBNAILS.setdefault(item, {})
    if side not in made:
        picture = item.data.copy()
        picture.thumbnail((side, side))
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=80)
        made[side] = f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"
    return made[side]


def _wave(samples: np.ndarray, bars: int = 24) -> str:
    """The loudness of a recording as bars."""
    peaks = [float(np.abs(part).max(initial=0)) for part in np.array_split(samples, bars)]
    top = max(peaks) or 1.0
    rects = "".join(
        f'<rect x="{4 * i}" y="{20 - 18 * peak / top:.1f}" width="2.4" height="{max(36 * peak / top, 2):.1f}" rx="1"/>'
        for i, peak in enumerate(peaks)
    )
    return f'<svg viewBox="0 0 {4 * bars} 40" width="96" height="40" fill="#009E73" aria-hidden="true">{rects}</svg>'
