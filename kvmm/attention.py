"""How a packed layer meets its queries: a way into the attention of any transformers model that leaves it as it is.

A packed layer hands a :class:`PackedHandle` through the model in place of keys and values. Every attention module asks
transformers' ``AttentionInterface.get_interface`` for its function right after that; :func:`install_attention` has that
method return a function that reads the handle where one comes, and is the model's own function (eager, SDPA,
FlashAttention, flex, whatever its configuration says) where tensors come, but for a prompt that
:mod:`kvmm.kernels.prompt_attention` reads as SDPA does and faster. So neither a configuration nor a module is
changed: what decides is what the call carries.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AttentionInterface

from kvmm.errors import KVMMError
from kvmm.kernels.prompt_attention import native

OWN_ATTENTION = (
    "The model's attention does not go through transformers' AttentionInterface, which is where kvmm reads packed "
    "pages; use a version of the model that does, or transformers' own cache."
)

_NOT_PLAIN = ("softcap", "s_aux", "position_bias", "cache")  # arguments of SDPA that ask for more than attention
_last_mask: tuple[Callable[[], torch.Tensor | None], int | None, bool] = (lambda: None), None, False  # is it causal?


class Layer(Protocol):
    """A layer of a cache as attention knows it: :class:`kvmm.cache.layer.KVMMLayer`, or a probe."""

    packed: bool

    def observe(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Exact keys and values ``[B, H, T, D]``, after a look at the prompt's queries."""

    def decoded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[B, H, T, D]`` of packed pages, in the order of the sequence."""

    def attend(self, query: torch.Tensor, attention_mask: Any, scaling: float) -> torch.Tensor:
        """Attention over packed pages ``[B, H_q, q, D]``."""


class PackedHandle:
    """What a layer returns in place of keys and values when it wants to see the queries: to read packed pages, or,
    for a codec that weighs channels by them, during the prompt.

    Args:
        layer: what is read.
        layer_device: of its keys and values; queries from another one are read there.
    """

    def __init__(self, layer: Layer, layer_device: torch.device):
        self.layer, self.layer_device = layer, layer_device

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> PackedHandle:
        """The handle itself: layers that share keys and values ask for them on their own device, and the pages stay.

        Raises:
            KVMMError: for a dtype, which only attention of a model's own asks for.
        """
        if isinstance(device, torch.dtype):
            raise KVMMError(OWN_ATTENTION)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own protocols, which have defaults
            raise AttributeError(name)
        raise KVMMError(OWN_ATTENTION)


def install_attention() -> None:
    """Have transformers' attention dispatch know :class:`PackedHandle`; a second call does nothing."""
    find = AttentionInterface.get_interface
    if hasattr(find, "knows_handles"):
        return

    @functools.wraps(find)
    def get_interface(self: AttentionInterface, attn_implementation: str | None, default: Callable) -> Callable:
        own = find(self, attn_implementation, default)
        if attn_implementation == "sdpa":
            own = functools.partial(_read_prompt, own)

        def attention(module: nn.Module, query: torch.Tensor, key: Any, *args: Any, **kwargs: Any) -> Any:
            if type(key) is PackedHandle:
                return read_packed(own, attn_implementation, module, query, key, *args, **kwargs)
            return own(module, query, key, *args, **kwargs)

        return attention

    get_interface.knows_handles = True
    AttentionInterface.get_interface = get_interface


def _read_prompt(
    own: Callable,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *args: Any,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """SDPA, ``own``, of a model; a prompt on a CPU goes through :mod:`kvmm.kernels.prompt_attention`, which
    computes the same, where that is faster."""
    if not args and not kwargs.get("dropout") and not any(kwargs.get(name) is not None for name in _NOT_PLAIN):
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if attention_mask is not None or (causal and key.shape[2] != query.shape[2]):
            causal = True  # a prompt that goes on, whose mask has to say so
        if native.takes(query, key, value, causal) and _says(attention_mask, query, key, causal):
            scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
            return native.prompt_attention(query, key, value, scaling, causal), None
    return own(module, query, key, value, attention_mask, *args, scaling=scaling, is_causal=is_causal, **kwargs)


def _says(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, causal: bool) -> bool:
    """Whether SDPA with ``mask`` is attention to all keys or, if ``causal``, to those up to each query's own."""
    queries, tokens = query.shape[2], key.shape[2]
    if mask is None:
        return not causal or queries == tokens
    if mask.dtype != torch.bool or mask.shape[1:] != (1, queries, tokens):
        return False
    global _last_mask
    known, seen, found = _last_mask
    version = None if mask.is_inference() else mask._version
    if known() is not mask or seen != version:  # the layers of a call share one
        found = bool((mask == torch.ones_like(mask[:1]).tril(tokens - queries)).all())
        _last_mask = weakref.ref(mask), version, found
    return found


@torch.compiler.disable
def read_packed(
    own: Callable,
    implementation: str | None,
    module: nn.Module,
    query: torch.Tensor,
    handle: PackedHandle,
    value: PackedHandle,
    attention_mask: Any,
    *args: Any,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention over a layer's handle, which ``torch.compile`` calls as it is.

    Args:
        own: the model's own attention function, called ``implementation`` (``"sdpa"``; ``"eager"`` or None gives
            attention weights).
        module: the attention module.
        query: ``[B, H_q, q, D]``.
        handle, value: the handle of the layer, twice.
        attention_mask: what ``own`` would get: None, bool ``[B, T]``, bool or float ``[B, 1, q, T]``, or flex
            attention's ``BlockMask``.
        scaling: softmax scale, ``D ** -0.5`` if None.

    Returns:
        ``[B, q, H_q, D]``, and the weights ``[B, H_q, q, T]`` over the decoded keys, in the order of the sequence, if
        the call asked for attentions and ``own`` gives them; else None.

    Raises:
        KVMMError: for attention with capped logits or learned sinks, or weights over pages that were dropped.
    """
    layer, device = handle.layer, query.device  # which differ where layers on several devices share keys and values
    there = query.to(handle.layer_device)
    if not layer.packed:
        exact = (x.to(device) for x in layer.observe(there))
        return own(module, query, *exact, attention_mask, *args, scaling=scaling, **kwargs)
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise KVMMError("Attention with capped logits or learned sinks cannot read a packed cache.")
    weights = None
    if implementation in ("eager", None) and _records_weights(module, kwargs):
        exact = (x.to(device) for x in layer.decoded())
        weights = own(module, query, *exact, attention_mask, *args, scaling=scaling, **kwargs)[1]
    output = layer.attend(there, attention_mask, query.shape[-1] ** -0.5 if scaling is None else scaling)
    return output.to(device).transpose(1, 2).contiguous(), weights


def _records_weights(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    """Whether transformers collects the weights of this call, by its own rule."""
    config = getattr(module, "config", None)
    return bool(kwargs.get("output_attentions", getattr(config, "output_attentions", False)))
