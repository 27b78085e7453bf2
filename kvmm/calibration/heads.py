"""The KV heads of a model's layers: what calibration files and saved caches have to fit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


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
    model, shapes = getattr(model, "thinker", model), {}
    for module in model.get_decoder().modules():
        index, dim = getattr(module, "layer_idx", None), getattr(module, "head_dim", None)
        width, value_width = (getattr(getattr(module, n, None), "out_features", None) for n in ("k_proj", "v_proj"))
        if not isinstance(index, int) or not isinstance(dim, int) or not width or not value_width or width % dim:
            continue
        heads = width // dim
        if value_width % heads == 0:
            shapes[index] = HeadShape(heads, dim, value_width // heads)
    return shapes


def num_layers(model: nn.Module) -> int:
    """The layers of a model's decoder."""
    return getattr(model, "thinker", model).config.get_text_config(decoder=True).num_hidden_layers


def local_heads(model: nn.Module) -> tuple[int, int] | None:
    """Which KV heads a process of a tensor-parallel model holds: the first and the one after the last; None for all."""
    model = getattr(model, "thinker", model)
    config = model.config.get_text_config(decoder=True)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for name, weight in model.named_parameters():
        # of vision towers, which may be split too, nothing is cached
        if name.endswith("self_attn.k_proj.weight") and weight.shape[0] == config.num_key_value_heads * head_dim:
            split = [i for i, placement in enumerate(getattr(weight, "placements", ())) if placement.is_shard(0)]
            if not split:
                return None
            rank, parts = weight.device_mesh.get_coordinate()[split[0]], weight.device_mesh.size(split[0])
            each = -(-config.num_key_value_heads // parts)
            return rank * each, min((rank + 1) * each, config.num_key_value_heads)
    return None


__all__ = ["HeadShape", "head_shapes", "local_heads", "num_layers"]
