"""kvmm: a KV cache of one to two bits a value, by modality, for vision-language and omni models."""

from typing import TYPE_CHECKING

from kvmm.errors import KVMMError
from kvmm.lazy import lazy_names

if TYPE_CHECKING:
    from kvmm.cache import KVMMCache, MemoryReport
    from kvmm.codecs import register_codec
    from kvmm.models import load_model
    from kvmm.policy import KVPolicy, RetentionSettings, get_policy, policies, register_policy

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
    "register_codec",
    "register_policy",
]

# torch takes seconds to import: names that need it are imported when they are used
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "KVMMCache": "kvmm.cache",
        "KVPolicy": "kvmm.policy",
        "MemoryReport": "kvmm.cache",
        "RetentionSettings": "kvmm.policy",
        "get_policy": "kvmm.policy",
        "load_model": "kvmm.models",
        "policies": "kvmm.policy",
        "register_codec": "kvmm.codecs.registry",
        "register_policy": "kvmm.policy",
    },
)
