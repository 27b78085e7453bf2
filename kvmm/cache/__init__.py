"""What is stored, and how it meets transformers."""

from typing import TYPE_CHECKING

from kvmm.lazy import lazy_names

if TYPE_CHECKING:
    from kvmm.cache.cache import KVMMCache
    from kvmm.cache.memory import MemoryReport

__all__ = ["KVMMCache", "MemoryReport"]

# the cache imports graphs, which import modules of this package: whichever comes first, no circle shows
__getattr__, __dir__ = lazy_names(__name__, {"KVMMCache": "kvmm.cache.cache", "MemoryReport": "kvmm.cache.memory"})
