"""Configurations and tiny random models of every supported family, and the tokens that they share."""

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


@lru_cache(maxsize=1)
def build(family: str) -> Any:
    """The model of a family, in eval mode, float32, from a fixed seed.

    Only the last one is kept, as tests go through the families in order.
    """
    torch.manual_seed(0)
    return _BUILDERS[family]().eval()


def rope_deltas_holder(model: Any) -> Any:
    """The module that keeps ``rope_deltas``: an Omni model itself, or its ``model`` in newer versions."""
    return next(module for module in model.modules() if hasattr(module, "rope_deltas"))
