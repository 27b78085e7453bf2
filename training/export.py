"""Turns training weights into a checkpoint that plain `from_pretrained` loads.

    python -m training.export --weights runs/omni --out assets/tiny-omni

writes bf16 weights, `config.json`, `generation_config.json`, tokenizer, chat template and processor files. Nothing in
them needs torchvision.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from kvmm.models.packed_weights import PACKED_FILE, save_packed
from training.arguments import step_share
from training.checkpoints import coded_weights, load_weights
from training.model_config import AUDIO_TOKEN, AUXILIARY, CELL, HEAD_DIM, IMAGE_TOKEN, MERGE, PATCH, ModelConfig
from training.smollm2.folder import CONFIG, TOKENIZER, read_config

MIN_TOKENS = 256  # merged visual tokens of a page
MAX_BYTES = 39_900_000  # of model.safetensors
MAX_PACKED_BYTES = 96_000_000  # of model.packed.safetensors
PAD, EOS = "<|endoftext|>", "<|im_end|>"
EXTRA_TOKENS = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
# Items of a message in their order; no system prompt.
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif c.type == 'video' %}<|vision_bos|><|VIDEO|><|vision_eos|>"
    "{% elif c.type == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def hf_config(config: ModelConfig | None = None, user_token_id: int = 872) -> Qwen2_5OmniThinkerConfig:
    """The transformers configuration of a training `ModelConfig`.

    The frequencies of the text rotary embedding go through rope type "longrope", the one that takes a divisor for each
    of them; short and long factors are equal and both scalings 1, so nothing depends on the length.
    """
    c = config or ModelConfig()
    text = dict(
        vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers, num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads,
        max_position_embeddings=c.max_positions, rms_norm_eps=c.rms_norm_eps, hidden_act="silu", attention_dropout=0.0,
        use_sliding_window=False, tie_word_embeddings=True, pad_token_id=0, eos_token_id=2, bos_token_id=None,
        rope_parameters=dict(
            rope_type="longrope", rope_theta=c.rope_theta, mrope_section=list(c.mrope_section),
            short_factor=c.rope_factors, long_factor=c.rope_factors, factor=1.0, attention_factor=1.0,
            original_max_position_embeddings=c.max_positions,
        ),
    )  # fmt: skip
    vision = dict(
        depth=c.vision_layers, hidden_size=c.vision_size, intermediate_size=c.vision_intermediate_size,
        num_heads=c.vision_size // HEAD_DIM, in_channels=3, patch_size=PATCH, spatial_merge_size=MERGE,
        temporal_patch_size=2, window_size=112, fullatt_block_indexes=list(range(c.vision_layers)),
        out_hidden_size=c.hidden_size, hidden_act="silu",
    )  # fmt: skip
    audio = dict(
        num_mel_bins=c.num_mel_bins, encoder_layers=c.audio_layers, encoder_attention_heads=c.audio_size // HEAD_DIM,
        encoder_ffn_dim=c.audio_intermediate_size, d_model=c.audio_size, n_window=c.n_window,
        max_source_positions=c.max_source_positions, output_dim=c.hidden_size, dropout=0.0, attention_dropout=0.0,
        activation_dropout=0.0, activation_function="gelu", scale_embedding=False,
    )  # fmt: skip
    return Qwen2_5OmniThinkerConfig(
        text_config=text, vision_config=vision, audio_config=audio, tie_word_embeddings=True, pad_token_id=0,
        audio_token_index=AUDIO_TOKEN, audio_start_token_id=4, audio_end_token_id=5, image_token_index=IMAGE_TOKEN,
        video_token_index=10, vision_start_token_id=6, vision_end_token_id=7, vision_token_id=8,
        user_token_id=user_token_id, position_id_per_seconds=25, seconds_per_chunk=2,
    )  # fmt: skip


def hf_model(
    weights: dict[str, Tensor], config: ModelConfig | None = None, **options
) -> Qwen2_5OmniThinkerForConditionalGeneration:
    """A transformers model with training weights (`OmniModel.export_weights` names), in float32, evaluation mode.

    Raises:
        ValueError: a tensor is missing or left over.
    """
    model = Qwen2_5OmniThinkerForConditionalGeneration(hf_config(config, **options)).float().eval()
    own = {checkpoint_name(n): p for n, p in model.named_parameters(remove_duplicate=True) if n != "lm_head.weight"}
    if own.keys() != weights.keys():
        raise ValueError(f"weights do not fit the model: {sorted(own.keys() ^ weights.keys())[:5]} ...")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    model.tie_weights()
    return model


def checkpoint_name(name: str) -> str:
    """Name in the checkpoint of a parameter of the running module: newer transformers nest the towers in `model`."""
    for tower in ("visual.", "audio_tower."):
        name = name.replace(f"model.{tower}", tower)
    return name.replace("model.language_model.", "model.")


def make_tokenizer(file: Path, max_length: int) -> PreTrainedTokenizerFast:
    """The tokenizer of `tokenizer.json`, with its special tokens named and the chat template attached."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(file),
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=max_length,
        extra_special_tokens=EXTRA_TOKENS,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def export(
    weights: dict[str, Tensor],
    tokenizer_file: Path,
    out: Path,
    config: ModelConfig | None = None,
    coded: dict[str, Tensor] | None = None,
) -> None:
    """Writes the checkpoint folder.

    Args:
        weights: training weights; the auxiliary heads are left out.
        tokenizer_file: `tokenizer.json`. out: folder, made if needed.
        config: sizes; the model that ships by default.
        coded: the weights as they are stored (:func:`training.checkpoints.coded_weights`), which `kvmm.load_model`
            reads and plain `from_pretrained` does not; None stores bf16.

    Raises:
        ValueError: weights or vocabulary do not fit the model, or the file is too large to ship.
    """
    config = config or ModelConfig()
    tokenizer = make_tokenizer(tokenizer_file, config.max_positions)
    if len(tokenizer) > config.vocab_size:
        raise ValueError(f"{tokenizer_file}: {len(tokenizer)} tokens, the model has {config.vocab_size}")
    user = tokenizer.encode("user", add_special_tokens=False)
    model = hf_model({n: t for n, t in weights.items() if not n.startswith(AUXILIARY)}, config, user_token_id=user[0])
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0, use_cache=True)
    if coded is None:
        model.save_pretrained(out)
    else:
        model.config.architectures, model.config.dtype = [type(model).__name__], torch.bfloat16
        model.config.save_pretrained(out)
        model.generation_config.save_pretrained(out)
        save_packed({n: t for n, t in coded.items() if not n.startswith(AUXILIARY)}, out)
    tokenizer.save_pretrained(out)
    pixels = CELL * CELL
    Qwen2VLImageProcessorPil(
        size=dict(shortest_edge=MIN_TOKENS * pixels, longest_edge=config.page_tokens * pixels),
        patch_size=PATCH, temporal_patch_size=2, merge_size=MERGE,
    ).save_pretrained(out)  # fmt: skip
    # One file for images and audio, as the published omni checkpoints have it.
    file = out / "preprocessor_config.json"
    audio = WhisperFeatureExtractor(feature_size=config.num_mel_bins, return_attention_mask=True).to_dict()
    settings = audio | json.loads(file.read_text()) | {"processor_class": "Qwen2_5OmniProcessor"}
    file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    file = out / ("model.safetensors" if coded is None else PACKED_FILE)
    size, most = file.stat().st_size, MAX_BYTES if coded is None else MAX_PACKED_BYTES
    if size > most:
        raise ValueError(f"{file} has {size} bytes, more than {most}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, required=True, help="--out (or --state) folder of training.train")
    parser.add_argument(
        "--tokenizer", type=Path, default=Path(__file__).parent / "tokenizer.json", help="tokenizer.json"
    )
    parser.add_argument("--out", type=Path, default=Path("assets/tiny-omni"))
    parser.add_argument(
        "--step",
        type=step_share,
        help="store matrices entropy-coded, in steps of this share of a row's root mean square, or as they are coded",
    )
    args = parser.parse_args()
    config, tokenizer = None, args.tokenizer
    if (args.weights / CONFIG).is_file():  # a run onto a pretrained text tower brings its sizes and vocabulary
        config, tokenizer = read_config(args.weights), args.weights / TOKENIZER
    coded = None if args.step is None else coded_weights(args.weights, args.step)
    export(load_weights(args.weights), tokenizer, args.out, config, coded)
    print(f"{args.out}: {sum(f.stat().st_size for f in args.out.iterdir()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
