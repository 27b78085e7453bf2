"""Prompts of a conversation as tensors, and how they divide into pieces that can be read one after another.

A piece ends after a page, a picture or a recording, so that reading can be stopped between pages and its progress can
be told. A prompt whose media cannot be told apart in its tensors is one piece.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from kvmm.errors import KVMMError
from kvmm.media import SAMPLE_RATE, Media, load_video
from kvmm.modality import AUDIO, IMAGE, TEXT, label_ids, placeholder_ids

# Outputs of a processor that the positions of later turns depend on.
POSITION_INPUTS = (
    "image_grid_thw",
    "video_grid_thw",
    "second_per_grid_ts",
    "video_second_per_grid",
    "feature_attention_mask",
)
ANSWER = "\ue000kvmm answer\ue001"  # private-use characters: no template and no user writes them
MIN_PIECE = 2  # a single token would be a decode step, which packs what the cache holds
_KINDS = {"image": IMAGE, "audio": AUDIO}
_INPUTS = {
    "image": ("pixel_values", "image_grid_thw", "image_sizes"),
    "audio": ("input_features", "feature_attention_mask", "input_features_mask"),
}


@dataclass
class Turn:
    """What one question added to the prompt, and its answer: enough to build the cache again.

    ``text`` is the rendered template with one placeholder a medium, ``ids`` its tokens ``[1, T]`` with the placeholders
    expanded, ``per_token`` the processor's other ``[1, T]`` outputs. ``answer`` holds the generated tokens without the
    one that ends the answer.
    """

    text: str
    media: tuple[Media, ...]
    positions: dict[str, torch.Tensor] = field(default_factory=dict)
    ids: torch.Tensor = field(default_factory=lambda: torch.empty(1, 0, dtype=torch.long))
    per_token: dict[str, torch.Tensor] = field(default_factory=dict)
    answer: tuple[int, ...] = ()


@dataclass
class Piece:
    """A run of new tokens ``start`` to ``end`` (not included) with the media whose placeholders are among them."""

    start: int
    end: int
    pages: int = 0
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class Prompt:
    """What one call of ``generate`` needs, on the model's device, and what is remembered of it.

    ``inputs`` has ``input_ids`` and ``attention_mask`` ``[1, T]`` and what else has a value per token; the media to
    read are in ``pieces``, which cover the tokens that the cache does not hold.
    """

    inputs: dict[str, torch.Tensor]
    history: dict[str, torch.Tensor]  # the position inputs of all turns
    ids: torch.Tensor  # [1, T] all token ids, on the CPU
    per_token: dict[str, torch.Tensor]  # other [1, T] inputs, on the CPU
    pieces: list[Piece] = field(default_factory=list)
    past: int = 0  # tokens that the cache keeps


def user_message(processor: Any, question: str, media: Sequence[Media]) -> dict[str, Any]:
    """The question and its media in chat-template form: media first, several pages with labels."""
    if isinstance(processor, PreTrainedTokenizerBase):
        return {"role": "user", "content": question}
    content: list[dict[str, str]] = []
    labels = page_labels(media)
    for item in media:
        if item.kind == "image" and labels:
            content.append({"type": "text", "text": labels.pop(0)})
        content.append({"type": item.kind})
    if question.strip():
        content.append({"type": "text", "text": question})
    return {"role": "user", "content": content}


def assistant_message(processor: Any, text: str) -> dict[str, Any]:
    """An answer in chat-template form."""
    plain = isinstance(processor, PreTrainedTokenizerBase)
    return {"role": "assistant", "content": text if plain else [{"type": "text", "text": text}]}


def text_of(message: Mapping[str, Any]) -> str:
    """The question or answer in a message, without the page labels that come before pictures."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return content[-1]["text"] if content and content[-1]["type"] == "text" else ""


