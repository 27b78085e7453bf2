"""The KV heads of a model's layers: what calibration files and saved caches have to fit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from kvmm.generating_model import generating_model


@dataclass(frozen=True)
class HeadShape:
    """KV heads of a layer and channels of a key and a value; None where the model does not say."""

    heads: int | None = None
    key_dim: int | None = None
    value_dim: int | None = None


def head_shapes(model: nn.Module) -> dict[int, HeadShape]:
    """The KV heads of a model's decoder layers, by layer; all of them, also where a process holds some.

    Layers whose attention is not the usual pair of projections are left out.
    """
    model, shapes = generating_model(model), {}
    for module in model.get_decoder().modules():
        index, dim = getattr(module, "layer_idx", None), getattr(module, "head_dim", None)
        width, value_width = (getattr(getattr(module, n, None), "out_features", None) for n in ("k_proj", "v_proj"))
        if not isinstance(index, int) or not isinstance(dim, int) or not width or not value_width or width % dim:
            continue
        heads = width // dim
        if value_width % heads == 0:
            shapes[index] = HeadShape(heads, dim, value_width // heads)
    return shapes


def layer_configs(config: Any) -> Sequence[Any]:
    """A text configuration as each of its decoder layers sees it, by layer.

    Layers may differ: Gemma 4's have another ``head_dim`` and number of KV heads with full attention than with a
    sliding window, and its configuration refuses to name one for all.
    """
    return getattr(config, "per_layer_config", None) or [config] * config.num_hidden_layers


def configured_heads(config: Any) -> list[HeadShape]:
    """The KV heads of every decoder layer as a text configuration names them, by layer.

    ``key_dim`` and ``value_dim`` are None where keys and values have lengths of their own (``v_head_dim``).
    """
    shapes = []
    for layer in layer_configs(config):
        heads = layer.num_attention_heads
        dim = getattr(layer, "head_dim", None) or layer.hidden_size // heads
        dim = None if hasattr(layer, "v_head_dim") else dim
        shapes.append(HeadShape(getattr(layer, "num_key_value_heads", None) or heads, dim, dim))
    return shapes


def num_layers(model: nn.Module) -> int:
    """The layers of a model's decoder."""
    return generating_model(model).config.get_text_config(decoder=True).num_hidden_layers


def local_heads(model: nn.Module) -> tuple[int, int] | None:
    """Which KV heads a process of a tensor-parallel model holds: the first and the one after the last; None for all."""
    model = generating_model(model)
    config = model.config.get_text_config(decoder=True)
    shapes, types = configured_heads(config), getattr(config, "layer_types", None) or ()
    for name, weight in model.named_parameters():
        found = re.search(r"layers\.(\d+)\.self_attn\.k_proj\.weight$", name)
        index = int(found[1]) if found else len(shapes)
        # of vision towers, which may be split too, nothing is cached, and nothing packed of sliding windows
        if index >= len(shapes) or (index < len(types) and types[index] == "sliding_attention"):
            continue
        shape = shapes[index]
        if shape.key_dim is not None and weight.shape[0] == shape.heads * shape.key_dim:
            split = [i for i, placement in enumerate(getattr(weight, "placements", ())) if placement.is_shard(0)]
            if not split:
                return None
            rank, parts = weight.device_mesh.get_coordinate()[split[0]], weight.device_mesh.size(split[0])
            each = -(-shape.heads // parts)
            return rank * each, min((rank + 1) * each, shape.heads)
    return None


__all__ = ["HeadShape", "configured_heads", "head_shapes", "layer_configs", "local_heads", "num_layers"]
