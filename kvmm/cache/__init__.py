"""What is stored, and how it meets transformers."""

from kvmm.cache.cache import KVMMCache
from kvmm.cache.memory import MemoryReport

__all__ = ["KVMMCache", "MemoryReport"]
