"""Packed sequences: a shared prefix and branches, which see it and themselves only, as arrays of tokens."""

from __future__ import annotations

import numpy as np

from training.tokenizer import AUDIO, AUDIO_BOS, AUDIO_EOS, BOS, EOS, IMAGE, VISION_BOS, VISION_EOS, encode

PREFIX, STANDALONE, PADDING = 0, 254, 255  # values of ``seg``; other numbers are branches
TRANSCRIPT, ANSWER = 1, 2  # values of ``weight``
MEDIA_CELL = 28  # pixels a side of one visual token
FRAMES_PER_TOKEN = 4  # mel frames of one audio token


class Sequence:
    """One packed sequence being filled."""

    def __init__(self, length: int):
        self.ids = np.zeros(length, np.int16)
        self.pos = np.zeros((3, length), np.int16)
        self.seg = np.full(length, PADDING, np.uint8)
        self.weight = np.zeros(length, np.uint8)
        self.used, self.branches, self.start = 0, 0, 0

    @property
    def room(self) -> int:
        return len(self.ids) - self.used

    def _write(self, ids: list[int], pos: np.ndarray, seg: int, weight: list[int] | int = 0) -> None:
        end = self.used + len(ids)
        self.ids[self.used : end] = ids
        self.pos[:, self.used : end] = pos
        self.seg[self.used : end] = seg
        self.weight[self.used : end] = weight
        self.used = end

    def _write_text(self, ids: list[int], seg: int, weight: list[int] | int, at: int) -> int:
        self._write(ids, np.arange(at, at + len(ids)), seg, weight)
        return at + len(ids)

    def prefix_text(self, ids: list[int]) -> None:
        self.start = self._write_text(ids, PREFIX, 0, self.start)

    def prefix_image(self, height: int, width: int) -> None:
        """Image tokens in raster order with (time, row, column) positions."""
        self.prefix_text([VISION_BOS])
        rows, cols = height // MEDIA_CELL, width // MEDIA_CELL
        grid = np.stack([np.zeros((rows, cols), int), *np.mgrid[:rows, :cols]]).reshape(3, -1)
        self._write([IMAGE] * (rows * cols), grid + self.start, PREFIX)
        self.start += max(rows, cols)
        self.prefix_text([VISION_EOS])

    def prefix_audio(self, frames: int) -> None:
        self.prefix_text(audio_tokens(frames))

    def branch(self, ids: list[int], weight: list[int], standalone: bool = False) -> bool:
        """Add a branch if it fits."""
        if len(ids) > self.room or self.branches >= STANDALONE - 1:
            return False
        self.branches += not standalone
        self._write_text(ids, STANDALONE if standalone else self.branches, weight, 0 if standalone else self.start)
        return True


def audio_tokens(frames: int) -> list[int]:
    return [AUDIO_BOS] + [AUDIO] * (frames // FRAMES_PER_TOKEN) + [AUDIO_EOS]


def turns_tokens(turns: list[tuple[str, str, int]], limit: int = 200) -> tuple[list[int], list[int]]:
    """Ids and weights of a conversation that continues an open user turn: (question, answer, weight) each.

    A transcription longer than ``limit`` tokens is cut, without its end token; nothing may follow it then.
    """
    user, assistant, newline = encode(["user\n", "assistant\n", "\n"])
    texts = encode([text for question, answer, _ in turns for text in (question, answer)])
    ids: list[int] = []
    weights: list[int] = []
    for i, (_, _, weight) in enumerate(turns):
        answer = [*texts[2 * i + 1], EOS]
        head = texts[2 * i] + [EOS, *newline, BOS, *assistant]
        if i:
            head = [*newline, BOS, *user, *head]
        if len(answer) > limit:
            answer = answer[:limit]
        ids += head + answer
        weights += [0] * len(head) + [weight] * len(answer)
        if answer[-1] != EOS:
            break
    return ids, weights
