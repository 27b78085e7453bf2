"""Which modality every token belongs to, and how a cache comes to know it.

A cache layer sees keys and values, not token ids. ``install_hook`` puts one forward pre-hook on a model; the hook reads
``input_ids`` and ``attention_mask`` of each call and tells them to the cache that the same call carries in
``past_key_values``. The model keeps no state: one model serves many caches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from kvmm.errors import KVMMError
from kvmm.modality_codes import AUDIO, IMAGE, MODALITY_NAMES, PADDING, TEXT, VIDEO

# arguments beside ids that may tell modalities
_DESCRIBE = ("mm_token_type_ids", "token_type_ids", "position_ids")


def placeholder_ids(config: Any) -> tuple[tuple[int, int], ...]:
    """The ``(token_id, modality)`` pairs of a model's placeholder tokens.

    Args:
        config: a transformers configuration. A full Omni configuration is read through its ``thinker_config``.

    Returns:
        Pairs for the modalities the model has; empty for a text-only model.
    """
    config = getattr(config, "thinker_config", None) or config
    pairs = []
    for modality in (IMAGE, VIDEO, AUDIO):
        token_id = getattr(config, f"{MODALITY_NAMES[modality]}_token_id", None)
        if token_id is not None and token_id >= 0:
            pairs.append((int(token_id), modality))
    return tuple(pairs)


def label_ids(input_ids: torch.Tensor, placeholders: Iterable[tuple[int, int]]) -> torch.Tensor:
    """Label ids with the modality of their placeholder.

    Args:
        input_ids: integer ``[B, T]``.
        placeholders: ``(token_id, modality)`` pairs from :func:`placeholder_ids`.

    Returns:
        int8 ``[B, T]``. Where two modalities share a placeholder (InternVL: video and image) the first pair wins.
    """
    codes = torch.zeros(input_ids.shape, dtype=torch.int8, device=input_ids.device)
    for token_id, modality in reversed(tuple(placeholders)):
        codes.masked_fill_(input_ids == token_id, modality)
    return codes


def modality_of_ids(input_ids: torch.Tensor, config: Any) -> torch.Tensor:
    """The modality of every token of a prompt.

    Args:
        input_ids: integer ``[B, T]``, after the processor has expanded the placeholders.
        config: the model's configuration.

    Returns:
        int8 ``[B, T]`` of ``TEXT``, ``IMAGE``, ``VIDEO``, ``AUDIO``. Padding is not told apart here: it is known from
        the attention mask, not from ids.
    """
    return label_ids(input_ids, placeholder_ids(config))


def _announce(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
    cache = kwargs.get("past_key_values")
    if not hasattr(cache, "announce"):
        return
    input_ids = kwargs.get("input_ids", args[0] if args else None)
    described = {name: kwargs[name] for name in _DESCRIBE if name in kwargs}
    cache.announce(input_ids, kwargs.get("inputs_embeds"), kwargs.get("attention_mask"), **described)


def install_hook(model: nn.Module) -> None:
    """Install the forward pre-hook that tells a call's modality map to the cache it carries; once a model.

    Args:
        model: the module whose ``forward`` takes ``input_ids`` and ``past_key_values`` (the one with ``generate``).
    """
    if _announce not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_announce, with_kwargs=True)


def remove_hook(model: nn.Module) -> None:
    """Take away what :func:`install_hook` installed, if it did."""
    for key in [key for key, hook in model._forward_pre_hooks.items() if hook is _announce]:
        model._forward_pre_hooks.pop(key)
        model._forward_pre_hooks_with_kwargs.pop(key, None)


def check_map(modality: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """Check an explicit modality map against the call it belongs to.

    Args:
        modality: integer ``[B, T]`` of modality codes, or ``PADDING``.
        batch, length: the call's batch size and number of new tokens.

    Returns:
        The map as int8 ``[batch, length]``.

    Raises:
        KVMMError: if the shape or a code is wrong.
    """
    modality = torch.as_tensor(modality)
    if modality.dim() != 2 or modality.shape[1] != length or modality.shape[0] == 0 or batch % modality.shape[0]:
        raise KVMMError(
            f"modality= has shape {list(modality.shape)} but the call has {batch} sequences of {length} new tokens; "
            "pass one code a token."
        )
    if modality.numel() and not (int(modality.min()) >= PADDING and int(modality.max()) <= AUDIO):
        raise KVMMError("modality= must hold 0 (text), 1 (image), 2 (video), 3 (audio) or -1 (padding).")
    return modality.to(torch.int8).repeat_interleave(batch // modality.shape[0], dim=0)


__all__ = [
    "AUDIO",
    "IMAGE",
    "MODALITY_NAMES",
    "PADDING",
    "TEXT",
    "VIDEO",
    "check_map",
    "install_hook",
    "label_ids",
    "modality_of_ids",
    "placeholder_ids",
]
