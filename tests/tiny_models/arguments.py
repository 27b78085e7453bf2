"""Arguments of ``generate`` for the tiny models: random pixels and mel frames, and placeholders that count them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.tiny_models.families import (
    AUDIO,
    AUDIO_END,
    AUDIO_START,
    IMAGE,
    NEW_TOKENS,
    PAD,
    VIDEO,
    VISION_END,
    VISION_START,
    VOCAB,
)


def _grid_images(count: int, generator: torch.Generator) -> tuple[list[list[int]], dict[str, torch.Tensor]]:
    grid = torch.tensor([[1, 8, 12]] * count)
    pixels = torch.randn(count * 96, 3 * 2 * 4 * 4, generator=generator)
    segment = [VISION_START] + [IMAGE] * 24 + [VISION_END]
    return [segment] * count, {"pixel_values": pixels, "image_grid_thw": grid}


def _plain_images(tokens: int, images: int = 1) -> Callable:
    def make(count: int, generator: torch.Generator) -> tuple[list[list[int]], dict[str, torch.Tensor]]:
        return [[IMAGE] * tokens] * count, {"pixel_values": torch.randn(count * images, 3, 28, 28, generator=generator)}

    return make


def _tiled_images(count: int, generator: torch.Generator) -> tuple[list[list[int]], dict[str, torch.Tensor]]:
    # a base view of 16 features, a 4 x 8 grid of two tiles, and a newline feature a row
    pixels = torch.randn(count, 3, 3, 28, 28, generator=generator)
    return [[IMAGE] * (16 + 4 * 9)] * count, {"pixel_values": pixels, "image_sizes": torch.tensor([[28, 56]] * count)}


def _audio(frames: int, tokens: int, padded_to: int | None = None) -> Callable:
    def make(count: int, generator: torch.Generator) -> tuple[list[list[int]], dict[str, torch.Tensor]]:
        length = padded_to or frames
        features = torch.randn(count, 16, length, generator=generator)
        mask = (torch.arange(length) < frames).long().expand(count, -1)
        segment = [AUDIO_START] + [AUDIO] * tokens + [AUDIO_END]
        return [segment] * count, {"input_features": features, "feature_attention_mask": mask}

    return make


def _image_and_audio(frames: int, tokens: int) -> Callable:
    def make(count: int, generator: torch.Generator) -> tuple[list[list[int]], dict[str, torch.Tensor]]:
        images, pixels = _grid_images((count + 1) // 2, generator)
        sounds, features = _audio(frames, tokens)(count // 2, generator)
        segments = [(images if i % 2 == 0 else sounds)[i // 2] for i in range(count)]
        return segments, {**pixels, **features}

    return make


_MEDIA: dict[str, Callable] = {
    "qwen2_vl": _grid_images,
    "qwen2_5_vl": _grid_images,
    "qwen3_vl": _grid_images,
    "qwen3_vl_moe": _grid_images,
    "llava": _plain_images(16),
    "llava_next": _tiled_images,
    "llava_onevision": _tiled_images,
    "internvl": _plain_images(16, images=4),
    "qwen2_audio": _audio(100, 25),
    "qwen2_5_omni": _image_and_audio(100, 25),
    "qwen3_omni_moe": _image_and_audio(100, 13),
    "gemma3": _plain_images(4),
}


def _grid_video(seconds: bool = False) -> Callable:
    def make(generator: torch.Generator) -> tuple[list[int], dict[str, torch.Tensor]]:
        grid = torch.tensor([[2, 8, 12]])
        extra = {"video_second_per_grid": torch.tensor([1.0])} if seconds else {}
        pixels = torch.randn(2 * 96, 3 * 2 * 4 * 4, generator=generator)
        segment = [VISION_START] + [VIDEO] * 48 + [VISION_END]
        return segment, {"pixel_values_videos": pixels, "video_grid_thw": grid, **extra}

    return make


def _timed_video(generator: torch.Generator) -> tuple[list[int], dict[str, torch.Tensor]]:
    # every frame is a segment of its own, with its time in words before it
    frame = [VISION_START] + [VIDEO] * 24 + [VISION_END]
    return [31, 7, *frame, 32, 7, *frame], _grid_video()(generator)[1]


def _pooled_video(generator: torch.Generator) -> tuple[list[int], dict[str, torch.Tensor]]:
    # 4 x 4 features a frame are pooled to 2 x 2, and one newline feature ends the video
    return [VIDEO] * (8 * 4 + 1), {"pixel_values_videos": torch.randn(1, 8, 3, 28, 28, generator=generator)}


_VIDEO: dict[str, Callable] = {
    "qwen2_vl": _grid_video(),
    "qwen2_5_vl": _grid_video(),
    "qwen3_vl": _timed_video,
    "qwen3_vl_moe": _timed_video,
    "llava_onevision": _pooled_video,
    "qwen2_5_omni": _grid_video(seconds=True),
    "qwen3_omni_moe": _grid_video(seconds=True),
}
VIDEO_FAMILIES = tuple(_VIDEO)
# Their positions come from the media only if each token's type is given.
_TYPED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")


def _arguments(family: str, sequences: list[list[int]], media: dict[str, torch.Tensor]) -> dict[str, Any]:
    length = max(map(len, sequences))
    ids = torch.tensor([[PAD] * (length - len(s)) + s for s in sequences])
    mask = torch.tensor([[0] * (length - len(s)) + [1] * len(s) for s in sequences])
    return {"input_ids": ids, "attention_mask": mask, **media, **token_types(family, ids)}


def token_types(family: str, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """The per-token inputs that a family wants besides the ids."""
    if family == "gemma3":
        return {"token_type_ids": (ids == IMAGE).long()}
    if family in _TYPED:
        return {"mm_token_type_ids": (ids == IMAGE).int() + 2 * (ids == VIDEO).int()}
    return {}


def gemma4_inputs(seed: int = 0) -> dict[str, Any]:
    """Arguments of ``generate`` for :func:`gemma4`: text, a picture of 2 x 3 tokens, text."""
    generator = torch.Generator().manual_seed(seed)
    before, after = torch.randint(3, 110, (2, 25), generator=generator).tolist()
    patches = torch.tensor([[[x, y] for y in range(4) for x in range(6)]])
    media = {"pixel_values": torch.rand(1, 24, 48, generator=generator), "image_position_ids": patches}
    given = _arguments("gemma4", [[1, *before, *[IMAGE] * 6, *after]], media)
    return {**given, "mm_token_type_ids": (given["input_ids"] == IMAGE).long()}


def video_inputs(family: str, seed: int = 0) -> dict[str, Any]:
    """Arguments of ``generate`` for one sequence: text, a video, text."""
    generator = torch.Generator().manual_seed(seed)
    segment, media = _VIDEO[family](generator)
    before, after = torch.randint(3, 110, (2, 9), generator=generator).tolist()
    return _arguments(family, [[1, *before, *segment, *after]], media)


def turn_inputs(family: str, seed: int = 0) -> list[tuple[list[int], dict[str, torch.Tensor]]]:
    """Three turns, each the ids that it adds and its own media: media first, text around new ones, text only.

    Omni models get an image and a recording a turn, the others one medium.
    """
    generator = torch.Generator().manual_seed(seed)
    first, second, third, fourth = torch.randint(3, 110, (4, 9), generator=generator).tolist()
    media = _MEDIA.get(family)
    if media is None:
        return [([1, *first], {}), ([*second, *third], {}), (fourth, {})]
    turns = []
    for before, after in (([1, *first], []), (second, third)):
        segments, extra = media(2 if "omni" in family else 1, generator)
        turns.append(([*before, *(token for segment in segments for token in segment), *after], extra))
    return [*turns, (fourth, {})]


def inputs(family: str, batch: int = 1, seed: int = 0, bare_row: bool = False) -> dict[str, Any]:
    """Arguments of ``generate`` (or of the first forward): ids, mask and media.

    The first sequence has two media segments between three runs of text; with ``batch=2`` a shorter second sequence
    with one (for omni models: two) is padded on the left; with ``bare_row`` it has only one token of text.
    """
    generator = torch.Generator().manual_seed(seed)

    def text(count: int) -> list[int]:
        return torch.randint(3, 110, (count,), generator=generator).tolist()

    media = _MEDIA.get(family)
    omni = "omni" in family
    count = 2 if bare_row else 2 * batch if omni else 1 + batch
    segments, extra = media(count, generator) if media else ([[]] * 4, {})
    sequences = [[1, *text(8), *segments[0], *text(7), *segments[1], *text(9)]]
    if bare_row:
        sequences.append([1])
    elif batch == 2:
        sequences.append([1, *text(3), *segments[2], *text(6), *(segments[3] if omni else [])])
    return _arguments(family, sequences, extra)


def generate(model: Any, arguments: dict[str, Any], **kwargs: Any) -> torch.Tensor:
    """Greedy tokens ``[B, T + NEW_TOKENS]``: no early stopping, and no placeholders in the answer."""
    settings = {
        "do_sample": False,
        "max_new_tokens": NEW_TOKENS,
        "pad_token_id": PAD,
        "suppress_tokens": list(range(IMAGE, VOCAB)),
    }
    return model.generate(**arguments, **{**settings, **kwargs})
