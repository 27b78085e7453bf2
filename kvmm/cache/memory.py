"""How many bytes a cache really holds: the sizes of the tensors that exist, by modality, component and layer.

One definition for every figure of the project. A tensor's bytes *hold something* or are *reserved*: slack that buffers
grow into, buffers kept in place for tokens to come, and slots of exact tokens that are empty (padding, the end of the
last lossless page). Bits, ratios and shares are of what holds something; :mod:`kvmm.memory_text` puts them into words.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch

from kvmm.cache.layer import KVMMLayer
from kvmm.cache.state import CacheState
from kvmm.modality import MODALITY_NAMES

_LOSSLESS = "values"  # the tensor of pages that keep tokens as they are


@dataclass(frozen=True)
class MemoryReport:
    """Measured memory.

    Attributes:
        nbytes: bytes of every tensor of the cache.
        nbytes_dense: bytes of the keys and values of the same tokens (padding not counted) in 16 bits, and of the
            states of layers with linear attention.
        ratio: ``nbytes_dense / held_nbytes``.
        bits_per_value: of the whole cache: bits of ``held_nbytes`` over the number of elements of those keys, values
            and states.
        tokens: tokens held, padding not counted.
        by_modality: ``{name: {tokens, nbytes, nbytes_dense, bits_per_value, packed_nbytes, packed_tokens,
            packed_bits_per_value}}`` of ``held_nbytes``; the ``packed_`` figures leave sinks, residual and the cache's
            page table out.
        by_component: bytes of ``codes``, ``scale``, ``zero_point``, ``norm``, ``values`` (lossless pages), ``sink``,
            ``residual``, ``page_table``, ``sliding`` (sliding-window layers, left as they are), ``state`` (of linear
            attention, left as it is), ``queries`` (of a prompt that waits to be packed, where its codec or a budget
            looks at them), with a budget ``retention`` (what its controller knows of pages) and ``backing`` (in host
            memory, outside the budget), ...: all that hold something, and ``reserved``.
        by_layer: ``nbytes`` and ``nbytes_dense`` of each layer, and ``reserved_nbytes`` among the bytes.
        shared_nbytes: the part of ``nbytes`` that a fork of the cache holds in common with it.
        reserved_nbytes: the part of ``nbytes`` that holds nothing (yet).
        packed_tokens: tokens in packed pages.
        packed_bits_per_value: of the packed pages alone: bits of their codes, scales, norms and zero points over the
            elements of their tokens; 0 if nothing is packed.
    """

    nbytes: int = 0
    nbytes_dense: int = 0
    ratio: float = 1.0
    bits_per_value: float = 0.0
    tokens: int = 0
    by_modality: dict[str, dict[str, float]] = field(default_factory=dict)
    by_component: dict[str, int] = field(default_factory=dict)
    by_layer: list[dict[str, int]] = field(default_factory=list)
    shared_nbytes: int = 0
    reserved_nbytes: int = 0
    packed_tokens: int = 0
    packed_bits_per_value: float = 0.0

    @property
    def held_nbytes(self) -> int:
        """Bytes that hold something."""
        return self.nbytes - self.reserved_nbytes

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, for JSON; ``held_nbytes`` among them."""
        return asdict(self) | {"held_nbytes": self.held_nbytes}


@dataclass
class _Counts:
    """Bytes so far, and the tokens they are of."""

    dense: dict[int, int]  # modality -> residual tokens
    stores: dict[int, dict[int, int]]  # modality of the pages -> modality -> tokens in them
    sinks: int  # residual tokens that are sinks
    components: Counter[str] = field(default_factory=Counter)
    by_modality: Counter[int] = field(default_factory=Counter)
    by_packed: Counter[int] = field(default_factory=Counter)

    @cached_property
    def packed(self) -> dict[int, int]:
        """Tokens in pages, by modality."""
        return {m: sum(found[m] for found in self.stores.values()) for m in self.dense}

    @property
    def totals(self) -> dict[int, int]:
        return {m: self.dense[m] + self.packed[m] for m in self.dense}


def measure(cache: CacheState) -> MemoryReport:
    """Measure a cache; works before and after packing."""
    table = cache.table
    table.clear_bias()
    if table.modality is None:
        return MemoryReport()
    counts = _Counts(
        table.counts(table.dense),
        {m: table.counts(positions) for m, positions in table.stores.items()},
        int((table.dense[:, : table.num_sinks] >= 0).sum()) if table.packed else 0,
    )
    totals = counts.totals
    tokens = sum(totals.values())
    by_layer: list[dict[str, int]] = []
    width = 0  # elements of a token's keys and values in all packed layers
    for layer in cache.layers:
        row = {"nbytes": 0, "nbytes_dense": 0, "reserved_nbytes": 0}
        if isinstance(layer, KVMMLayer) and layer.is_initialized:
            key, value = layer.dense_key, layer.dense_value
            own = key.shape[1] * key.shape[3] + value.shape[1] * value.shape[3]
            nbytes, held = _measure_layer(layer, counts)
            row = {"nbytes": nbytes, "nbytes_dense": 2 * own * tokens, "reserved_nbytes": nbytes - held}
            width += own
        elif tensors := left_tensors(layer):
            nbytes, held = sum(map(_storage, tensors.values())), sum(x.nbytes for x in tensors.values())
            for name, x in tensors.items():
                counts.components["sliding" if name in ("keys", "values") else "state"] += x.nbytes
            _share(held, totals, counts.by_modality)
            dense = 2 * sum(x.numel() for x in tensors.values())
            row = {"nbytes": nbytes, "nbytes_dense": dense, "reserved_nbytes": nbytes - held}
        by_layer.append(row)

    table_slack = table.slack_nbytes()
    held = table.nbytes() - table_slack
    counts.components["page_table"] += held
    _share(held, totals, counts.by_modality)
    reserved = table_slack + sum(row["reserved_nbytes"] for row in by_layer)
    held = sum(counts.components.values())
    if reserved:
        counts.components["reserved"] = reserved
    nbytes_dense = sum(row["nbytes_dense"] for row in by_layer)
    packed_tokens = sum(counts.packed.values())
    return MemoryReport(
        nbytes=held + reserved,
        nbytes_dense=nbytes_dense,
        ratio=nbytes_dense / max(held, 1),
        bits_per_value=16 * held / max(nbytes_dense, 1),
        tokens=tokens,
        by_modality=_by_modality(counts, width, nbytes_dense - 2 * width * tokens),
        by_component=dict(counts.components),
        by_layer=by_layer,
        shared_nbytes=sum(
            store.shared_nbytes()
            for layer in cache.layers
            if isinstance(layer, KVMMLayer)
            for part in layer.parts.values()
            for store in part.stores
        ),
        reserved_nbytes=reserved,
        packed_tokens=packed_tokens,
        packed_bits_per_value=8 * sum(counts.by_packed.values()) / (packed_tokens * width) if packed_tokens else 0.0,
    )


