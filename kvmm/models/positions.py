"""Explicit positions of the tokens of a prompt.

The Qwen families keep ``rope_deltas`` of the last prompt on the model and guess positions with them. Explicit positions
in every call keep those of one prompt from reaching another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel

if TYPE_CHECKING:
    from kvmm.models.prompting import Prompt


@contextlib.contextmanager
def kept_rope_deltas(model: nn.Module) -> Iterator[None]:
    """Leave the ``rope_deltas`` that a model's modules hold as they were."""
    kept = [(module, module.rope_deltas) for module in model.modules() if hasattr(module, "rope_deltas")]
    try:
        yield
    finally:
        for module, deltas in kept:
            module.rope_deltas = deltas


def all_position_ids(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Positions of all tokens of ``inputs``, ``[1, T]`` or for M-RoPE models ``[4, 1, T]``."""
    with kept_rope_deltas(model):
        return model._prepare_position_ids_for_generation(inputs["input_ids"], dict(inputs))


def extended_position_ids(positions: torch.Tensor, count: int) -> torch.Tensor:
    """Positions of all tokens and of ``count`` text tokens after them; the shapes of :func:`all_position_ids`.

    Text counts on from the largest position so far. With M-RoPE that is the largest of the three axes, and the first
    of four rows, which numbers the tokens, counts by itself.
    """
    last = positions.amax(-1, keepdim=True)
    if last.dim() == 3:
        rows = last[-3:]
        last = torch.cat([last[:-3], rows.amax(0, keepdim=True).expand_as(rows)])
    steps = torch.arange(1, count + 1, device=positions.device)
    return torch.cat([positions, last + steps], dim=-1)


def prompt_position_ids(model: PreTrainedModel, prompt: Prompt) -> dict[str, torch.Tensor]:
    """Explicit ``position_ids`` of all tokens if the family derives positions from the media, else nothing."""
    if type(model)._prepare_position_ids_for_generation is GenerationMixin._prepare_position_ids_for_generation:
        return {}
    names = ("input_ids", "attention_mask", *prompt.per_token)
    arguments = {name: prompt.inputs[name] for name in names} | prompt.history
    return {"position_ids": model._prepare_position_ids_for_generation(prompt.inputs["input_ids"], arguments)}


__all__ = ["all_position_ids", "extended_position_ids", "kept_rope_deltas", "prompt_position_ids"]
