"""One exact prefill of one prompt, of which the full-attention layers are shown: what a policy would pack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from kvmm.analysis.common.recording import Enough, Observer, Seen, observe
from kvmm.errors import KVMMError
from kvmm.modality import modality_of_ids


def one_prompt(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of one sequence without padding, on the model's device.

    Raises:
        KVMMError: for anything else.
    """
    ids = inputs.get("input_ids")
    if ids is None:
        raise KVMMError("An analysis needs input_ids: pass what the processor returned.")
    mask = inputs.get("attention_mask")
    if ids.dim() != 2 or ids.shape[0] != 1 or (mask is not None and not bool(mask.all())):
        raise KVMMError("One sequence without padding is analysed at a time: pass the inputs of one prompt.")
    on_device = {n: value.to(model.device) if isinstance(value, torch.Tensor) else value for n, value in inputs.items()}
    on_device.setdefault("attention_mask", torch.ones_like(on_device["input_ids"]))
    return on_device


def prompt_modality(model: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
    """int8 ``[T]`` on the CPU: the modality of every token of one prompt."""
    return modality_of_ids(inputs["input_ids"], model.config)[0].cpu()


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


def visit_layers(model: Any, inputs: Mapping[str, Any], visit: Observer, layers: Sequence[int]) -> None:
    """Read one prompt exactly and show these layers' attention to ``visit``, in order; memory holds one layer.

    Args:
        model: as ``load_model`` returns it.
        inputs: of one prompt.
        visit: called with a :class:`kvmm.analysis.common.recording.Seen` a layer; it must not write to the tensors.
        layers: from :func:`full_layers`; the pass ends after the last.
    """
    wanted = set(layers)

    def shown(seen: Seen) -> None:
        if seen.layer in wanted and seen.owns_cache:
            visit(seen)
        if seen.layer >= max(wanted):
            raise Enough

    observe(model, inputs, shown)


__all__ = ["full_layers", "one_prompt", "prompt_modality", "visit_layers"]
