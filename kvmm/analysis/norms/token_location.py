"""The location of a token in its input: the patch of a page, the moment of a recording, the word of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from kvmm.errors import KVMMError
from kvmm.modality import AUDIO, IMAGE, MODALITY_NAMES, TEXT, VIDEO

MARK_COLOR = "#D55E00"
_CONTEXT = 60  # characters of text shown on either side of a word


@dataclass(frozen=True)
class Patch:
    """One token of an image or a video: cell ``(row, column)`` of the ``rows x columns`` cells, all from 0.

    ``image`` counts the images, or the videos, of the prompt. A video has ``frames`` such grids, each of one or two
    pictures.
    """

    image: int
    row: int
    column: int
    rows: int
    columns: int
    frame: int = 0
    frames: int = 1

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom as shares of the image's width and height, in 0 ... 1."""
        return (
            self.column / self.columns,
            self.row / self.rows,
            (self.column + 1) / self.columns,
            (self.row + 1) / self.rows,
        )


@dataclass(frozen=True)
class Moment:
    """One audio token: seconds ``start`` to ``end`` of recording ``recording``, counted from 0."""

    recording: int
    start: float
    end: float


@dataclass(frozen=True)
class Word:
    """One text token: the word it is part of, and the text before and after it."""

    before: str
    word: str
    after: str


def image_patch(
    modality: np.ndarray, position: int, image_grid_thw: Sequence[Sequence[int]], merge_size: int = 2
) -> Patch:
    """The image and the patch of a token, for processors that return ``image_grid_thw`` (the Qwen families).

    Their image tokens come row by row, one for each ``merge_size x merge_size`` patches.

    Args:
        modality: int8 ``[T]``, codes of :mod:`kvmm.modality`.
        position: of an image token.
        image_grid_thw: int ``[N, 3]``, patches of each image: frames, rows, columns.
        merge_size: patches that one token merges, in each direction.

    Raises:
        KVMMError: the token is of no image, or the grids have another number of tokens.
    """
    return _patch(modality, position, IMAGE, image_grid_thw, merge_size)


def video_patch(
    modality: np.ndarray, position: int, video_grid_thw: Sequence[Sequence[int]], merge_size: int = 2
) -> Patch:
    """:func:`image_patch` of a video token: frame by frame, each row by row. Time stamps between frames do not matter.

    Raises:
        KVMMError: the token is of no video, or the grids have another number of tokens.
    """
    return _patch(modality, position, VIDEO, video_grid_thw, merge_size)


