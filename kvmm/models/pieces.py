"""Division of a prompt into pieces that are read one after another.

A piece ends after a page, a picture or a recording, so that reading can report its progress and stop between pages. If
the tensors of the media cannot be separated, the prompt is one piece.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kvmm.media import Media
from kvmm.modality import AUDIO, IMAGE, TEXT, label_ids, placeholder_ids

MIN_PIECE = 2  # a single token would be a decode step, which packs what the cache holds
_KINDS = {"image": IMAGE, "audio": AUDIO}
_INPUTS = {
    "image": ("pixel_values", "image_grid_thw", "image_sizes"),
    "audio": ("input_features", "feature_attention_mask", "input_features_mask"),
}


@dataclass
class Piece:
    """The new tokens ``start`` to ``end`` (not included), with the media of the placeholders among them."""

    start: int
    end: int
    pages: int = 0
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """New tokens."""
        return self.end - self.start


def placeholder_runs(ids: torch.Tensor, config: Any, kinds: Sequence[str]) -> list[tuple[int, int]] | None:
    """Where the placeholders of each medium begin and end.

    Args:
        ids: int64 ``[1, T]``.
        config: the model's.
        kinds: "image" or "audio" of all media, in their order.

    Returns:
        ``(start, end)`` per medium, or None where the tokens do not show which medium is which.
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
        a dictionary per medium, or None where the rows of a tensor cannot be told apart.
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
    cached_ids: torch.Tensor,
    cached_media: Sequence[Media],
    most: int,
) -> int:
    """The number of leading tokens of a prompt that a cache holds, with the same media.

    Args:
        ids, media, runs: the prompt ``[1, T]``, its media and where they are; None if that is not known.
        cached_ids, cached_media: what the cache was filled with.
        most: tokens it still has, or that may be taken from it.

    Returns:
        a number of tokens that ends in no medium.
    """
    count = min(common_prefix(ids, cached_ids), most)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], zip(media, cached_media, strict=False)))
    if runs is None:  # all of it or nothing
        return count if same == len(cached_media) and count >= cached_ids.shape[1] - 1 else 0
    for i, (start, end) in enumerate(runs):
        if start < count and (i >= same or end > count):
            return start
    return count


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
    piece_media: list[list[dict[str, torch.Tensor]]] = [[]]

    def text_until(end: int) -> None:
        while end - pieces[-1].start > size:
            cut = max(pieces[-1].end, pieces[-1].start + size)
            pieces[-1].end = cut
            pieces.append(Piece(cut, cut))
            piece_media.append([])
        pieces[-1].end = end

    for (start, end), tensors in zip(runs, media, strict=True):
        text_until(start)
        pieces[-1].end = end
        pieces[-1].pages += "pixel_values" in tensors
        piece_media[-1].append(tensors)
        if end - pieces[-1].start >= size and end < total:
            pieces.append(Piece(end, end))
            piece_media.append([])
    text_until(total)
    for i in range(len(pieces) - 1, 0, -1):
        if pieces[i].end - pieces[i].start < MIN_PIECE:
            last = pieces.pop(i)
            pieces[i - 1].end, pieces[i - 1].pages = last.end, pieces[i - 1].pages + last.pages
            piece_media[i - 1] += piece_media.pop(i)
    for piece, parts in zip(pieces, piece_media, strict=True):
        piece.inputs = merge_inputs(parts)
    return pieces


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
    """The number of leading tokens that ``left`` and ``right``, int64 ``[1, T]``, have in common."""
    count = min(left.shape[1], right.shape[1])
    differs = (left[0, :count] != right[0, :count]).nonzero()
    return int(differs[0]) if differs.numel() else count


__all__ = [
    "MIN_PIECE",
    "Piece",
    "common_prefix",
    "divide",
    "merge_inputs",
    "placeholder_runs",
    "shared_prefix",
    "split_media",
]
