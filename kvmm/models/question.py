"""A question on its way to the model: its message, the prompt of all turns, and whether the window holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kvmm.errors import KVMMError
from kvmm.media import Media
from kvmm.models import prompting
from kvmm.models.families import Family
from kvmm.models.prompting import MIN_PIECE, Piece, Prompt, Turn

MIN_ANSWER_TOKENS = 16  # a prompt that leaves less room than this is refused
# Tokens after which reading pauses to see whether it should stop. On a CPU that is about a page; a GPU reads as much
# as fills it.
PIECE_TOKENS = {"cpu": 512}
LARGE_PIECE_TOKENS = 8192


def user_message(processor: Any, family: Family, question: str, media: tuple[Media, ...]) -> dict[str, Any]:
    """The chat message of a question.

    Raises:
        KVMMError: there is nothing to ask, it cannot be asked, or the model has no sense for a medium.
    """
    for kind in ("image", "audio", "video"):
        if any(item.kind == kind for item in media) and kind not in family.modalities:
            senses = ", ".join(("text", *family.modalities))
            raise KVMMError(f"This model reads {senses}, not {kind}: leave that file out or load another model.")
    if not question.strip() and not any(item.kind == "audio" for item in media):
        raise KVMMError("There is no question: write one, or record it.")
    if prompting.ANSWER in question:
        raise KVMMError("The question holds characters that cannot be asked: remove them.")
    return prompting.user_message(processor, question, media)


def prompt_of(turns: Sequence[Turn], device: torch.device) -> Prompt:
    """Everything said in ``turns``, on a device; without their media."""
    ids, per_token = prompting.all_ids(turns), prompting.all_per_token(turns)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **per_token}
    history = prompting.merge_inputs([turn.positions for turn in turns])
    return Prompt(
        {name: value.to(device) for name, value in inputs.items()},
        {name: value.to(device) for name, value in history.items()},
        ids,
        per_token,
    )


def media_inputs(processor: Any, turn: Turn) -> dict[str, torch.Tensor]:
    """The pixels and sounds of a turn, as its model takes them."""
    return prompting.fill(Turn(turn.text, turn.media), prompting.encode(processor, turn.text, turn.media))


def prepare(
    model: nn.Module,
    processor: Any,
    earlier: Sequence[Turn],
    turn: Turn,
    held: tuple[torch.Tensor, tuple[Media, ...]],
    held_length: int,
) -> Prompt:
    """The next call of ``generate``: all ids, but pixels and sounds only of what the cache does not hold.

    Args:
        model, processor: of the conversation.
        earlier: its turns so far.
        turn: the question, which gets its tokens.
        held: ids int64 ``[1, T]`` and media that the cache was filled with.
        held_length: tokens it holds now; 0 without a cache.
    """
    encoded = prompting.fill(turn, prompting.encode(processor, turn.text, turn.media))
    turns = [*earlier, turn]
    prompt = prompt_of(turns, model.device)
    media = [item for each in turns for item in each.media]
    total = prompt.ids.shape[1]
    runs = prompting.placeholder_runs(prompt.ids, model.config, [item.kind for item in media])
    if held_length:
        prompt.past = prompting.shared_prefix(prompt.ids, media, runs, *held, min(held_length, total - MIN_PIECE))
    size = PIECE_TOKENS.get(model.device.type, LARGE_PIECE_TOKENS)

    def tensors_of(each: Turn) -> dict[str, torch.Tensor]:
        return encoded if each is turn else media_inputs(processor, each)

    pieces = None if runs is None else prompting.divide_turns(turns, runs, tensors_of, prompt.past, total, size)
    if pieces is None:  # one piece: the media of all turns, or of this one
        if prompt.past < total - turn.ids.shape[1] - 1:
            prompt.past = 0
        parts = [media_inputs(processor, one) for one in earlier] if prompt.past == 0 else []
        pages = sum(item.kind == "image" for each in (turns if parts else [turn]) for item in each.media)
        pieces = [Piece(prompt.past, total, pages, prompting.merge_inputs([*parts, encoded]))]
    prompt.pieces = pieces
    return prompt


def window_of(model: nn.Module) -> int:
    """Tokens the model was made for, prompt and answer together."""
    return getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or 1 << 30


def too_long(model: nn.Module, length: int, turn: Turn, earlier: Sequence[Turn]) -> KVMMError:
    """Why ``turn`` behind ``earlier`` ones, ``length`` tokens in all, is refused, and what to do."""
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


__all__ = ["MIN_ANSWER_TOKENS", "media_inputs", "prepare", "prompt_of", "too_long", "user_message", "window_of"]
