"""Made-up data of real shapes: calibrations with measured spectra, models with random weights, filled caches."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, Qwen3Config
from transformers.cache_utils import Cache

from kvmm.calibration import FILE_NAME, Calibration, model_fingerprint, read_calibration, site_name
from kvmm.modality import IMAGE, TEXT
from kvmm.models import assets_folder
from kvmm.policy import KVPolicy

SHAPES: dict[str, dict[str, Any]] = {
    # the text models of Qwen3-8B and of InternVL-8B and -26B (InternLM2.5-7B and -20B as Llamas, which they are but
    # for the fused weights)
    "qwen3-8b": {
        "class": Qwen3Config,
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "vocab_size": 151936,
    },
    # enough layers to time one layer's call
    "qwen3-4x1024": {
        "class": Qwen3Config,
        "num_hidden_layers": 4,
        "hidden_size": 1024,
        "intermediate_size": 1024,
        "vocab_size": 512,
    },
    # deep and narrow: a step of which the host's part is the largest
    "qwen3-36x1024": {
        "class": Qwen3Config,
        "num_hidden_layers": 36,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "vocab_size": 151936,
    },
    "internvl-8b": {
        "class": LlamaConfig,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "vocab_size": 92553,
    },
    "internvl-26b": {
        "class": LlamaConfig,
        "num_hidden_layers": 48,
        "num_attention_heads": 48,
        "hidden_size": 6144,
        "intermediate_size": 16384,
        "vocab_size": 92553,
    },
}
_TOY = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 128,
    "intermediate_size": 256,
    "vocab_size": 512,
}


def build_model(
    shape: str, device: str, dtype: torch.dtype = torch.bfloat16, toy: bool = False, vocab_size: int | None = None
) -> nn.Module:
    """A decoder of one of the shapes with random weights, made on the device. ``toy`` makes it tiny, ``vocab_size``
    replaces the shape's."""
    values = {"num_attention_heads": 32, **SHAPES[shape], **(_TOY if toy else {})}
    values |= {} if vocab_size is None else {"vocab_size": vocab_size}
    kv_heads, dim = (2, 64) if toy else (8, 128)
    config = values.pop("class")(
        **values,
        num_key_value_heads=kv_heads,
        head_dim=dim,
        max_position_embeddings=2**18,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device(device), torch.no_grad():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval()


def weight_nbytes(model: nn.Module) -> int:
    """Bytes of weights that every decode step reads: all but the embedding, of which it reads one row a sequence."""
    embedding = sum(p.nbytes for p in model.get_input_embeddings().parameters())
    return sum(p.nbytes for p in model.parameters()) - embedding


def kv_shape(model: nn.Module) -> tuple[int, int, int]:
    """Layers, KV heads and head dimension."""
    config = model.config
    return config.num_hidden_layers, config.num_key_value_heads, config.head_dim


# -- calibration ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _measured() -> Calibration:
    return read_calibration(assets_folder() / "tiny-omni" / FILE_NAME)


@lru_cache(maxsize=4)
def basis(heads: int, dim: int) -> torch.Tensor:
    """Orthogonal float32 ``[H, D, D]``, the same every time; its columns are the directions of the channels."""
    generator = torch.Generator().manual_seed(11)
    return torch.linalg.qr(torch.randn(heads, dim, dim, generator=generator)).Q


def spectrum(layer: int, layers: int, side: str, modality: int, heads: int, dim: int) -> torch.Tensor:
    """float32 ``[H, D]``: what each channel of a site costs without bits, in falling order.

    Measured on tiny-omni (8 layers, 64 channels), at the same relative depth and the same relative channel.
    """
    measured = _measured()
    depth = 1 + max(found for found, _ in measured.sites("rd", modality))
    variance = measured.site("rd", layer * depth // layers, side, modality)["variance"]
    log = variance.clamp_min(1e-12).log()
    log = torch.nn.functional.interpolate(log[None], size=dim, mode="linear", align_corners=True)[0]
    return log.exp().repeat(-(-heads // len(log)), 1)[:heads]


def make_calibration(
    layers: int,
    heads: int,
    dim: int,
    modalities: Sequence[int] = (TEXT,),
    *,
    fingerprint: str = "made up",
    norm: bool = True,
    pooled: bool = True,
) -> Calibration:
    """A calibration for ``rd``: random rotations, measured spectra.

    Args:
        layers, heads, dim: of the model.
        modalities: which ones it is for.
        fingerprint: of the model.
        norm: token norms are divided out, as larger language models need: 16 bits more a token and head.
        pooled: layers and sides share the bits, as with a real calibration; otherwise every site gets the average.
    """
    forward = basis(heads, dim).transpose(1, 2).to(torch.float16).contiguous()
    tensors = {}
    for layer in range(layers):
        for side in ("key", "value"):
            for modality in modalities:
                found = {
                    "transform": forward,
                    "mean": torch.zeros(heads, dim),
                    "variance": spectrum(layer, layers, side, modality, heads, dim),
                    "norm": torch.tensor([norm], dtype=torch.uint8),
                }
                prefix = site_name("rd", layer, side, modality)
                tensors |= {prefix + name: tensor for name, tensor in found.items()}
    return Calibration(fingerprint, tensors, {"importance": "gradient" if pooled else "query"})


def calibration_file(model: nn.Module, modalities: Sequence[int] = (TEXT, IMAGE)) -> Path:
    """A file with :func:`make_calibration` for a model, in a temporary folder."""
    path = Path(tempfile.mkdtemp()) / FILE_NAME
    calibration = make_calibration(*kv_shape(model), modalities, fingerprint=model_fingerprint(model))
    # safetensors stores no tensor twice under two names
    own = {name: tensor.clone() for name, tensor in calibration.tensors.items()}
    Calibration(calibration.fingerprint, own, calibration.metadata).save(path)
    return path


def main_modality(policy: KVPolicy) -> int:
    """The modality that a policy quantises: text if it does, else images."""
    return IMAGE if policy.text.key.is_lossless and policy.text.value.is_lossless else TEXT


# -- filled caches --------------------------------------------------------------------------------------------------


def random_vectors(
    shape: Sequence[int], device: str, dtype: torch.dtype, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Random keys or values ``[B, H, T, D]`` with the spectrum of a deep layer, mean length ``sqrt(D)``."""
    _, heads, _, dim = shape
    deviation = spectrum(6, 8, "key", IMAGE, heads, dim).sqrt()
    deviation = deviation / deviation.square().mean(1, keepdim=True).sqrt()
    turn = (deviation.unsqueeze(2) * basis(heads, dim).transpose(1, 2)).to(device, dtype)
    return torch.randn(*shape, device=device, dtype=dtype, generator=generator) @ turn


def fill(cache: Cache, model: nn.Module, batch: int, length: int) -> Cache:
    """Write the keys and values ``[B, H_kv, T, D]`` of a random prompt into every layer of an empty cache."""
    layers, heads, dim = kv_shape(model)
    for index in range(layers):
        key, value = (random_vectors((batch, heads, length, dim), str(model.device), model.dtype) for _ in range(2))
        cache.update(key, value, index)
    return cache


def dynamic_cache(model: nn.Module, batch: int, length: int) -> DynamicCache:
    """A filled ``DynamicCache``."""
    return fill(DynamicCache(config=model.config), model, batch, length)
