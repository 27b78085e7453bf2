"""Sizes of the three towers, and the numbers that the model shares with its data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IMAGE_TOKEN, AUDIO_TOKEN = 9, 3
HEAD_DIM = 64  # of all three towers
PATCH, MERGE = 14, 2
CELL = PATCH * MERGE  # pixels a side of one merged visual token
NUM_CHARS = 199  # classes of the auxiliary head: 0 for none, else the index in training.pages.canvas.CHARACTERS
NUM_SPOKEN = 29  # classes of the spoken auxiliary head: 0 blank, 1-26 letters, 27 space, 28 apostrophe
CELLS_PER_TOKEN = 8  # 2 x 4 sub-cells of 14 x 7 pixels
AUXILIARY = ("aux_head", "ctc_head")  # parameters that are dropped at export
PREFIX, STANDALONE, PADDING = 0, 254, 255  # values of `seg` with a meaning of their own; others number the branches
UNTAUGHT = 9  # weight of a target in a teacher's sequence that lacks a part of the page's text
MASKED = -3e4  # additive mask; finite, so that a fully masked row stays a number in bf16


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the three towers; the defaults are the model that ships (19.8M parameters).

    `frequencies`, radians a position, replace the ladders of `rope_time` and `rope_space` where a pretrained text
    tower brings its own.
    """

    vocab_size: int = 2048
    hidden_size: int = 384
    num_layers: int = 8
    num_heads: int = 6
    num_kv_heads: int = 2
    intermediate_size: int = 704
    max_positions: int = 8192
    page_tokens: int = 640  # merged visual tokens of a page at most
    rms_norm_eps: float = 1e-6  # of the text tower; the vision tower's is 1e-6
    rope_theta: float = 10000.0
    mrope_section: tuple[int, int, int] = (8, 12, 12)
    rope_time: tuple[float, float] = (
        0.7,
        0.002,
    )  # highest and lowest frequency of the time section, radians a position
    rope_space: tuple[float, float] = (1.0, 0.004)  # the same for the height and width sections
    frequencies: tuple[float, ...] | None = None
    vision_size: int = 256
    vision_layers: int = 8
    vision_intermediate_size: int = 640
    vision_rope_theta: float = 10000.0
    audio_size: int = 192
    audio_layers: int = 3
    audio_intermediate_size: int = 768
    num_mel_bins: int = 128
    n_window: int = 300
    max_source_positions: int = 1500

    @property
    def rope_factors(self) -> list[float]:
        """Per-frequency divisors for rope type "longrope": `factor_i = theta ** (-i / 32) / target_i`.

        The default frequencies of a three-axis rotary embedding give each axis a different band (time gets only the
        fast ones), far too fast for positions that a page advances by its width. Here each axis has its own geometric
        ladder instead.
        """
        half = HEAD_DIM // 2
        if self.frequencies is not None:
            return [self.rope_theta ** (-i / half) / target for i, target in enumerate(self.frequencies)]
        targets: list[float] = []
        for count, (high, low) in zip(
            self.mrope_section, (self.rope_time, self.rope_space, self.rope_space), strict=True
        ):
            targets += [high * (low / high) ** (i / (count - 1)) for i in range(count)]
        return [round(self.rope_theta ** (-i / half) / target, 10) for i, target in enumerate(targets)]

    def inverse_frequencies(self) -> Tensor:
        """Angular frequencies of the text rotary embedding, float32 `[32]`, by the "longrope" formula."""
        exponent = torch.arange(0, HEAD_DIM, 2, dtype=torch.int64).float() / HEAD_DIM
        return 1.0 / (torch.tensor(self.rope_factors, dtype=torch.float32) * self.rope_theta**exponent)
