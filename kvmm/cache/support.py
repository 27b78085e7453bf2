"""Which models and which combinations of options a cache supports."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn

from kvmm.attention import OWN_ATTENTION
from kvmm.errors import KVMMError
from kvmm.policy import KVPolicy


def check_options(policy: KVPolicy, max_length: Any, graph: Any, offloading: bool) -> None:
    """Raise :class:`KVMMError` for options of a cache that do not go together, or not with its policy."""
    if graph not in (None, True, False, "compile", "never"):
        raise KVMMError(f'graph= is None, True, False, "compile" or "never", not {graph!r}.')
    if max_length is not None and (not isinstance(max_length, int) or max_length < 1):
        raise KVMMError(f"max_length= is a number of tokens, not {max_length!r}.")
    static = "graph=" if graph and graph != "never" else "max_length=" if max_length is not None else None
    if static and policy.budget is not None:
        raise KVMMError(f"budget= lowers and drops pages, {static} wants buffers that stay: leave one of the two out.")
    if static and offloading:
        raise KVMMError(f"offloading= moves the buffers that {static} wants to stay: leave one of the two out.")


def check_attention(
    policy: KVPolicy, config: Any, layers: Sequence[Any], with_keys: Sequence[int], packed: Sequence[int]
) -> None:
    """Raise :class:`KVMMError` for a model without layers that the policy is for, and warn of those that it is not for.

    Args:
        policy: of the cache.
        config: of the model.
        layers: of the cache.
        with_keys: indices of the layers with keys and values.
        packed: of those that are packed.
    """
    if not with_keys:
        raise KVMMError(
            f"{type(config).__name__} has no attention layer with keys and values to pack; use transformers' own "
            "cache for this model."
        )
    if policy.budget is not None and not packed:
        raise KVMMError(
            f"{type(config).__name__} has no layer of full attention alone, and only pages of those are lowered and "
            "dropped: leave budget= out."
        )
    both = sum(hasattr(layers[index], "update_recurrent_state") for index in with_keys)
    if both:
        warnings.warn(
            f"{'All' if both == len(layers) else f'{both} of {len(layers)}'} layers of {type(config).__name__} hold "
            "attention and a recurrent state in one. kvmm does not pack these: their keys and values stay as they are.",
            stacklevel=2,
        )


def takes_static_buffers(model: nn.Module, policy: KVPolicy, offloading: bool) -> bool:
    """Whether a cache for ``model`` has static buffers by default: on a GPU, unless pages move by themselves."""
    return _on_gpu(model) and policy.budget is None and not offloading


def default_graph(model: nn.Module, policy: KVPolicy, offloading: bool) -> str | None:
    """What ``graph=None`` means for a model: ``"auto"``, or None where no step is captured.

    Steps of a model on a GPU are captured. The processes of a tensor parallel model share a communicator that graphs
    would hold on to (``destroy_process_group()`` then does not return), so that has to be asked for.
    """
    parallel = getattr(model, "_tp_size", None) is not None
    return "auto" if takes_static_buffers(model, policy, offloading) and not parallel else None


def _on_gpu(model: nn.Module) -> bool:
    return model.device.type == "cuda"


def checked_config(model: nn.Module) -> Any:
    """The configuration of a model.

    Raises:
        KVMMError: for a model that a cache does not support; it says why.
    """
    config = getattr(model, "config", None)
    name = type(model).__name__
    if config is None or not hasattr(config, "get_text_config"):
        raise KVMMError(f"{name} is not a transformers model; pass the model that has generate().")
    if getattr(config, "is_encoder_decoder", False):
        raise KVMMError(f"{name} is an encoder-decoder model; kvmm packs the cache of decoder-only models.")
    if not getattr(model, "_supports_sdpa", True):
        raise KVMMError(f"{name} does not run with SDPA attention, which kvmm uses to read the prompt.")
    if getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None):
        raise KVMMError(f"{name} caps its attention logits, which kvmm's attention does not do.")
    if _has_own_attention(model):
        raise KVMMError(f"{name} is not supported. {OWN_ATTENTION}")
    return config


def _has_own_attention(model: nn.Module) -> bool:
    """Whether the source of the model's decoder shows attention beside transformers' ``AttentionInterface``.

    Where there is no source to read (a model made in a notebook), the first step that packed pages are read in tells.
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    decoder_class = type(getattr(decoder, "language_model", decoder))
    if not hasattr(decoder_class, "_can_set_attn_implementation"):
        return False
    decoder_class._can_set_attn_implementation()
    # set once the source was read; the call itself also says False where there is none
    return getattr(decoder_class, "_can_set_attn_implementation_cached_value", None) is False
