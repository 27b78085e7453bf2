"""How many bytes a cache really holds: the sizes of the tensors that exist, by modality, component and layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kvmm.cache.layer import KVMMLayer
from kvmm.modality import MODALITY_NAMES

if TYPE_CHECKING:
    from kvmm.cache.cache import KVMMCache


@dataclass(frozen=True)
class MemoryReport:
    """Measured memory.

    Attributes:
        nbytes: bytes of every tensor of the cache.
        nbytes_dense: bytes of the keys and values of the same tokens (padding not counted) in bf16, or in the
            model's dtype if that has two bytes.
        ratio: ``nbytes_dense / nbytes``.
        bits_per_value: bits of ``nbytes`` over the number of elements of those keys and values.
        tokens: tokens held, padding not counted.
        by_modality: ``{name: {tokens, nbytes, nbytes_dense, bits_per_value, packed_nbytes, packed_tokens,
            packed_bits_per_value}}``; the ``packed_`` figures leave sinks, residual, page table and room out.
        by_component: bytes of ``codes``, ``scale``, ``zero_point``, ``norm``, ``values`` (lossless pages), ``sink``,
            ``residual``, ``page_table``, ``sliding`` (sliding-window layers, left as they are), with a budget
            ``retention`` (what its controller knows of pages) and ``backing`` (in host memory, outside the budget), ...
        by_layer: bytes and ``nbytes_dense`` of each layer.
        shared_nbytes: the part of ``nbytes`` that a fork of the cache holds in common with it.
        reserved_nbytes: the part of ``nbytes`` that holds nothing yet: with ``max_length``, room for what comes.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, for JSON."""
        return asdict(self)


def measure(cache: KVMMCache) -> MemoryReport:
    """Measure a cache; works before and after packing."""
    table = cache.table
    table.clear_bias()
    if table.modality is None:
        return MemoryReport()
    components: Counter[str] = Counter()
    modality_bytes: Counter[int] = Counter()
    packed_bytes: Counter[int] = Counter()
    by_layer = []

    dense_counts = table.counts(table.dense)
    packed_counts = {m: table.counts(positions)[m] for m, positions in table.stores.items()}
    totals = {m: dense_counts[m] + packed_counts.get(m, 0) for m in dense_counts}
    tokens = sum(totals.values())
    values_per_token = 0
    kvmm_values_per_token = 0

    for layer in cache.layers:
        if isinstance(layer, KVMMLayer) and layer.is_initialized:
            nbytes, width = _measure_layer(
                layer, table.num_sinks, dense_counts, components, modality_bytes, packed_bytes
            )
            kvmm_values_per_token += width
            by_layer.append({"nbytes": nbytes, "nbytes_dense": 2 * width * tokens})
            values_per_token += width
        elif getattr(layer, "is_initialized", False) and getattr(layer, "keys", None) is not None:
            nbytes = _storage(layer.keys) + _storage(layer.values)
            components["sliding"] += nbytes
            _share(nbytes, totals, modality_bytes)
            elements = layer.keys.numel() + layer.values.numel()
            by_layer.append({"nbytes": nbytes, "nbytes_dense": 2 * elements})
        else:
            by_layer.append({"nbytes": 0, "nbytes_dense": 0})

    table_bytes = table.nbytes()
    components["page_table"] += table_bytes
    _share(table_bytes, totals, modality_bytes)

    nbytes = sum(components.values())
    sliding_dense = sum(x["nbytes_dense"] for x in by_layer) - 2 * values_per_token * tokens
    nbytes_dense = 2 * values_per_token * tokens + sliding_dense
    dense_by_modality: Counter[int] = Counter({m: 2 * values_per_token * n for m, n in totals.items()})
    _share(sliding_dense, totals, dense_by_modality)
    by_modality = {}
    for m, count in totals.items():
        if not count:
            continue
        packed = packed_counts.get(m, 0)
        by_modality[MODALITY_NAMES[m]] = {
            "tokens": count,
            "nbytes": modality_bytes[m],
            "nbytes_dense": dense_by_modality[m],
            "bits_per_value": 16 * modality_bytes[m] / dense_by_modality[m],
            "packed_tokens": packed,
            "packed_nbytes": packed_bytes[m],
            "packed_bits_per_value": 8 * packed_bytes[m] / (packed * kvmm_values_per_token) if packed else 0.0,
        }
    return MemoryReport(
        nbytes=nbytes,
        nbytes_dense=nbytes_dense,
        ratio=nbytes_dense / max(nbytes, 1),
        bits_per_value=16 * nbytes / max(nbytes_dense, 1),
        tokens=tokens,
        by_modality=by_modality,
        by_component=dict(components),
        by_layer=by_layer,
        shared_nbytes=sum(
            store.shared_nbytes()
            for layer in cache.layers
            if isinstance(layer, KVMMLayer)
            for part in layer.parts.values()
            for store in part.stores
        ),
        reserved_nbytes=sum(layer.room_nbytes() for layer in cache.layers if isinstance(layer, KVMMLayer)),
    )


def _storage(tensor: Any) -> int:
    return tensor.untyped_storage().nbytes()


def _measure_layer(
    layer: KVMMLayer,
    num_sinks: int,
    dense_counts: dict[int, int],
    components: Counter[str],
    modality_bytes: Counter[int],
    packed_bytes: Counter[int],
) -> tuple[int, int]:
    """Add one layer's bytes to the counters; returns them, and the layer's K and V elements a token."""
    key, value = layer.dense_key, layer.dense_value
    dense = sum(_storage(x) for x in layer.dense_buffers())
    sinks = dense * num_sinks // key.shape[2] if key.shape[2] and layer.packed else 0
    components["sink"] += sinks
    components["residual"] += dense - sinks
    _share(dense, dense_counts, modality_bytes)
    total = dense
    for modality, part in layer.all_parts().items():
        for store in part.stores:
            for name, nbytes in store.nbytes().items():
                components[name] += nbytes
                modality_bytes[modality] += nbytes
                packed_bytes[modality] += nbytes
                total += nbytes
            packed_bytes[modality] -= store.room_nbytes()
    return total, key.shape[1] * key.shape[3] + value.shape[1] * value.shape[3]


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