def _patch(modality: np.ndarray, position: int, code: int, grid_thw: Sequence[Sequence[int]], merge_size: int) -> Patch:
    modality = np.asarray(modality)
    _check(modality, position, code)
    grids = [(int(t), int(h) // merge_size, int(w) // merge_size) for t, h, w in grid_thw]
    if sum(t * h * w for t, h, w in grids) != int((modality == code).sum()):
        name = MODALITY_NAMES[code]
        raise KVMMError(f"The prompt's {name} tokens are not those of its {name}_grid_thw.")
    index = int((modality[:position] == code).sum())
    for image, (frames, rows, columns) in enumerate(grids):
        if index < frames * rows * columns:
            frame, cell = divmod(index, rows * columns)
            row, column = divmod(cell, columns)
            return Patch(image, row, column, rows, columns, frame, frames)
        index -= frames * rows * columns
    raise AssertionError  # the counts agree


def image_index(modality: np.ndarray, position: int) -> int:
    """Which image a token is of, from 0, for models without grids: their images are runs of neighbouring tokens."""
    return _run(np.asarray(modality), position, IMAGE)[0]


def audio_moment(modality: np.ndarray, position: int, durations: Sequence[float]) -> Moment:
    """Which part of which recording a token is; a recording's tokens are neighbours and cover it evenly.

    Args:
        modality: int8 ``[T]``.
        position: of an audio token.
        durations: seconds of each recording, in order.

    Raises:
        KVMMError: the token is of no recording, or of one without a duration.
    """
    recording, first, count = _run(np.asarray(modality), position, AUDIO)
    if recording >= len(durations):
        raise KVMMError(f"There is no duration of recording {recording + 1}.")
    second = durations[recording] / count
    return Moment(recording, (position - first) * second, (position - first + 1) * second)


def text_word(modality: np.ndarray, position: int, tokens: Sequence[str]) -> Word:
    """The word that a text token is part of, and up to 60 characters on both sides.

    A word ends at white space, at a token of another modality and at a special token (``<|...|>``).

    Args:
        modality: int8 ``[T]``.
        position: of a text token.
        tokens: ``T`` strings.

    Raises:
        KVMMError: the token is no text.
    """
    modality = np.asarray(modality)
    _check(modality, position, TEXT)

    def plain(i: int) -> bool:
        return 0 <= i < len(tokens) and modality[i] == TEXT and not tokens[i].startswith("<|")

    def joined(i: int) -> bool:
        """Whether token ``i`` goes on with the word of the token before."""
        return plain(i - 1) and plain(i) and not tokens[i][:1].isspace() and not tokens[i - 1][-1:].isspace()

    first = last = position
    while joined(first):
        first -= 1
    while joined(last + 1):
        last += 1
    before, after, i = "", "", first - 1
    while len(before) < _CONTEXT and plain(i):
        before, i = tokens[i] + before, i - 1
    i = last + 1
    while len(after) < _CONTEXT and plain(i):
        after, i = after + tokens[i], i + 1
    return Word(before, "".join(tokens[first : last + 1]), after)


def marked_page(image: Image.Image, box: tuple[float, float, float, float], size: int = 560) -> Image.Image:
    """A copy of at most ``size`` pixels a side with ``box`` (shares of width and height) framed and all else paler."""
    page = image.convert("RGB")
    page.thumbnail((size, size))
    pixels = _pixels(box, page.size)
    pale = Image.blend(page, Image.new("RGB", page.size, "white"), 0.35)
    pale.paste(page.crop(pixels), pixels[:2])
    draw = ImageDraw.Draw(pale)
    grown = (max(pixels[0] - 3, 0), max(pixels[1] - 3, 0), pixels[2] + 2, pixels[3] + 2)
    draw.rectangle(grown, outline=MARK_COLOR, width=3)
    return pale


def patch_crop(image: Image.Image, box: tuple[float, float, float, float], size: int = 220) -> Image.Image:
    """The patch with half a patch around it, enlarged to ``size`` pixels, and the patch framed."""
    left, top, right, bottom = box
    wide, high = (right - left) / 2, (bottom - top) / 2
    around = (max(left - wide, 0), max(top - high, 0), min(right + wide, 1), min(bottom + high, 1))
    area = _pixels(around, image.size)
    crop = image.convert("RGB").crop(area)
    scale = size / max(crop.size)
    crop = crop.resize((max(1, round(crop.width * scale)), max(1, round(crop.height * scale))), Image.BICUBIC)
    inner = _pixels(box, image.size)
    frame = [(inner[i] - area[i % 2]) * scale for i in range(4)]
    ImageDraw.Draw(crop).rectangle([frame[0], frame[1], frame[2] - 1, frame[3] - 1], outline=MARK_COLOR, width=2)
    return crop


def _pixels(box: tuple[float, float, float, float], size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Whole pixels, at least one in each direction."""
    left, top = (min(int(share * side), side - 1) for share, side in zip(box[:2], size, strict=True))
    right, bottom = (round(share * side) for share, side in zip(box[2:], size, strict=True))
    return left, top, max(right, left + 1), max(bottom, top + 1)


def _check(modality: np.ndarray, position: int, code: int) -> None:
    if not 0 <= position < len(modality):
        raise KVMMError(f"There is no token {position}: the prompt has {len(modality)}, counted from 0.")
    if modality[position] != code:
        raise KVMMError(f"Token {position} is {MODALITY_NAMES[modality[position]]}, not {MODALITY_NAMES[code]}.")


def _run(modality: np.ndarray, position: int, code: int) -> tuple[int, int, int]:
    """Which run of neighbouring tokens of ``code`` a token is in, where it begins, and how long it is."""
    _check(modality, position, code)
    edges = np.diff(np.concatenate([[0], (modality == code).astype(int), [0]]))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    run = int(np.searchsorted(starts, position, side="right")) - 1
    return run, int(starts[run]), int(ends[run] - starts[run])


__all__ = [
    "Moment",
    "Patch",
    "Word",
    "audio_moment",
    "image_index",
    "image_patch",
    "marked_page",
    "patch_crop",
    "text_word",
    "video_patch",
]
