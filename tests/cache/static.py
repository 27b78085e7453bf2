"""Caches whose buffers never move, and one that grows to compare them with.

Without CUDA their steps run uncaptured, but through the same static buffers.
"""

from __future__ import annotations

from kvmm import KVMMCache
from kvmm.modality import install_hook

FIELDS = {"residual_length": 16, "flush_length": 32, "num_sink_tokens": 2}
TOKENS = 120  # several pages of 32
FAMILIES = ("llama", "qwen3", "qwen2_vl", "qwen2_5_omni")


def make(model, policy="oscar2", graph=True, max_length=600, **fields):
    return KVMMCache.for_model(model, policy, max_length=max_length, graph=graph, **{**FIELDS, **fields})


def static(model, policy="oscar2", **fields):
    """Buffers in place without a graph or a hint, as on a GPU."""
    config = {**FIELDS, **fields}
    cache = KVMMCache(model.config, policy, static=True, **config)
    install_hook(model)
    return cache


def dynamic(model, policy="oscar2", **fields):
    return KVMMCache.for_model(model, policy, **{**FIELDS, **fields})
