"""One exact prefill that shows the queries, keys and values of every full-attention layer, and keeps none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from kvmm.attention import use_kvmm_attention
from kvmm.errors import KVMMError
from kvmm.eval.asking import all_position_ids
from kvmm.modality import modality_of_ids

Visit = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]


class _Handle:
    """Brings a layer and its queries together; see :func:`kvmm.attention.kvmm_attention_forward`."""

    def __init__(self, layer: _Window):
        self.layer = layer


class _Window(DynamicLayer):
    """A layer of a prompt that is read once: what attention sees goes to ``visit``, and then nothing is held."""

    packed = False

    def __init__(self, index: int, visit: Visit):
        super().__init__()
        self.index, self.visit = index, visit

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple:
        self.keys, self.values, self.is_initialized = key_states, value_states, True
        return _Handle(self), _Handle(self)

    def observe(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = self.keys, self.values
        self.visit(self.index, query, key, value)
        self.keys = self.values = None
        return key, value

    def get_seq_length(self) -> int:
        return 0  # nothing came before the prompt


def one_prompt(model: Any, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inputs of one sequence without padding, on the model's device and without ``position_ids``, which all of
    :mod:`kvmm.eval.asking` computes from the ids and the media.

    Raises:
        KVMMError: for anything else.
    """
    ids = inputs.get("input_ids")
    if ids is None:
        raise KVMMError("There are no input_ids: pass what the processor returned for one prompt.")
    mask = inputs.get("attention_mask")
    if ids.dim() != 2 or ids.shape[0] != 1 or (mask is not None and not bool(mask.all())):
        raise KVMMError("One sequence without padding is analysed at a time: pass the inputs of one prompt.")
    found = {
        name: value.to(model.device) if isinstance(value, torch.Tensor) else value
        for name, value in inputs.items()
        if name != "position_ids"
    }
    found.setdefault("attention_mask", torch.ones_like(found["input_ids"]))
    return found


def full_layers(model: Any, layers: Sequence[int] | None = None) -> tuple[int, ...]:
    """Indices of the decoder's full-attention layers; or ``layers``, if they all are.

    Raises:
        KVMMError: if one of them is not, or there is none.
    """
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    full = tuple(index for index, layer in enumerate(cache.layers) if type(layer) is DynamicLayer)
    if not full:
        raise KVMMError(f"{type(model).__name__} has no layer of full attention, and others are not packed.")
    if layers is None:
        return full
    if wrong := [index for index in layers if index not in full]:
        raise KVMMError(f"Layer {wrong[0]} has no full attention; choose among {', '.join(map(str, full))}.")
    if not layers:
        raise KVMMError("There is no layer to measure: name at least one.")
    return tuple(sorted(set(layers)))


@torch.no_grad()
def visit_layers(
    model: Any, inputs: Mapping[str, torch.Tensor], visit: Visit, layers: Sequence[int] | None = None
) -> None:
    """Read a prompt exactly and call ``visit(index, query, key, value)`` for its layers, one after another.

    Args:
        model: as ``load_model`` returns it; its attention implementation is set to ``"kvmm"``.
        inputs: of one prompt, ``T`` tokens.
        visit: gets query ``[1, H_q, T, D]`` and key ``[1, H_kv, T, D]``, both after RoPE, and value, in the model's
            dtype; it must not write to them. They are gone once the layer is done, so memory holds one layer.
        layers: which ones; None for all of full attention.

    Raises:
        KVMMError: for several sequences, padding, or a model or layer without full attention.
    """
    inputs = one_prompt(model, inputs)
    wanted = full_layers(model, layers)
    use_kvmm_attention(model)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    full = full_layers(model)

    def shown(index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if index in wanted:
            visit(index, query, key, value)

    window = [_Window(index, shown) if index in full else layer for index, layer in enumerate(cache.layers)]
    positions = all_position_ids(model, inputs)
    model(**inputs, position_ids=positions, past_key_values=Cache(layers=window), use_cache=True, logits_to_keep=1)


def prompt_modality(model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """int8 ``[T]`` on the CPU: the modality of every token of one prompt."""
    return modality_of_ids(inputs["input_ids"], model.config)[0].cpu()


def softmax_scale(model: Any, layer: int, head_dim: int) -> float:
    """What a layer multiplies its scores with; ``head_dim ** -0.5`` if its attention does not say."""
    decoder = model.get_decoder()
    decoder = getattr(decoder, "language_model", decoder)
    scaling = getattr(getattr(decoder.layers[layer], "self_attn", None), "scaling", None)
    return head_dim**-0.5 if scaling is None else float(scaling)


__all__ = ["full_layers", "one_prompt", "prompt_modality", "softmax_scale", "visit_layers"]
