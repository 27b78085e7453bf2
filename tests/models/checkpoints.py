"""Checkpoint folders of tiny random models with tokenizer, template and processor files, as a hub would hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests import tiny_models as tiny

FIRST_CHARACTER, LAST_CHARACTER = 3, 98
_QWEN = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
_OMNI = {
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
    "audio_token": "<|AUDIO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
_LLAVA = {"image_token": "<image>", "video_token": "<video>"}
_PINPOINTS = [[28, 56], [56, 28], [56, 56]]
_SQUARE = {"height": 28, "width": 28}
_QWEN_IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 512, "longest_edge": 2048},
}
_SOUND = {"feature_size": 16, "chunk_length": 1, "n_fft": 400, "hop_length": 160, "sampling_rate": 16_000}

# Special tokens, the placeholder of a medium in the template, preprocessor_config.json and processor_config.json.
_FILES: dict[str, tuple[dict[str, str], dict[str, str], dict[str, Any], dict[str, Any]]] = {
    "llava": (
        _LLAVA,
        {"image": "<image>"},
        {
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 28},
            "crop_size": _SQUARE,
        },
        {"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    ),
    "llava_next": (
        _LLAVA,
        {"image": "<image>"},
        {
            "image_processor_type": "LlavaNextImageProcessor",
            "size": {"shortest_edge": 28},
            "crop_size": _SQUARE,
            "image_grid_pinpoints": _PINPOINTS,
        },
        {"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    ),
    "llava_onevision": (
        _LLAVA,
        {"image": "<image>", "video": "<video>"},
        {
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "size": _SQUARE,
            "image_grid_pinpoints": _PINPOINTS,
        },
        {"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_9"},
    ),
    "internvl": (
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        {"image": "<IMG_CONTEXT>", "video": "<video>"},
        {"image_processor_type": "GotOcr2ImageProcessorFast", "size": _SQUARE, "min_patches": 1, "max_patches": 4},
        {"image_seq_length": 4},
    ),
    "gemma3": (
        {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
        {"image": "<start_of_image>"},
        {"image_processor_type": "Gemma3ImageProcessor", "size": _SQUARE},
        {"image_seq_length": 4},
    ),
    "qwen2_audio": (
        {"audio_token": "<|AUDIO|>", "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>"},
        {"audio": "<|audio_bos|><|AUDIO|><|audio_eos|>"},
        {"feature_extractor_type": "WhisperFeatureExtractor", **_SOUND},
        {},
    ),
}
for _name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"):
    _places = {kind: f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("image", "video")}
    _FILES[_name] = (_QWEN, _places, _QWEN_IMAGES, {})
for _name in ("qwen2_5_omni", "qwen3_omni_moe"):
    _places = {
        "image": "<|vision_bos|><|IMAGE|><|vision_eos|>",
        "video": "<|vision_bos|><|VIDEO|><|vision_eos|>",
        "audio": "<|audio_bos|><|AUDIO|><|audio_eos|>",
    }
    _FILES[_name] = (_OMNI, _places, {**_QWEN_IMAGES, **_SOUND}, {})

_IDS = {
    tiny.IMAGE: ("<|image_pad|>", "<image>", "<IMG_CONTEXT>", "<image_soft_token>", "<|IMAGE|>"),
    tiny.VIDEO: ("<|video_pad|>", "<video>", "<|VIDEO|>"),
    tiny.AUDIO: ("<|AUDIO|>",),
    tiny.VISION_START: ("<|vision_start|>", "<img>", "<start_of_image>", "<|vision_bos|>"),
    tiny.VISION_END: ("<|vision_end|>", "</img>", "<end_of_image>", "<|vision_eos|>"),
    tiny.AUDIO_START: ("<|audio_bos|>",),
    tiny.AUDIO_END: ("<|audio_eos|>",),
}


def save(family: str, folder: Path) -> Path:
    """Write the model of ``family`` and everything its processor is made of."""
    model = tiny.build(family)
    model.generation_config.suppress_tokens = [0, 1, 2, *range(LAST_CHARACTER + 1, tiny.VOCAB)]
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = tiny.PAD
    model.save_pretrained(folder)
    attributes, places, preprocessor, processor = _FILES.get(family, ({}, {}, {}, {}))
    tokenizer(family, attributes, places).save_pretrained(folder)
    for name, settings in (("preprocessor_config.json", preprocessor), ("processor_config.json", processor)):
        if settings:
            (folder / name).write_text(json.dumps(settings))
    return folder


def tokenizer(family: str, attributes: dict[str, str], places: dict[str, str]) -> PreTrainedTokenizerFast:
    """A token a character, and the family's special tokens at the ids that the tiny models know."""
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "\n": 3} | {chr(c): c - 32 + 4 for c in range(32, 127)}
    used = "".join([*places.values(), *attributes.values()])
    specials = {name: index for index, names in _IDS.items() for name in names if name in used}
    for index in range(tiny.VOCAB):
        if index not in {*vocabulary.values(), *specials.values()}:
            vocabulary[f"<unused{index}>"] = index
    inner = Tokenizer(models.WordLevel({**vocabulary, **specials}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    out = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=list(specials) if not attributes else None,
        extra_special_tokens=attributes,
    )
    inner_specials = [name for name in specials if name not in attributes.values()]
    if inner_specials:
        out.add_tokens(inner_specials, special_tokens=True)
    cases = "".join(
        f"{{% {'if' if n == 0 else 'elif'} c.type == '{kind}' %}}{place}"
        for n, (kind, place) in enumerate(places.items())
    )
    text = f"{cases}{{% else %}}{{{{ c.text }}}}{{% endif %}}" if places else "{{ c.text }}"
    out.chat_template = (
        "{% for m in messages %}[{{ m.role }}] {% if m.content is string %}{{ m.content }}{% else %}"
        f"{{% for c in m.content %}}{text}{{% endfor %}}"
        "{% endif %}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    return out
