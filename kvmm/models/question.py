"""Preparing a question: its message, the prompt of all turns in pieces, and the check against the context window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from kvmm.errors import KVMMError
from kvmm.media import Media
from kvmm.models import prompting
from kvmm.models.families import Family
from kvmm.models.pieces import (
    MIN_PIECE,
    Piece,
    divide,
    merge_inputs,
    placeholder_runs,
    shared_prefix,
    split_media,
)
from kvmm.models.prompting import Prompt, Turn
from kvmm.models.text_layer import TextLayer

MIN_ANSWER_TOKENS = 16  # a prompt that leaves less room than this is refused
# Tokens after which reading pauses to see whether it should stop. On a CPU that is about a page; a GPU reads as much
# as fills it.
PIECE_TOKENS = {"cpu": 512}
LARGE_PIECE_TOKENS = 8192


def user_message(processor: Any, family: Family, question: str, media: tuple[Media, ...]) -> dict[str, Any]:
    """The chat message of a question. A model that sees no pictures reads the text layer of a PDF's pages instead.

    Raises:
        KVMMError: there is nothing to ask, it cannot be asked, or the model cannot read a medium.
    """
    for kind in ("image", "audio", "video"):
        unread = [item for item in media if item.kind == kind and kind not in family.modalities]
        if unread and kind == "image" and all(item.page is not None for item in unread):
            if all(item.text.strip() for item in unread):
                continue
            raise KVMMError(
                f"This model reads text, and {unread[0].name} has pages without a text layer: load a model that reads "
                "images."
            )
        if unread:
            readable = ", ".join(("text", *family.modalities))
            raise KVMMError(f"This model reads {readable}, not {kind}: leave that file out or load another model.")
    if not question.strip() and not any(item.kind == "audio" for item in media):
        raise KVMMError("There is no question: write one, or record it.")
    written = [item for item in media if item.kind not in family.modalities]
    labels = prompting.page_labels(written) or [""] * len(written)
    pages = [label + item.text.strip() for label, item in zip(labels, written, strict=True)]
    question = with_documents(question, ["\n\n".join(pages)] if pages else [])
    if prompting.ANSWER in question:
        raise KVMMError("The question holds characters that cannot be asked: remove them.")
    return prompting.user_message(processor, question, media_shown(family, media))


def media_shown(family: Family, media: tuple[Media, ...]) -> tuple[Media, ...]:
    """The media that the model itself reads; of the others :func:`user_message` has the text."""
    return tuple(item for item in media if item.kind in family.modalities)


def with_documents(question: str, texts: Sequence[str]) -> str:
    """A question after the texts that it is about."""
    return "\n\n".join([*(text.strip() for text in texts), question])


def prompt_of(turns: Sequence[Turn], device: torch.device) -> Prompt:
    """The prompt of ``turns`` on a device, without media."""
    ids, per_token = prompting.all_ids(turns), prompting.all_per_token(turns)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **per_token}
    history = merge_inputs([turn.positions for turn in turns])
    return Prompt(
        {name: value.to(device) for name, value in inputs.items()},
        {name: value.to(device) for name, value in history.items()},
        ids,
        per_token,
        layer=TextLayer.of(item for turn in turns for item in turn.media),
    )


def media_inputs(processor: Any, turn: Turn) -> dict[str, torch.Tensor]:
    """The pixels and audio features of a turn."""
    return prompting.fill(Turn(turn.text, turn.media), prompting.encode(processor, turn.text, turn.media))


def prepare(
    model: nn.Module,
    processor: Any,
    earlier: Sequence[Turn],
    turn: Turn,
    cached: tuple[torch.Tensor, tuple[Media, ...]],
    cached_length: int,
) -> Prompt:
    """The prompt of the next ``generate`` call: all ids, and the media that the cache does not hold.

    Args:
        model, processor: of the conversation.
        earlier: its turns so far.
        turn: the question, which gets its tokens.
        cached: ids int64 ``[1, T]`` and media that the cache was filled with.
        cached_length: tokens it holds now; 0 without a cache.
    """
    encoded = prompting.fill(turn, prompting.encode(processor, turn.text, turn.media))
    turns = [*earlier, turn]
    prompt = prompt_of(turns, model.device)
    media = [item for each in turns for item in each.media]
    total = prompt.ids.shape[1]
    runs = placeholder_runs(prompt.ids, model.config, [item.kind for item in media])
    if cached_length:
        prompt.past = shared_prefix(prompt.ids, media, runs, *cached, min(cached_length, total - MIN_PIECE))
    size = PIECE_TOKENS.get(model.device.type, LARGE_PIECE_TOKENS)

    def tensors_of(each: Turn) -> dict[str, torch.Tensor]:
        return encoded if each is turn else media_inputs(processor, each)

    pieces = None if runs is None else divide_turns(turns, runs, tensors_of, prompt.past, total, size)
    if pieces is None:  # one piece: the media of all turns, or of this one
        if prompt.past < total - turn.ids.shape[1] - 1:
            prompt.past = 0
        parts = [media_inputs(processor, one) for one in earlier] if prompt.past == 0 else []
        pages = sum(item.kind == "image" for each in (turns if parts else [turn]) for item in each.media)
        pieces = [Piece(prompt.past, total, pages, merge_inputs([*parts, encoded]))]
    prompt.pieces = pieces
    return prompt


def window_of(model: nn.Module) -> int:
    """The model's context window in tokens, for prompt and answer together."""
    return getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or 1 << 30


def too_long(model: nn.Module, length: int, turn: Turn, earlier: Sequence[Turn]) -> KVMMError:
    """The error for a prompt of ``length`` tokens that exceeds the window, with advice on how to shorten it."""
    window = window_of(model)
    text = f"The prompt has {length} tokens and this model's window holds {window}: "
    pages = sum(item.kind == "image" for item in turn.media)
    if pages > 1:
        past = prompting.all_ids(earlier).shape[1]
        fit = int((window - MIN_ANSWER_TOKENS - past) / ((length - past) / pages))
        if fit >= 1:
            return KVMMError(f"{text}about {fit} of the {pages} pages fit, so ask about fewer at a time.")
    if earlier:
        return KVMMError(f"{text}start a new conversation.")
    return KVMMError(f"{text}shorten the question or send less.")


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
    new_tensors: list[dict[str, torch.Tensor]] = []
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
        new_tensors += [parts[i] for i in new]
    return divide(past, total, [run for run in runs if run[0] >= past], new_tensors, size)


__all__ = [
    "MIN_ANSWER_TOKENS",
    "divide_turns",
    "media_inputs",
    "media_shown",
    "prepare",
    "prompt_of",
    "too_long",
    "user_message",
    "window_of",
    "with_documents",
]
