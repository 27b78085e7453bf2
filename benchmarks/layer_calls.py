"""What one layer's call of a decode step costs the host: ``cache.update`` and the attention function.

A cache without anything asked for replays a layer's call as a small CUDA graph, where it does not replay whole steps;
``graph="never"`` launches every kernel from Python. Beside both stand ``DynamicCache`` and SDPA. The GPU is not waited
for, so the time does not depend on how long a cache is. SDPA's plans for the lengths that occur are made before.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks.synthetic import build_model, calibration_file, fill, kv_shape
from benchmarks.timing import synchronize
from kvmm import KVMMCache, get_policy

TOKENS = 2048


@torch.no_grad()
def host_seconds(model: nn.Module, cache: Cache, steps: int = 30) -> float:
    """Seconds of the host for one layer's ``update`` and attention of a single token, the median step."""
    layers, heads, dim = kv_shape(model)
    batch, query_heads = cache.layers[0].keys.shape[0], model.config.num_attention_heads
    new = {"device": model.device, "dtype": model.dtype}
    query = torch.randn(batch, query_heads, 1, dim, **new)
    key, value = (torch.randn(batch, heads, 1, dim, **new) for _ in range(2))
    modules = [layer.self_attn for layer in model.model.layers]
    found = []
    for _ in range(steps):
        synchronize(model.device)
        begin = time.perf_counter()
        for index, module in enumerate(modules):
            keys, values = cache.update(key, value, index)
            attention = ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", None)
            attention(module, query, keys, values, None, scaling=module.scaling)
        found.append((time.perf_counter() - begin) / layers)
    return statistics.median(found[steps // 3 :])


class LayerCalls:
    """Times of policies, each measured once, in one process with the baseline.

    Args:
        device: where the caches are.
        toy: tiny sizes, which show that it runs.
    """

    def __init__(self, device: str, toy: bool = False):
        self._tokens = 160 if toy else TOKENS
        # two models: caches of kvmm hook the attention of the one that they are made for
        self._dense = build_model("qwen3-4x1024", device, toy=toy)
        self._model = build_model("qwen3-4x1024", device, toy=toy)
        self._file = calibration_file(self._model)
        self._found: dict[str, dict[str, Any]] = {}
        self._dynamic()  # cuDNN plans every length once, which the first policy's baseline would pay for

    def _dynamic(self) -> float:
        """Seconds of the baseline."""
        return host_seconds(self._dense, fill(DynamicCache(), self._dense, 1, self._tokens))

    def of(self, policy_name: str) -> dict[str, Any]:
        """``host_us`` of a policy, ``replayed`` and ``plain``, beside ``dynamic``; ``host_ratio`` is what the default,
        ``replayed``, is in ``dynamic``."""
        if policy_name not in self._found:
            codecs = {spec.codec for spec in get_policy(policy_name).all_specs()}
            settings = {"calibration": str(self._file)} if "rd" in codecs else {}
            microseconds = {}
            for name, graph in (("replayed", False), ("plain", "never")):
                cache = KVMMCache.for_model(self._model, policy=policy_name, graph=graph, **settings)
                filled = fill(cache, self._model, 1, self._tokens).pack()
                microseconds[name] = host_seconds(self._model, filled) * 1e6
            microseconds["dynamic"] = self._dynamic() * 1e6
            ratio = microseconds["replayed"] / microseconds["dynamic"]
            self._found[policy_name] = {"host_us": microseconds, "host_ratio": ratio}
        return self._found[policy_name]


__all__ = ["LayerCalls", "host_seconds"]
