"""Tiny random models of every supported family, and inputs for them; shared by the tests.

``build(family)`` gives the model, ``inputs(family, batch)`` the arguments of ``generate`` for one sequence, or for a
left-padded batch of two. Nothing is downloaded and no processor is needed: pixel and mel tensors are random, and their
placeholders are counted here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import transformers as tf

VOCAB = 128
PAD, IMAGE, VIDEO, AUDIO = 0, 120, 121, 122
VISION_START, VISION_END, AUDIO_START, AUDIO_END = 123, 124, 125, 126
NEW_TOKENS = 40
PROMPT = 24  # text tokens

_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": PAD,
    "initializer_range": 0.2,  # large weights: logits that differ clearly, so that greedy tokens mean something
}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "decoder_sparse_step": 1}
_CLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 7,
}


def _text(**changes: Any) -> dict[str, Any]:
    return {**_TEXT, **changes}


# -- models --------------------------------------------------------------------------------


def _llama() -> Any:
    return tf.LlamaForCausalLM(tf.LlamaConfig(**_text()))


def _qwen3() -> Any:
    return tf.Qwen3ForCausalLM(tf.Qwen3Config(**_text(head_dim=32)))


def _mistral() -> Any:
    return tf.MistralForCausalLM(tf.MistralConfig(**_text(sliding_window=16)))


def _qwen_vision(**changes: Any) -> dict[str, Any]:
    return {"depth": 2, "num_heads": 2, "in_channels": 3, "patch_size": 4, "spatial_merge_size": 2, **changes}


def _tokens() -> dict[str, int]:
    return {
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": VISION_START,
        "vision_end_token_id": VISION_END,
    }


def _qwen2_vl() -> Any:
    vision = _qwen_vision(embed_dim=32, hidden_size=64, mlp_ratio=2)
    config = tf.Qwen2VLConfig(text_config=_text(rope_parameters=_MROPE), vision_config=vision, **_tokens())
    return tf.Qwen2VLForConditionalGeneration(config)


def _qwen2_5_vl() -> Any:
    vision = _qwen_vision(
        hidden_size=32, intermediate_size=48, out_hidden_size=64, window_size=16, fullatt_block_indexes=[1]
    )
    config = tf.Qwen2_5_VLConfig(text_config=_text(rope_parameters=_MROPE), vision_config=vision, **_tokens())
    return tf.Qwen2_5_VLForConditionalGeneration(config)


def _qwen3_vision() -> dict[str, Any]:
    return _qwen_vision(
        hidden_size=32,
        intermediate_size=48,
        out_hidden_size=64,
        num_position_embeddings=64,
        deepstack_visual_indexes=[0],
    )


def _qwen3_vl() -> Any:
    config = tf.Qwen3VLConfig(
        text_config=_text(head_dim=16, rope_parameters=_MROPE), vision_config=_qwen3_vision(), **_tokens()
    )
    return tf.Qwen3VLForConditionalGeneration(config)


def _qwen3_vl_moe() -> Any:
    config = tf.Qwen3VLMoeConfig(
        text_config=_text(head_dim=16, rope_parameters=_MROPE, **_MOE), vision_config=_qwen3_vision(), **_tokens()
    )
    return tf.Qwen3VLMoeForConditionalGeneration(config)


def _llava() -> Any:
    config = tf.LlavaConfig(
        vision_config=tf.CLIPVisionConfig(**_CLIP, projection_dim=32),
        text_config=tf.LlamaConfig(**_text()),
        image_token_index=IMAGE,
        vision_feature_layer=-1,
    )
    return tf.LlavaForConditionalGeneration(config)


def _llava_next() -> Any:
    config = tf.LlavaNextConfig(
        vision_config=tf.CLIPVisionConfig(**_CLIP, projection_dim=32),
        text_config=tf.LlamaConfig(**_text()),
        image_token_index=IMAGE,
        image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]],
        vision_feature_layer=-1,
    )
    return tf.LlavaNextForConditionalGeneration(config)


def _llava_onevision() -> Any:
    config = tf.LlavaOnevisionConfig(
        vision_config=tf.SiglipVisionConfig(**_CLIP),
        text_config=tf.Qwen2Config(**_text()),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    return tf.LlavaOnevisionForConditionalGeneration(config)


def _internvl() -> Any:
    config = tf.InternVLConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": [28, 28],
            "patch_size": [7, 7],
        },
        text_config=tf.Qwen2Config(**_text()),
        image_token_id=IMAGE,
        downsample_ratio=0.5,
    )
    return tf.InternVLForConditionalGeneration(config)


def _audio_encoder(**changes: Any) -> dict[str, Any]:
    return {
        "num_mel_bins": 16,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "d_model": 32,
        "max_source_positions": 50,
        **changes,
    }


def _qwen2_audio() -> Any:
    config = tf.Qwen2AudioConfig(
        audio_config=_audio_encoder(), text_config=tf.Qwen2Config(**_text()), audio_token_index=AUDIO
    )
    return tf.Qwen2AudioForConditionalGeneration(config)


def _omni_tokens() -> dict[str, int]:
    return {
        "audio_token_index": AUDIO,
        "image_token_index": IMAGE,
        "video_token_index": VIDEO,
        "vision_start_token_id": VISION_START,
        "vision_end_token_id": VISION_END,
        "audio_start_token_id": AUDIO_START,
        "audio_end_token_id": AUDIO_END,
    }


def _qwen2_5_omni() -> Any:
    from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniThinkerConfig

    vision = _qwen_vision(
        hidden_size=32, intermediate_size=48, out_hidden_size=64, window_size=16, fullatt_block_indexes=[1]
    )
    config = Qwen2_5OmniThinkerConfig(
        audio_config=_audio_encoder(n_window=50, output_dim=64),
        vision_config=vision,
        text_config=_text(rope_parameters=_MROPE, head_dim=16),
        **_omni_tokens(),
    )
    return tf.Qwen2_5OmniThinkerForConditionalGeneration(config)


def _qwen3_omni_moe() -> Any:
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeThinkerConfig

    tokens = {k.replace("_index", "_id"): v for k, v in _omni_tokens().items()}
    config = Qwen3OmniMoeThinkerConfig(
        audio_config=_audio_encoder(n_window=50, output_dim=64, downsample_hidden_size=16, n_window_infer=100),
        vision_config=_qwen3_vision(),
        text_config=_text(head_dim=16, rope_parameters=_MROPE, **_MOE),
        position_id_per_seconds=13,
        **tokens,
    )
    return tf.Qwen3OmniMoeThinkerForConditionalGeneration(config)


def _gemma3() -> Any:
    config = tf.Gemma3Config(
        text_config=_text(
            head_dim=16,
            sliding_window=16,
            layer_types=["sliding_attention", "full_attention"],
            query_pre_attn_scalar=16,
        ),
        vision_config=_CLIP,
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        boi_token_index=VISION_START,
        eoi_token_index=VISION_END,
        tie_word_embeddings=False,  # tied, a random Gemma repeats its last token
    )
    return tf.Gemma3ForConditionalGeneration(config)


def gemma4(shared_layers: int = 0) -> Any:
    """A Gemma 4 whose layers differ: full attention has half the KV heads, of twice the length, and values that are the
    keys before RoPE; the last ``shared_layers`` read the keys and values of earlier ones.
    """
    torch.manual_seed(0)
    text = _text(
        num_hidden_layers=4,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=shared_layers,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB,
        tie_word_embeddings=False,
    )
    vision = {
        **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "pooling_kernel_size": 2},
    }
    config = tf.Gemma4Config(
        text_config=text,
        vision_config={**vision, "position_embedding_size": 64},
        audio_config=None,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        audio_token_id=AUDIO,
        tie_word_embeddings=False,
    )
    return tf.Gemma4ForConditionalGeneration(config).eval()


def gemma4_inputs(seed: int = 0) -> dict[str, Any]:
    """Arguments of ``generate`` for :func:`gemma4`: text, a picture of 2 x 3 tokens, text."""
    generator = torch.Generator().manual_seed(seed)
    before, after = torch.randint(3, 110, (2, 25), generator=generator).tolist()
    patches = torch.tensor([[[x, y] for y in range(4) for x in range(6)]])
    media = {"pixel_values": torch.rand(1, 24, 48, generator=generator), "image_position_ids": patches}
    given = _arguments("gemma4", [[1, *before, *[IMAGE] * 6, *after]], media)
    return {**given, "mm_token_type_ids": (given["input_ids"] == IMAGE).long()}


_BUILDERS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "mistral": _mistral,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl_moe,
    "llava": _llava,
    "llava_next": _llava_next,
    "llava_onevision": _llava_onevision,
    "internvl": _internvl,
    "qwen2_audio": _qwen2_audio,
    "qwen2_5_omni": _qwen2_5_omni,
    "qwen3_omni_moe": _qwen3_omni_moe,
    "gemma3": _gemma3,
}
FAMILIES = tuple(_BUILDERS)
VISUAL = tuple(f for f in FAMILIES if f not in ("llama", "qwen3", "mistral", "qwen2_audio"))


@lru_cache(maxsize=1)
def build(family: str) -> Any:
    """The model of a family, in eval mode, float32, from a fixed seed.

    Only the last one is kept, as tests go through the families in order.
    """
    torch.manual_seed(0)
    return _BUILDERS[family]().eval()


# -- inputs --------------------------------------------------------------------------------


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
