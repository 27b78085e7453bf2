"""Which models and which combinations of options a cache supports."""

from __future__ import annotations

from typing import Any

from torch import nn

from kvmm.errors import KVMMError
from kvmm.policy import KVPolicy


def check_options(policy: KVPolicy, max_length: Any, graph: Any, offloading: bool) -> None:
    """Raise :class:`KVMMError` for options of a cache that do not go together, or not with its policy."""
    if graph not in (True, False, "compile"):
        raise KVMMError(f'graph= is True, False or "compile", not {graph!r}.')
    if max_length is None:
        if graph:
            raise KVMMError("graph= needs max_length=, the most tokens the cache will ever hold.")
        return
    if not isinstance(max_length, int) or max_length < 1:
        raise KVMMError(f"max_length= is a number of tokens, not {max_length!r}.")
    if policy.budget is not None:
        raise KVMMError("budget= lowers and drops pages, max_length= lays them out for good: leave one of the two out.")
    if offloading:
        raise KVMMError("offloading= moves what max_length= lays out for good: leave one of the two out.")


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
    return config
