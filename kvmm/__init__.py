"""kvmm: a KV cache of one to two bits a value, by modality, for vision-language and omni models."""

from typing import Any

from kvmm.cache import KVMMCache, MemoryReport
from kvmm.errors import KVMMError
from kvmm.policy import KVPolicy, RetentionSettings, get_policy, policies

__version__ = "0.1.0"

__all__ = [
    "KVMMCache",
    "KVMMError",
    "KVPolicy",
    "MemoryReport",
    "RetentionSettings",
    "get_policy",
    "load_model",
    "policies",
]


def __getattr__(name: str) -> Any:
    # loading models pulls in processors; a user of the cache alone does not need them
    if name == "load_model":
        from kvmm.models import load_model

        return load_model
    raise AttributeError(f"module 'kvmm' has no attribute {name!r}")