def left_tensors(layer: Any) -> dict[str, torch.Tensor]:
    """The tensors of one of transformers' own layers, which a cache leaves as they are, by name: keys and values, and
    the states of linear attention."""
    if isinstance(layer, KVMMLayer):
        return {}
    found: dict[str, Any] = {}
    for name, value in vars(layer).items():
        if name != "_sliding_window_tensor":  # one number, the window's length
            found |= {f"{name}.{key}": x for key, x in value.items()} if isinstance(value, dict) else {name: value}
    return {name: x for name, x in found.items() if isinstance(x, torch.Tensor)}


def storages(cache: CacheState) -> dict[int, int]:
    """Bytes of the memory behind every tensor of a cache, by address: what several caches share has one address."""
    tensors = [cache.table.modality, cache.table.dense, *cache.table.stores.values()]
    for layer in cache.layers:
        if isinstance(layer, KVMMLayer) and layer.is_initialized:
            tensors += layer.residual.tensors()
            for store in layer.segments.allocated_stores:
                tensors += store.buffers.values()
                tensors += [] if store.groups is None else [store.groups.buffer]
            tensors += layer.queries.tensors
        else:
            tensors += left_tensors(layer).values()
    found = (t.untyped_storage() for t in tensors if isinstance(t, torch.Tensor))
    return {storage.data_ptr(): storage.nbytes() for storage in found if storage.nbytes()}


def _by_modality(counts: _Counts, width: int, sliding_dense: int) -> dict[str, dict[str, float]]:
    totals = counts.totals
    dense: Counter[int] = Counter({m: 2 * width * n for m, n in totals.items()})
    _share(sliding_dense, totals, dense)
    found = {}
    for m, count in totals.items():
        if not count:
            continue
        packed = counts.packed[m]
        found[MODALITY_NAMES[m]] = {
            "tokens": count,
            "nbytes": counts.by_modality[m],
            "nbytes_dense": dense[m],
            "bits_per_value": 16 * counts.by_modality[m] / dense[m],
            "packed_tokens": packed,
            "packed_nbytes": counts.by_packed[m],
            "packed_bits_per_value": 8 * counts.by_packed[m] / (packed * width) if packed else 0.0,
        }
    return found


def _storage(tensor: Any) -> int:
    return tensor.untyped_storage().nbytes()


def _measure_layer(layer: KVMMLayer, counts: _Counts) -> tuple[int, int]:
    """Add what one layer holds to the counts; returns the bytes of its tensors, and those that hold something."""
    total = sum(_storage(x) for x in layer.residual.tensors())
    column = sum(x.shape[1] * x.shape[3] * x.element_size() for x in (layer.dense_key, layer.dense_value))
    held = sum(counts.dense.values()) * column
    sinks = counts.sinks * column
    counts.components["sink"] += sinks
    counts.components["residual"] += held - sinks
    for modality, n in counts.dense.items():
        counts.by_modality[modality] += n * column
    if layer.queries:
        queries = sum(x.nbytes for x in layer.queries.tensors)
        counts.components["queries"] += queries
        _share(queries, counts.totals, counts.by_modality)
        total, held = total + sum(map(_storage, layer.queries.tensors)), held + queries
    for modality, part in layer.segments.allocated.items():
        tokens = counts.stores.get(modality, {})  # of several modalities where the policy mixes them
        for store in part.stores:
            empty = store.reserved_nbytes()
            for name, nbytes in store.nbytes().items():
                total += nbytes
                nbytes -= empty.get(name, 0)
                if name == _LOSSLESS and not store.observes:  # a store with tiers knows what it dropped
                    x = store.buffers[name]  # [B, H, P, page_size, D]
                    nbytes = sum(tokens.values()) * x.shape[1] * x.shape[4] * x.element_size()
                counts.components[name] += nbytes
                for share in (counts.by_modality, counts.by_packed):
                    _share(nbytes, tokens if any(tokens.values()) else {modality: 1}, share)
                held += nbytes
    return total, held


def _share(nbytes: int, counts: dict[int, int], into: Counter[int]) -> None:
    """Share bytes among modalities by their tokens, without losing one to rounding."""
    total = sum(counts.values())
    if not total:
        return
    present = [m for m, n in counts.items() if n]
    left = nbytes
    for m in present[:-1]:
        part = nbytes * counts[m] // total
        into[m] += part
        left -= part
    into[present[-1]] += left