def render(processor: Any, messages: Sequence[dict[str, Any]], message: dict[str, Any]) -> str:
    """The text that ``message`` adds to ``messages``: the whole template at first, later what follows the last answer.

    Raises:
        KVMMError: the model has no chat template, or one that hides earlier answers.
    """
    messages = [*messages, message]
    is_first = len(messages) == 1
    if not is_first:
        messages[-2] = assistant_message(processor, ANSWER)
    try:
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except ValueError as error:
        raise KVMMError("This model has no chat template: load the instruction-tuned version.") from error
    if is_first:
        return text
    if text.count(ANSWER) != 1:
        raise KVMMError("This model's chat template hides earlier answers: reset the conversation to ask again.")
    return text.partition(ANSWER)[2]


def encode(processor: Any, text: str, media: Sequence[Media]) -> dict[str, torch.Tensor]:
    """The processor's tensors for one turn: input_ids ``[1, T]``, pixels, audio features.

    Raises:
        KVMMError: a recording is longer than the model hears.
    """
    if isinstance(processor, PreTrainedTokenizerBase):
        return dict(processor([text], return_tensors="pt", add_special_tokens=False))
    inputs: dict[str, Any] = {}
    for kind, name in (("image", "images"), ("audio", "audio"), ("video", "videos")):
        data = [item.data for item in media if item.kind == kind]
        if data:
            inputs[name] = [load_video(path) for path in data] if kind == "video" else data
    if "audio" in inputs:
        _check_audio_length(processor, inputs["audio"])
        inputs["sampling_rate"] = SAMPLE_RATE
    return dict(processor(text=[text], return_tensors="pt", add_special_tokens=False, **inputs))


def _check_audio_length(processor: Any, recordings: Sequence[Any]) -> None:
    """Feature extractors cut what exceeds their chunk without a word; say so instead."""
    extractor = processor.feature_extractor
    limit = extractor.n_samples / extractor.sampling_rate
    longest = max(len(recording) for recording in recordings) / SAMPLE_RATE
    if longest > limit:
        raise KVMMError(
            f"The recording is {longest:.0f} seconds long and this model hears {limit:.0f}: cut it into parts."
        )


