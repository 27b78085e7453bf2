"""What conversations do with a cache of any kind: measure it, and go back in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvmm.cache import KVMMCache
from kvmm.errors import KVMMError

if TYPE_CHECKING:
    from transformers import Cache


def cache_nbytes(cache: Cache | None) -> int:
    """Bytes of a cache as it is now; 0 without one."""
    if cache is None:
        return 0
    if isinstance(cache, KVMMCache):
        return cache.memory().nbytes
    tensors = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
    return sum(x.untyped_storage().nbytes() for x in tensors if x is not None)


def shortened(cache: Cache, count: int) -> Cache | None:
    """``cache`` with its first ``count`` tokens, also after a pass that was stopped halfway; None if it cannot be."""
    if not count:
        return None
    try:
        if isinstance(cache, KVMMCache):
            lengths = {layer.get_seq_length() for layer in cache.layers if hasattr(layer, "get_seq_length")}
            if len(lengths) > 1:  # stopped halfway: no token table fits
                return None
            cache.crop(count - cache.get_seq_length())
            return cache
        for layer in (layer for layer in cache.layers if hasattr(layer, "get_seq_length")):
            if (surplus := layer.get_seq_length() - count) > 0:
                layer.crop(-surplus)
        return cache
    except (KVMMError, RuntimeError):  # a sliding window has dropped what would come back
        return None


__all__ = ["cache_nbytes", "shortened"]
