"""The attention implementation ``"kvmm"``, registered with transformers.

A packed layer hands its handle through the model in place of keys and values; here it meets its queries. Real tensors
(a prompt, sliding-window layers, vision and audio towers) go to SDPA as usual.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask, sdpa_mask

from kvmm.errors import KVMMError

NAME = "kvmm"  # must not contain "flash": transformers reads that as FlashAttention


def kvmm_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: Any,
    value: Any,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for transformers' interface.

    Args:
        module: the attention module.
        query: ``[B, H_q, q, D]``.
        key, value: ``[B, H_kv, T, D]``, or the handle of a packed layer, twice.
        attention_mask: None, bool ``[B, T]`` (decode), or ``[B, 1, q, T]``.
        scaling: softmax scale, ``D ** -0.5`` if None.

    Returns:
        ``([B, q, H_q, D], None)``.
    """
    if isinstance(key, torch.Tensor):
        if attention_mask is not None and attention_mask.dim() == 2:
            attention_mask = attention_mask[:, None, None, :]
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    return read_packed(module, query, key, attention_mask, scaling, **kwargs)


def read_packed(
    module: nn.Module,
    query: torch.Tensor,
    handle: Any,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """:func:`kvmm_attention_forward` of a layer's handle; to ``torch.compile`` one opaque call."""
    if not handle.layer.packed:
        key, value = handle.layer.observe(query)
        return kvmm_attention_forward(module, query, key, value, attention_mask, scaling, **kwargs)
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise KVMMError("Attention with capped logits or learned sinks cannot read a packed cache.")
    output = handle.layer.attend(query, attention_mask, query.shape[-1] ** -0.5 if scaling is None else scaling)
    return output.transpose(1, 2).contiguous(), None


def kvmm_mask(**kwargs: Any) -> torch.Tensor | None:
    """The mask for ``"kvmm"`` attention: None or bool ``[B, T]`` for one new token, else SDPA's ``[B, 1, q, T]``.

    A static cache has more slots than tokens; there the short form would leave the empty ones visible.
    """
    queries, offset = kwargs["q_length"], kwargs.get("q_offset", 0)
    if queries == 1 and isinstance(offset, int) and offset + 1 == kwargs["kv_length"] + kwargs.get("kv_offset", 0):
        return flash_attention_mask(**kwargs)
    return sdpa_mask(**kwargs)


AttentionInterface.register(NAME, kvmm_attention_forward)
AttentionMaskInterface.register(NAME, kvmm_mask)


def use_kvmm_attention(model: nn.Module) -> None:
    """Set the attention of a model's text decoder to ``"kvmm"``; a second call does nothing.

    Args:
        model: a transformers model, text-only or with a ``text_config``.
    """
    config = model.config
    text_config = config.get_text_config(decoder=True)
    if text_config._attn_implementation == NAME:
        return
    if text_config is config:
        model.set_attn_implementation(NAME)
        return
    name = next((key for key in config.sub_configs if getattr(config, key, None) is text_config), "text_config")
    model.set_attn_implementation({name: NAME})
    if text_config._attn_implementation != NAME:
        raise KVMMError(f"{type(model).__name__} does not let its attention implementation be set.")