def fill(turn: Turn, encoded: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put what a processor returned into ``turn``; what is left are the tensors of its media."""
    turn.ids = encoded.pop("input_ids")
    encoded.pop("attention_mask", None)
    # copies: a mask of 3000 frames is a view of one of 480 000 samples, which would stay with the turn
    turn.positions = {
        name: encoded[name].clone(memory_format=torch.contiguous_format) for name in POSITION_INPUTS if name in encoded
    }
    turn.per_token = {name: value for name, value in encoded.items() if value.shape == turn.ids.shape}
    return {name: value for name, value in encoded.items() if name not in turn.per_token}


def all_ids(turns: Sequence[Turn]) -> torch.Tensor:
    """int64 ``[1, T]``: prompts and answers of all turns."""
    parts = [part for turn in turns for part in (turn.ids, torch.tensor([turn.answer], dtype=torch.long))]
    return torch.cat(parts, dim=1) if parts else torch.empty(1, 0, dtype=torch.long)


def all_per_token(turns: Sequence[Turn]) -> dict[str, torch.Tensor]:
    """The other ``[1, T]`` inputs of all turns; zeros for answers, and for turns that have none."""
    kinds = {name: value.dtype for turn in turns for name, value in turn.per_token.items()}
    out = {}
    for name, dtype in kinds.items():
        parts = []
        for turn in turns:
            missing = torch.zeros_like(turn.ids, dtype=dtype)
            parts += [turn.per_token.get(name, missing), torch.zeros(1, len(turn.answer), dtype=dtype)]
        out[name] = torch.cat(parts, dim=1)
    return out


def placeholder_runs(ids: torch.Tensor, config: Any, kinds: Sequence[str]) -> list[tuple[int, int]] | None:
    """Where the placeholders of each medium begin and end.

    Args:
        ids: int64 ``[1, T]``.
        config: the model's.
        kinds: "image" or "audio" of all media, in their order.

    Returns:
        ``(start, end)`` a medium, or None where the tokens do not show which medium is which.
    """
    if not all(kind in _KINDS for kind in kinds):
        return None
    codes = label_ids(ids, placeholder_ids(config))[0]
    steps = (codes[1:] != codes[:-1]).nonzero().flatten() + 1
    bounds = [0, *steps.tolist(), codes.numel()]
    runs = [(a, b) for a, b in itertools.pairwise(bounds) if b > a and codes[a] != TEXT]
    if [int(codes[a]) for a, _ in runs] != [_KINDS[kind] for kind in kinds]:
        return None
    return runs


def split_media(
    encoded: Mapping[str, torch.Tensor], kinds: Sequence[str], lengths: Sequence[int]
) -> list[dict[str, torch.Tensor]] | None:
    """The processor's tensors medium by medium.

    Args:
        encoded: pixels, sizes and audio features of all media of one turn.
        kinds: "image" or "audio" of each.
        lengths: placeholders of each.

    Returns:
        a dictionary a medium, or None where the rows of a tensor cannot be told apart.
    """
    parts: list[dict[str, torch.Tensor]] = [{} for _ in kinds]
    for name, value in encoded.items():
        kind = next((kind for kind, names in _INPUTS.items() if name in names), None)
        items = [i for i, other in enumerate(kinds) if other == kind]
        if kind is None or not items:
            return None
        rows = [1] * len(items)
        if name == "pixel_values" and "image_grid_thw" in encoded:
            rows = encoded["image_grid_thw"].prod(-1).tolist()
        elif name == "pixel_values" and value.shape[0] != len(items):  # tiles, the same number of tokens each
            tokens = [lengths[i] for i in items]
            rows = [value.shape[0] * n // sum(tokens) for n in tokens]
            if any(r * sum(tokens) != value.shape[0] * n for r, n in zip(rows, tokens, strict=True)):
                return None
        if value.shape[0] != sum(rows):
            return None
        for i, part in zip(items, value.split(rows), strict=True):
            parts[i][name] = part
    return parts


def shared_prefix(
    ids: torch.Tensor,
    media: Sequence[Media],
    runs: Sequence[tuple[int, int]] | None,
    held_ids: torch.Tensor,
    held_media: Sequence[Media],
    most: int,
) -> int:
    """How many of the first tokens of a prompt a cache holds, with the same media behind them.

    Args:
        ids, media, runs: the prompt ``[1, T]``, its media and where they are; None if that is not known.
        held_ids, held_media: what the cache was filled with.
        most: tokens it still has, or that may be taken from it.

    Returns:
        a number of tokens that ends in no medium.
    """
    count = min(common_prefix(ids, held_ids), most)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], zip(media, held_media, strict=False)))
    if runs is None:  # all of it or nothing
        return count if same == len(held_media) and count >= held_ids.shape[1] - 1 else 0
    for i, (start, end) in enumerate(runs):
        if start < count and (i >= same or end > count):
            return start
    return count


def divide_turns(
    turns: Sequence[Turn],
    runs: Sequence[tuple[int, int]],
    tensors_of: Callable[[Turn], dict[str, torch.Tensor]],
    past: int,
    total: int,
    size: int,
) -> list[Piece] | None:
    """The tokens ``past`` to ``total`` of some turns in pieces; see :func:`divide`.

    Args:
        turns: all of the conversation.
        runs: where each of their media is.
        tensors_of: the processor's tensors of a turn's media; asked for those turns only that have any to read.

    Returns:
        the pieces, or None where the tensors of several media cannot be told apart.
    """
    found: list[dict[str, torch.Tensor]] = []
    at = 0
    for turn in turns:
        places, at = runs[at : at + len(turn.media)], at + len(turn.media)
        new = [i for i, (start, _) in enumerate(places) if start >= past]
        if not new:
            continue
        kinds, lengths = [item.kind for item in turn.media], [end - start for start, end in places]
        parts = split_media(tensors_of(turn), kinds, lengths)
        if parts is None:
            return None
        found += [parts[i] for i in new]
    return divide(past, total, [run for run in runs if run[0] >= past], found, size)


def divide(
    past: int, total: int, runs: Sequence[tuple[int, int]], media: Sequence[dict[str, torch.Tensor]], size: int
) -> list[Piece]:
    """Pieces of about ``size`` tokens that cover ``past`` to ``total``.

    Args:
        past: tokens that are read already.
        total: tokens of the prompt.
        runs: where the media to read begin and end.
        media: the tensors of each of them.
        size: a piece ends after the first medium that reaches it; text is cut there.

    Returns:
        at least one piece; no medium is in two, and none has a single token.
    """
    pieces = [Piece(past, past)]
    found: list[list[dict[str, torch.Tensor]]] = [[]]

    def text_until(end: int) -> None:
        while end - pieces[-1].start > size:
            cut = max(pieces[-1].end, pieces[-1].start + size)
            pieces[-1].end = cut
            pieces.append(Piece(cut, cut))
            found.append([])
        pieces[-1].end = end

    for (start, end), tensors in zip(runs, media, strict=True):
        text_until(start)
        pieces[-1].end = end
        pieces[-1].pages += "pixel_values" in tensors
        found[-1].append(tensors)
        if end - pieces[-1].start >= size and end < total:
            pieces.append(Piece(end, end))
            found.append([])
    text_until(total)
    for i in range(len(pieces) - 1, 0, -1):
        if pieces[i].end - pieces[i].start < MIN_PIECE:
            last = pieces.pop(i)
            pieces[i - 1].end, pieces[i - 1].pages = last.end, pieces[i - 1].pages + last.pages
            found[i - 1] += found.pop(i)
    for piece, parts in zip(pieces, found, strict=True):
        piece.inputs = merge_inputs(parts)
    return pieces


def page_labels(media: Sequence[Media]) -> list[str]:
    """ "Page k" lines for several images: their own page numbers if those tell them apart, else their order."""
    images = [item for item in media if item.kind == "image"]
    if len(images) < 2:
        return []
    pages = [item.page for item in images]
    if None in pages or len(set(pages)) < len(pages):
        pages = list(range(1, len(images) + 1))
    return [f"Page {page}\n" for page in pages]


def merge_inputs(parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Concatenate the tensors of several media; audio features of unequal length are padded with zeros."""
    merged: dict[str, list[torch.Tensor]] = {}
    for part in parts:
        for name, value in part.items():
            merged.setdefault(name, []).append(value)
    out = {}
    for name, values in merged.items():
        width = (
            max(value.shape[-1] for value in values) if name in ("input_features", "feature_attention_mask") else None
        )
        if width is not None:
            values = [torch.nn.functional.pad(value, (0, width - value.shape[-1])) for value in values]
        out[name] = torch.cat([torch.as_tensor(value) for value in values], dim=0)
    return out


def common_prefix(left: torch.Tensor, right: torch.Tensor) -> int:
    """How many of the first tokens of ``left`` and ``right``, int64 ``[1, T]``, are the same."""
    count = min(left.shape[1], right.shape[1])
    differs = (left[0, :count] != right[0, :count]).nonzero()
    return int(differs[0]) if differs.numel() else count


__all__ = [
    "ANSWER",
    "MIN_PIECE",
    "Piece",
    "Prompt",
    "Turn",
    "all_ids",
    "all_per_token",
    "assistant_message",
    "common_prefix",
    "divide",
    "divide_turns",
    "encode",
    "fill",
    "merge_inputs",
    "page_labels",
    "placeholder_runs",
    "render",
    "shared_prefix",
    "split_media",
    "text_of",
    "user_message",
]
