"""A Llama model as the text tower of the Qwen2.5-Omni thinker, with the same logits on text.

The thinker's text tower is Qwen2: a Llama with biases on q, k and v, which are zero here. Its rotary embedding is
"multimodal": positions of time, height and width drive three sections of the frequencies. On text the three positions
are equal, so any assignment of frequencies to sections gives the pretrained model; on a page it decides what a head
can tell apart. Taken in order, the width would get the slowest frequencies, 1e-3 radians a column and less, and all
columns would look alike. So the frequencies are dealt out, and rows of q and k are permuted alike, which no dot product
notices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.model_config import HEAD_DIM, ModelConfig
from training.smollm2.gguf_file import LanguageModel

SECTION = (8, 12, 12)  # of time, height and width
PAGE_TOKENS = 1000  # an A4 page in print of 10 points stays legible
CYCLE = "hwthwhwt"  # who gets the next slower frequency


def dealt_frequencies() -> list[int]:
    """Index of the original frequency at every place of the thinker's rotary embedding."""
    places: dict[str, list[int]] = {"t": [], "h": [], "w": []}
    for i in range(HEAD_DIM // 2):
        places[CYCLE[i % len(CYCLE)]].append(i)
    order = [*places["t"], *places["h"], *places["w"]]
    if tuple(map(len, places.values())) != SECTION:
        raise ValueError(f"{CYCLE} does not deal {SECTION}")
    return order


def kept_layers(num_layers: int, dropped: list[int]) -> list[int]:
    return [i for i in range(num_layers) if i not in set(dropped)]


def thinker_config(model: LanguageModel, vocab_size: int, dropped: list[int], **towers) -> ModelConfig:
    """Sizes of the thinker whose text tower is `model`; `towers` are sizes of the other two."""
    theta, half = model.rope_theta, HEAD_DIM // 2
    return ModelConfig(
        vocab_size=vocab_size,
        page_tokens=PAGE_TOKENS,
        hidden_size=model.weights["norm.weight"].numel(),
        num_layers=model.num_layers - len(set(dropped)),
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        intermediate_size=model.weights["layers.0.mlp.up_proj.weight"].shape[0],
        rms_norm_eps=model.rms_norm_eps,
        rope_theta=theta,
        mrope_section=SECTION,
        frequencies=tuple(theta ** (-i / half) for i in dealt_frequencies()),
        **towers,
    )


def text_weights(model: LanguageModel, rows: list[int], dropped: list[int]) -> dict[str, Tensor]:
    """Tensors of the thinker's text tower under their checkpoint names.

    Args:
        model: the pretrained model. rows: original id of every token of the new vocabulary. dropped: layers left out.
    """
    half = HEAD_DIM // 2
    order = torch.tensor(dealt_frequencies())
    order = torch.cat([order, order + half])
    permute = lambda t: t.unflatten(0, (-1, HEAD_DIM))[:, order].flatten(0, 1)  # noqa: E731
    out = {
        "model.embed_tokens.weight": model.weights["embed_tokens.weight"][rows].clone(),
        "model.norm.weight": model.weights["norm.weight"].clone(),
    }
    for new, old in enumerate(kept_layers(model.num_layers, dropped)):
        prefix = f"layers.{old}."
        for name, tensor in model.weights.items():
            if not name.startswith(prefix):
                continue
            part = name.removeprefix(prefix)
            turned = part.startswith(("self_attn.q_proj", "self_attn.k_proj"))
            out[f"model.layers.{new}.{part}"] = permute(tensor) if turned else tensor.clone()
        for part in "qkv":
            bias = torch.zeros(out[f"model.layers.{new}.self_attn.{part}_proj.weight"].shape[0])
            out[f"model.layers.{new}.self_attn.{part}_proj.bias"] = bias
    return out
