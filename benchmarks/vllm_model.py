"""A vision-language model of random weights for vLLM, in a folder: its configuration, processor and calibration.

The weights are vLLM's own (``load_format="dummy"``), so the folder has none. What such a model says means nothing; how
fast it is read and how many tokens a cache holds does not depend on that.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from kvmm.calibration import Calibration, SiteSamples, site_name
from kvmm.calibration.file import FILE_NAME
from kvmm.codecs.rd import RD
from kvmm.modality import TEXT

TOKENIZER = Path(__file__).parents[1] / "assets" / "tiny-omni" / "tokenizer.json"
SPECIAL = {
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
}
PATCH, MERGE = 14, 2


def make_model(folder: Path, hidden: int, layers: int, heads: int, kv_heads: int, vision_layers: int) -> None:
    """Write ``config.json``, the files of a processor, and a made-up calibration.

    Args:
        folder: made if there is none.
        hidden: width of the language model, whose heads have 128 channels.
        layers, heads, kv_heads: of the language model.
        vision_layers: of the vision tower, which is 1280 wide.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(TOKENIZER)),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=SPECIAL,
    )
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in SPECIAL.items()}
    text = {
        "vocab_size": 2048,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rope_theta": 1e6,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24], "rope_theta": 1e6},
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    vision = {
        "depth": vision_layers,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": hidden,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [vision_layers - 1],
        "tokens_per_second": 2,
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["image_token"],
        video_token_id=ids["video_token"],
        vision_start_token_id=ids["vision_bos_token"],
        vision_end_token_id=ids["vision_eos_token"],
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        tie_word_embeddings=False,
        torch_dtype="bfloat16",
    )
    config.save_pretrained(folder)
    size = {"shortest_edge": 56 * 56, "longest_edge": 1008 * 1008}
    images = Qwen2VLImageProcessor(patch_size=PATCH, merge_size=MERGE, size=size)
    videos = Qwen2VLVideoProcessor(patch_size=PATCH, merge_size=MERGE, size=size)
    Qwen2_5_VLProcessor(images, tokenizer, videos, chat_template="{{ messages }}").save_pretrained(folder)
    make_calibration(layers, kv_heads, 128).save(folder / FILE_NAME)


def make_calibration(layers: int, heads: int, dim: int) -> Calibration:
    """A fit of rd to random vectors whose channels differ, the same for all layers."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(heads, 4 * dim, dim, generator=generator) * 0.97 ** torch.arange(dim)
    mean, identity = x.mean(1), torch.eye(dim).expand(heads, -1, -1)
    centred = x - mean.unsqueeze(1)
    covariance = centred.transpose(1, 2) @ centred / x.shape[1]
    tensors = {}
    for side in ("key", "value"):
        fitted = RD.fit(SiteSamples(side, x, mean, covariance, identity, identity))
        for layer in range(layers):
            for name, tensor in fitted.items():
                tensors[site_name("rd", layer, side, TEXT) + name] = tensor.clone().contiguous()
    return Calibration("0" * 64, tensors, {})


__all__ = ["make_calibration", "make_model"]
