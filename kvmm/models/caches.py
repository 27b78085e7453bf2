"""Caches of any kind by the policy's name: kvmm's, transformers' own, and its quantised ones; their bytes and bits."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import DynamicCache
from transformers.cache_utils import Cache, QuantizedCache

from kvmm.cache import KVMMCache
from kvmm.cache.memory import left_tensors
from kvmm.errors import KVMMError
from kvmm.models.peers import PEERS, check_peer, copy_peer_cache, is_peer, new_peer_cache, peer_config
from kvmm.policy import KVPolicy, get_policy

DYNAMIC = "dynamic"  # transformers' own cache: the reference that needs no kvmm code


def resolve_policies(
    names: Sequence[str | Path | KVPolicy], *, transformers_caches: bool = True
) -> dict[str, str | KVPolicy]:
    """Policies by the name they report under: presets, YAML files, "dynamic" and the peers of ``kvmm.models.peers``.

    Args:
        names: policies, their names or their files.
        transformers_caches: whether :data:`DYNAMIC` and peers are possible too.

    Raises:
        KVMMError: for an unknown one, none at all, one named twice, or a peer whose package is missing.
    """
    policies: dict[str, str | KVPolicy] = {}
    for one in names:
        if transformers_caches and is_peer(one):
            check_peer(str(one))
        is_name = transformers_caches and (one == DYNAMIC or is_peer(one))
        policy = one if is_name else get_policy(one)
        name = policy if isinstance(policy, str) else policy.name
        if name in policies:
            raise KVMMError(f"Two policies are called {name!r}: name every policy once, under its own name.")
        policies[name] = policy
    if not policies:
        raise KVMMError("There is no policy: name at least one.")
    return policies


def policy_config(policy: str | KVPolicy) -> dict[str, Any]:
    """A policy's settings as plain values, for the results file."""
    if isinstance(policy, KVPolicy):
        return policy.to_dict()
    return peer_config(policy) if policy in PEERS else {"name": policy, "cache": "transformers.DynamicCache"}


def new_cache(model: Any, policy: str | KVPolicy) -> Cache:
    """A cache of a policy, transformers' own for :data:`DYNAMIC`, or one of :data:`kvmm.models.peers.PEERS`."""
    if policy == DYNAMIC:
        return DynamicCache(config=model.config.get_text_config(decoder=True))
    if is_peer(policy):
        return new_peer_cache(model, policy)
    return KVMMCache.for_model(model, policy)


def copy_cache(cache: Cache) -> Cache:
    """An independent copy; it shares packed pages until one of the two adds to them."""
    if isinstance(cache, KVMMCache):
        return cache.fork()
    return copy_peer_cache(cache) if isinstance(cache, QuantizedCache) else copy.deepcopy(cache)


def measured_bits(cache: Cache) -> dict[str, float]:
    """Bits per value of a cache, measured from its tensors; empty for transformers' own.

    ``bits`` counts everything and all tokens, ``packed_bits`` what is in packed pages; ``media_bits`` and
    ``media_packed_bits`` the same of images, video and audio, and are absent without any.
    """
    if not isinstance(cache, KVMMCache):
        return {}
    report = cache.memory()
    bits = {"bits": report.bits_per_value}
    media = [numbers for name, numbers in report.by_modality.items() if name != "text"]
    if media and any(m["packed_tokens"] for m in media):
        bits["media_bits"] = 16 * sum(m["nbytes"] for m in media) / sum(m["nbytes_dense"] for m in media)
        bits["media_packed_bits"] = _packed_bits(media)
    if any(m["packed_tokens"] for m in report.by_modality.values()):
        bits["packed_bits"] = _packed_bits(list(report.by_modality.values()))
    return bits


def _packed_bits(modalities: Sequence[Mapping[str, float]]) -> float:
    tokens = sum(m["packed_tokens"] for m in modalities)
    return sum(m["packed_bits_per_value"] * m["packed_tokens"] for m in modalities) / tokens


def cache_nbytes(cache: Cache | None) -> int:
    """Bytes of a cache as it is now; 0 without one."""
    if cache is None:
        return 0
    if isinstance(cache, KVMMCache):
        return cache.memory().nbytes
    return sum(x.untyped_storage().nbytes() for layer in cache.layers for x in left_tensors(layer).values())


def crop_cache(cache: Cache, count: int) -> Cache | None:
    """Crop ``cache`` to its first ``count`` tokens, also after a stopped forward pass; None if that is impossible."""
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
    except (KVMMError, RuntimeError):  # a sliding window has dropped the tokens before
        return None


def takes_graph(model: Any, policy: str | KVPolicy, overrides: Mapping[str, Any]) -> bool:
    """Whether a conversation generates by a CUDA graph unless told otherwise: on a GPU, without a budget."""
    if policy == DYNAMIC or model.device.type != "cuda" or overrides.get("offloading"):
        return False
    names = ("offloading", "modality", "max_length")
    return get_policy(policy, **{n: v for n, v in overrides.items() if n not in names}).budget is None


__all__ = [
    "DYNAMIC",
    "cache_nbytes",
    "copy_cache",
    "crop_cache",
    "measured_bits",
    "new_cache",
    "policy_config",
    "resolve_policies",
]
