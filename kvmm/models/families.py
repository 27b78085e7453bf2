"""The supported model families and their transformers classes."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig

from kvmm.errors import KVMMError


@dataclass(frozen=True)
class Family:
    """How one ``config.model_type`` is loaded.

    ``model_class`` and ``processor_class`` are names in ``transformers``; ``image_processor`` is the name without the
    backend suffix (``Qwen2VLImageProcessor``), ``video_processor`` that of videos. ``modalities`` are what a user may
    send: "image", "audio", "video"; text always. ``processor_class`` is None for text-only models: their processor is
    the tokenizer.
    """

    model_class: str
    processor_class: str | None = None
    image_processor: str | None = None
    modalities: tuple[str, ...] = ()
    video_processor: str | None = None


_TEXT = Family("AutoModelForCausalLM")
_VISION = ("image", "video")
_OMNI = ("image", "audio", "video")
_QWEN2_VIDEO, _QWEN3_VIDEO = "Qwen2VLVideoProcessor", "Qwen3VLVideoProcessor"

FAMILIES: dict[str, Family] = {
    "llama": _TEXT,
    "mistral": _TEXT,
    "qwen2": _TEXT,
    "qwen3": _TEXT,
    "qwen2_vl": Family(
        "Qwen2VLForConditionalGeneration", "Qwen2VLProcessor", "Qwen2VLImageProcessor", _VISION, _QWEN2_VIDEO
    ),
    "qwen2_5_vl": Family(
        "Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLProcessor", "Qwen2VLImageProcessor", _VISION, _QWEN2_VIDEO
    ),
    "qwen3_vl": Family(
        "Qwen3VLForConditionalGeneration", "Qwen3VLProcessor", "Qwen2VLImageProcessor", _VISION, _QWEN3_VIDEO
    ),
    "qwen3_vl_moe": Family(
        "Qwen3VLMoeForConditionalGeneration", "Qwen3VLProcessor", "Qwen2VLImageProcessor", _VISION, _QWEN3_VIDEO
    ),
    "llava": Family("LlavaForConditionalGeneration", "LlavaProcessor", "CLIPImageProcessor", ("image",)),
    "llava_next": Family(
        "LlavaNextForConditionalGeneration", "LlavaNextProcessor", "LlavaNextImageProcessor", ("image",)
    ),
    "llava_onevision": Family(
        "LlavaOnevisionForConditionalGeneration",
        "LlavaOnevisionProcessor",
        "LlavaOnevisionImageProcessor",
        _VISION,
        "LlavaOnevisionVideoProcessor",
    ),
    "internvl": Family(
        "InternVLForConditionalGeneration",
        "InternVLProcessor",
        "GotOcr2ImageProcessor",
        _VISION,
        "InternVLVideoProcessor",
    ),
    "gemma3": Family("Gemma3ForConditionalGeneration", "Gemma3Processor", "Gemma3ImageProcessor", ("image",)),
    "qwen2_audio": Family("Qwen2AudioForConditionalGeneration", "Qwen2AudioProcessor", None, ("audio",)),
    # Of the omni models kvmm runs the thinker, the part that reads and writes; the talker only speaks its words.
    "qwen2_5_omni": Family(
        "Qwen2_5OmniThinkerForConditionalGeneration",
        "Qwen2_5OmniProcessor",
        "Qwen2VLImageProcessor",
        _OMNI,
        _QWEN2_VIDEO,
    ),
    "qwen3_omni_moe": Family(
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        "Qwen3OmniMoeProcessor",
        "Qwen2VLImageProcessor",
        _OMNI,
        _QWEN2_VIDEO,
    ),
}
FAMILIES["qwen2_5_omni_thinker"] = FAMILIES["qwen2_5_omni"]
FAMILIES["qwen3_omni_moe_thinker"] = FAMILIES["qwen3_omni_moe"]


def family_of(config: PretrainedConfig) -> Family:
    """The family of a model's configuration. Raises ``KVMMError`` for a family kvmm does not know."""
    try:
        return FAMILIES[config.model_type]
    except KeyError:
        model_types = ", ".join(sorted(name for name in FAMILIES if not name.endswith("_thinker")))
        raise KVMMError(
            f"Models of type '{config.model_type}' are not supported: choose a model of one of these: {model_types}."
        ) from None
