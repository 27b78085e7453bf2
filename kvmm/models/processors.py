"""Processors for images, audio and video that do not need torchvision.

transformers builds the processors of the Qwen VL and omni families around a video processor, which needs torchvision.
The same processor classes work with :mod:`kvmm.models.video`, which does not; and images always go through the Pillow
backend, so that the pixels a model sees do not depend on whether torchvision happens to be installed.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, ProcessorMixin, WhisperFeatureExtractor

from kvmm.models.families import Family
from kvmm.models.video import VideoProcessor, video_processor

# Module of each image processor class; the Pillow version is `<name>Pil` in `image_processing_pil_<module>`.
_IMAGE_PROCESSOR_MODULES = {
    "Qwen2VLImageProcessor": "qwen2_vl",
    "CLIPImageProcessor": "clip",
    "SiglipImageProcessor": "siglip",
    "LlavaImageProcessor": "llava",
    "LlavaNextImageProcessor": "llava_next",
    "LlavaOnevisionImageProcessor": "llava_onevision",
    "GotOcr2ImageProcessor": "got_ocr2",
    "Gemma3ImageProcessor": "gemma3",
}


def load_processor(folder: Path, family: Family, config: Any) -> ProcessorMixin | PreTrainedTokenizerBase:
    """The processor in ``folder``; the tokenizer alone for a text-only family.

    ``config`` is the model's configuration: it supplies the number of mel bins when the folder has no settings for the
    audio features. Raises what transformers raises when files are missing or unreadable.
    """
    if family.processor_class is None:
        return AutoTokenizer.from_pretrained(folder)
    base = getattr(transformers, family.processor_class)

    class Processor(base):
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> type:
            if isinstance(argument, VideoProcessor):
                return VideoProcessor
            return super().check_argument_for_proper_class(argument_name, argument)

        def to_dict(self) -> dict[str, Any]:
            parts = super().to_dict()
            if isinstance(parts.get("video_processor"), VideoProcessor):
                del parts["video_processor"]
            return parts

        @classmethod
        def _get_arguments_from_pretrained(cls, path: Any, processor_dict: dict | None = None, **kwargs: Any) -> list:
            parts = {
                "tokenizer": lambda: AutoTokenizer.from_pretrained(folder),
                "image_processor": lambda: _load_image_processor(folder, family),
                "feature_extractor": lambda: _load_feature_extractor(folder, config),
                "video_processor": lambda: _load_video_processor(folder, family),
            }
            return [parts[name]() for name in cls.get_attributes()]

    # Saved processors name their class: keep the one transformers can find again.
    Processor.__name__ = Processor.__qualname__ = base.__name__
    return Processor.from_pretrained(folder)


def _settings(folder: Path) -> dict[str, Any]:
    """The processor files of a folder as one dictionary; newer checkpoints nest each part in processor_config.json."""
    settings: dict[str, Any] = {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            settings.update(json.loads((folder / name).read_text(encoding="utf-8")))
    return settings


def _load_image_processor(folder: Path, family: Family) -> Any:
    settings = _settings(folder)
    settings = settings.get("image_processor", settings)
    name = str(settings.get("image_processor_type", "")).removesuffix("Fast").removesuffix("Pil")
    if name not in _IMAGE_PROCESSOR_MODULES:
        name = family.image_processor
    module = importlib.import_module(
        f"transformers.models.{_IMAGE_PROCESSOR_MODULES[name]}.image_processing_pil_{_IMAGE_PROCESSOR_MODULES[name]}"
    )
    return getattr(module, f"{name}Pil").from_pretrained(folder)


def _load_feature_extractor(folder: Path, config: Any) -> WhisperFeatureExtractor:
    settings = _settings(folder)
    if "feature_extractor" in settings or "feature_size" in settings:
        return WhisperFeatureExtractor.from_pretrained(folder)
    thinker = getattr(config, "thinker_config", config)
    return WhisperFeatureExtractor(feature_size=thinker.audio_config.num_mel_bins)


def _load_video_processor(folder: Path, family: Family) -> VideoProcessor:
    """By the video's own settings; checkpoints without any mean those of images, as transformers reads them."""
    settings = _settings(folder)
    path = folder / "video_preprocessor_config.json"
    if path.is_file():
        own = json.loads(path.read_text(encoding="utf-8"))
    else:
        own = settings.get("video_processor") or settings.get("image_processor") or settings
    return video_processor(family.video_processor, own)
