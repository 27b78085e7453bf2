"""What is stored, and how it meets transformers.

- ``cache``: :class:`KVMMCache`, what happens once a call. ``contract`` has what transformers documents beside.
- ``layer``: one layer: tokens come in, queries are answered. ``layer_contract`` likewise.
- ``token_table``: which token lies where, for all layers. ``step_state``: what is known of the call that runs.
- ``buffers``: the residual tokens of a layer, in a buffer that grows or in one that stays in place. ``capacity``: how
  large the latter are, and how much is in use, as every device knows it.
- ``segments``: the packed pages of a layer. ``pages``: those of one tensor in one code; ``entries``, ``observed``
  and ``tiers``: in codes that change, page by page and head by head, for ``retention`` (with ``retention_plan``, and
  ``eviction`` for the methods that it is compared with).
- ``file`` (with ``file_checks``), ``memory``, ``fuse``, ``key_norms``: files, bytes, weights, norms.

What a CUDA graph has captured goes on to hold while the tensors that it read stay where they are. Only ``buffers``,
``capacity`` and ``pages`` move them, and whatever does is followed by :meth:`KVMMCache._changed` before the next step
that could be replayed, which has the graphs compare addresses.
"""

from typing import TYPE_CHECKING

from kvmm.lazy import lazy_names

if TYPE_CHECKING:
    from kvmm.cache.cache import KVMMCache
    from kvmm.cache.memory import MemoryReport

__all__ = ["KVMMCache", "MemoryReport"]

# the cache imports graphs, which import modules of this package: whichever comes first, no circle shows
__getattr__, __dir__ = lazy_names(__name__, {"KVMMCache": "kvmm.cache.cache", "MemoryReport": "kvmm.cache.memory"})
