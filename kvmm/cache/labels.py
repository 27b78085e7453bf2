"""The modality of the tokens of one call, from whatever the call says of them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kvmm.errors import KVMMError
from kvmm.modality import AUDIO, IMAGE, PADDING, TEXT, VIDEO, check_map, label_ids

UNKNOWN = (
    "With inputs_embeds alone the cache cannot tell images from text: also pass mm_token_type_ids or three-axis "
    "position_ids to the call, pass modality= to KVMMCache.for_model, or call cache.set_modality first."
)


def label_call(
    call: dict[str, Any],
    placeholders: Sequence[tuple[int, int]],
    *,
    explicit: torch.Tensor | None = None,
    model: nn.Module | None = None,
    same_codecs: bool = False,
) -> torch.Tensor:
    """The modality map of a call.

    In this order: ``explicit``; ``input_ids``; token types; rows of ``inputs_embeds`` that are a placeholder's
    embedding, which is how models themselves find where media go; positions on three axes.

    Args:
        call: what the model was called with: ``input_ids`` ``[B, q]`` or ``inputs_embeds`` ``[B, q, hidden]``, and
            where it has them ``attention_mask``, ``mm_token_type_ids`` or ``token_type_ids`` (``[B, T]``, T >= q), and
            ``position_ids``.
        placeholders: of :func:`kvmm.modality.placeholder_ids`; empty for a text-only model.
        explicit: a map given by the caller.
        model: has ``get_input_embeddings``.
        same_codecs: all modalities of the model are stored alike, so that not knowing them costs nothing.

    Returns:
        int8 ``[B, q]``, ``PADDING`` where a two-dimensional attention mask is 0.

    Raises:
        KVMMError: if nothing tells modalities apart that are stored differently, or for an explicit map that does not
            fit.
    """
    ids, embeds = call.get("input_ids"), call.get("inputs_embeds")
    given = embeds if ids is None else ids
    batch, count = given.shape[:2]
    if explicit is not None:
        codes = check_map(explicit, batch, count).to(given.device)
    elif ids is not None:
        codes = label_ids(ids, placeholders)
    elif not placeholders or count == 1:  # a step, or a model of text alone
        codes = torch.full((batch, count), TEXT, dtype=torch.int8, device=given.device)
    else:
        codes = _from_types(call, count)
        codes = _from_rows(embeds, placeholders, model) if codes is None else codes
        codes = _from_positions(call.get("position_ids"), batch, count, placeholders) if codes is None else codes
        if codes is None:
            if not same_codecs:
                raise KVMMError(UNKNOWN)
            codes = torch.full((batch, count), TEXT, dtype=torch.int8)
        codes = codes.to(given.device).expand(batch, -1)
    mask = call.get("attention_mask")
    if isinstance(mask, torch.Tensor) and mask.dim() == 2 and mask.shape[1] >= count:
        codes = codes.masked_fill(mask[:, -count:].to(codes.device) == 0, PADDING)
    return codes


def label_unannounced(
    batch: int,
    count: int,
    explicit: torch.Tensor | None,
    model: nn.Module | None,
    told_apart: bool,
    device: torch.device,
) -> torch.Tensor:
    """The modality map of a call that the model's hook did not see, since a module inside the model was called.

    Args:
        batch, count: sequences of so many new tokens each.
        explicit: a map given by the caller; else all tokens are text, with a warning where that may be wrong.
        model: that the cache was made for; None: a cache without a model, which nobody expects to know more.
        told_apart: whether the model has modalities that are stored differently.
        device: of a map that is made, so that a decode step copies nothing.

    Returns:
        int8 ``[batch, count]``.

    Raises:
        KVMMError: for an explicit map that does not fit.
    """
    if explicit is not None:
        return check_map(explicit, batch, count)
    if count > 1 and model is not None and (told_apart or batch > 1):
        warnings.warn(
            f"A call went past the hook of {type(model).__name__} (a module inside it or its forward was called, or "
            f"KVMMCache.release came before): {'media and padding count' if told_apart else 'padding counts'} as text. "
            "Call the model itself, or cache.set_modality first.",
            stacklevel=2,
        )
    return torch.full((batch, count), TEXT, dtype=torch.int8, device=device)


def _from_types(call: dict[str, Any], count: int) -> torch.Tensor | None:
    """Token types count as kvmm does: 0 text, 1 image, 2 video, 3 audio."""
    types = call.get("mm_token_type_ids")
    types = call.get("token_type_ids") if types is None else types
    if not isinstance(types, torch.Tensor) or types.dim() != 2 or types.shape[1] < count:
        return None
    types = types[:, -count:]
    return types.to(torch.int8) if bool(((types >= TEXT) & (types <= AUDIO)).all()) else None


def _from_rows(
    embeds: torch.Tensor, placeholders: Sequence[tuple[int, int]], model: nn.Module | None
) -> torch.Tensor | None:
    """None where no row is a placeholder's: media may have been put in already."""
    if model is None:
        return None
    embedding = model.get_input_embeddings()
    codes = torch.full(embeds.shape[:2], TEXT, dtype=torch.int8, device=embeds.device)
    for token_id, modality in reversed(placeholders):
        if token_id < getattr(embedding, "num_embeddings", 0):
            with torch.no_grad():
                row = embedding(torch.tensor([token_id], device=embedding.weight.device))[0]
            codes.masked_fill_((embeds == row.to(embeds)).all(-1), modality)
    return codes if bool((codes != TEXT).any()) else None


def _from_positions(
    positions: Any, batch: int, count: int, placeholders: Sequence[tuple[int, int]]
) -> torch.Tensor | None:
    """Text moves on by one on all of three axes; a picture stays on the first, a video moves on there frame by frame.

    Audio moves on as text does, so that a model that hears is not read like this.
    """
    if not isinstance(positions, torch.Tensor) or positions.dim() != 3 or positions.shape[0] < 3:
        return None
    if any(modality == AUDIO for _, modality in placeholders):
        return None
    time, height, width = positions[-3:, :, -count:].expand(-1, batch, -1)
    flat = (time == height) & (time == width)
    stays = torch.zeros_like(flat)
    stays[:, :-1] = time[:, 1:] == time[:, :-1]  # the first patch of a picture lies on the diagonal, as text does
    media = ~flat | stays
    codes = torch.where(media, IMAGE, TEXT).to(torch.int8)
    if any(modality == VIDEO for _, modality in placeholders):
        for row in range(batch):
            for start, end in _runs(media[row].tolist()):
                if len(set(time[row, start:end].tolist())) > 1:
                    codes[row, start:end] = VIDEO
    return codes


def _runs(flags: list[bool]) -> list[tuple[int, int]]:
    """``(start, end)`` of every run of True."""
    edges = [i for i, (a, b) in enumerate(zip([False, *flags], [*flags, False], strict=True)) if a != b]
    return list(zip(edges[::2], edges[1::2], strict=True))
