"""Frames as the tensors of each family, without torchvision: what transformers' own video processors make of them.

transformers builds its video processors on torchvision, whose build must match torch's. The arithmetic is small, so it
is here once, and the pixels that a model sees do not depend on what happens to be installed. The Qwen families take
frames in pairs as patches, at the sizes that qwen-vl-utils gives them; LLaVA-OneVision and InternVL take them as
pictures of one size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import BatchFeature
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from transformers.video_utils import VideoMetadata

from kvmm.errors import KVMMError

# qwen-vl-utils: tokens of one pair of frames, and of a whole video
MIN_TOKENS, MAX_TOKENS, TOTAL_TOKENS = 128, 768, 115_200
MAX_RATIO = 200

Size = tuple[int, int]


class VideoProcessor:
    """The part of a processor that makes tensors of frames; takes the place of transformers' ``BaseVideoProcessor``.

    Args:
        settings: of ``video_preprocessor_config.json``, or of ``preprocessor_config.json`` where a checkpoint has no
            other.

    Attributes:
        merge_size, temporal_patch_size, patch_size: as in transformers; processors look them up.
    """

    model_input_names: ClassVar[list[str]] = ["pixel_values_videos"]
    default_size: ClassVar[Mapping[str, int]] = {"height": 384, "width": 384}
    _auto_class = None  # looked up when a processor is saved

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        self.size = dict(self.default_size) | dict(settings.get("size") or {})
        self.mean = torch.tensor(settings.get("image_mean") or OPENAI_CLIP_MEAN).view(-1, 1, 1)
        self.std = torch.tensor(settings.get("image_std") or OPENAI_CLIP_STD).view(-1, 1, 1)
        self.scale = float(settings.get("rescale_factor") or 1 / 255)
        self.merge_size = int(settings.get("merge_size") or 1)
        self.patch_size = int(settings.get("patch_size") or 14)
        self.temporal_patch_size = int(settings.get("temporal_patch_size") or 1)

    def __call__(
        self,
        videos: Sequence[torch.Tensor],
        *,
        video_metadata: Sequence[Mapping[str, Any]] = (),
        return_metadata: bool = False,
        return_tensors: str | None = None,
        **_: Any,
    ) -> BatchFeature:
        """The tensors of some videos.

        Args:
            videos: uint8 ``[T, 3, H, W]`` each, sampled already.
            video_metadata: ``VideoMetadata`` of each, or the same as dictionaries.
            return_metadata: give it back, as processors that write time stamps ask for.
            return_tensors, _: accepted because transformers' processors pass them.
        """
        data: dict[str, Any] = self._tensors(videos)
        if return_metadata:
            data["video_metadata"] = [
                one if isinstance(one, VideoMetadata) else VideoMetadata(**one) for one in video_metadata
            ]
        return BatchFeature(data=data)

    def _tensors(self, videos: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        pixels = [self._normalized(_resized(video, self._fixed_size())) for video in videos]
        if len({len(video) for video in pixels}) > 1:
            raise KVMMError("This model reads several videos only with as many frames each: ask about one.")
        return {"pixel_values_videos": torch.stack(pixels)}

    def _fixed_size(self) -> Size:
        if "height" not in self.size or "width" not in self.size:
            raise KVMMError("This model's files do not say how large a frame is: its video settings are not supported.")
        return int(self.size["height"]), int(self.size["width"])

    def _normalized(self, frames: torch.Tensor) -> torch.Tensor:
        """float32 ``[T, 3, H, W]``; scaled and normalised in one step, as transformers does."""
        return (frames.float() - self.mean / self.scale) / (self.std / self.scale)

    def save_pretrained(self, folder: Any, **_: Any) -> list[str]:
        """Write the settings as ``video_preprocessor_config.json``."""
        path = Path(folder) / "video_preprocessor_config.json"
        path.write_text(json.dumps(self.settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        return [str(path)]


class QwenVideoProcessor(VideoProcessor):
    """Patches of pairs of frames (Qwen2-VL, Qwen2.5-VL, both Omni): ``size`` holds the pixels of one frame."""

    model_input_names: ClassVar[list[str]] = ["pixel_values_videos", "video_grid_thw"]
    default_size: ClassVar[Mapping[str, int]] = {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28}

    def __init__(self, settings: Mapping[str, Any]) -> None:
        size = dict(settings.get("size") or {})
        for name, older in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
            if older in settings and name not in size:
                size[name] = settings[older]
        merged = {"merge_size": 2, "temporal_patch_size": 2, **self._default_settings(), **settings}
        super().__init__({**merged, "size": size})

    def _default_settings(self) -> dict[str, Any]:
        return {}

    def _tensors(self, videos: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        parts = [self._patches(video) for video in videos]
        return {
            "pixel_values_videos": torch.cat([patches for patches, _ in parts]),
            "video_grid_thw": torch.tensor([grid for _, grid in parts]),
        }

    def _patches(self, frames: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """float32 ``[t * h * w, 3 * temporal * patch * patch]`` and ``[t, h, w]``; merged patches are neighbours."""
        pair, patch, merge = self.temporal_patch_size, self.patch_size, self.merge_size
        if missing := -len(frames) % pair:
            frames = torch.cat([frames, frames[-1:].expand(missing, -1, -1, -1)])
        size = self.frame_size(len(frames), *frames.shape[-2:])
        frames = self._normalized(_resized(frames, size, in_float=True))
        t, h, w = len(frames) // pair, frames.shape[2] // patch, frames.shape[3] // patch
        grid = frames.view(t, pair, 3, h // merge, merge, patch, w // merge, merge, patch)
        return grid.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w, -1), [t, h, w]

    def frame_size(self, frames: int, height: int, width: int) -> Size:
        """Height and width of the frames as the model sees them: qwen-vl-utils' size, within the settings' bounds."""
        factor = self.patch_size * self.merge_size
        area = factor * factor
        most = max(min(MAX_TOKENS, TOTAL_TOKENS * self.temporal_patch_size // frames), int(MIN_TOKENS * 1.05)) * area
        return self._bounded(frames, *smart_resize(height, width, factor, MIN_TOKENS * area, most))

    def _bounded(self, frames: int, height: int, width: int) -> Size:
        factor = self.patch_size * self.merge_size
        return smart_resize(height, width, factor, self.size["shortest_edge"], self.size["longest_edge"])


class Qwen3VideoProcessor(QwenVideoProcessor):
    """The same of Qwen3-VL, whose ``size`` holds the pixels of all frames of a video together."""

    default_size: ClassVar[Mapping[str, int]] = {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32}

    def _default_settings(self) -> dict[str, Any]:
        return {"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}

    def _bounded(self, frames: int, height: int, width: int) -> Size:
        factor = self.patch_size * self.merge_size
        shortest, longest = self.size["shortest_edge"], self.size["longest_edge"]
        # transformers' cap_pixels_per_frame: an even share of the video's pixels, but no frame below the smallest
        share = max(min(MAX_TOKENS * factor * factor, longest // frames), int(shortest * 1.05))
        return smart_resize(height, width, factor, shortest, share * frames, frames=frames)


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int, *, frames: int = 1) -> Size:
    """Qwen's rule: sides divisible by ``factor``, pixels of ``frames`` frames within bounds, sides in proportion.

    Raises:
        KVMMError: one side is more than 200 times the other.
    """
    if max(height, width) > MAX_RATIO * min(height, width):
        raise KVMMError(f"A frame of {width} x {height} pixels is too narrow for this model: cut the video.")
    h, w = max(factor, round(height / factor) * factor), max(factor, round(width / factor) * factor)
    if frames * h * w > max_pixels:
        beta = math.sqrt(frames * height * width / max_pixels)
        h = max(factor, math.floor(height / beta / factor) * factor)
        w = max(factor, math.floor(width / beta / factor) * factor)
    elif frames * h * w < min_pixels:
        beta = math.sqrt(min_pixels / (frames * height * width))
        h, w = math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor
    return h, w


def _resized(frames: torch.Tensor, size: Size, *, in_float: bool = False) -> torch.Tensor:
    """uint8 ``[T, 3, H, W]`` at another size, bicubic with antialiasing.

    transformers' processors (torchvision's v2) resize in uint8, qwen-vl-utils (v1) in float32 and then rounds.
    """
    if tuple(frames.shape[-2:]) == size:
        return frames
    options = {"size": size, "mode": "bicubic", "antialias": True, "align_corners": False}
    if not in_float:
        return torch.nn.functional.interpolate(frames, **options)
    resized = torch.empty(*frames.shape[:2], *size, dtype=torch.uint8)
    for into, frame in zip(resized, frames, strict=True):
        into.copy_(torch.nn.functional.interpolate(frame[None].float(), **options)[0].clamp_(0, 255).round_())
    return resized


_PROCESSORS: dict[str, type[VideoProcessor]] = {
    "Qwen2VLVideoProcessor": QwenVideoProcessor,
    "Qwen3VLVideoProcessor": Qwen3VideoProcessor,
    "LlavaOnevisionVideoProcessor": VideoProcessor,
    "InternVLVideoProcessor": VideoProcessor,
}


def video_processor(name: str, settings: Mapping[str, Any]) -> VideoProcessor:
    """The processor that stands for transformers' class ``name``."""
    return _PROCESSORS[name](settings)


__all__ = ["Qwen3VideoProcessor", "QwenVideoProcessor", "VideoProcessor", "smart_resize", "video_processor"]
