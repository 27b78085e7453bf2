"""What a saved cache must be before anything reads it: every length, index and dtype, against what it follows from.

Attention reads packed pages where they lie, by shapes and by indices that are stored beside them. What a file says is
therefore compared with the model (heads, channels), with the token table (sequences, tokens, pages) and with what each
codec declares of its tensors (:meth:`kvmm.codecs.Codec.fields`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from kvmm.cache.pages import PageStore
from kvmm.cache.tiers import TieredStore
from kvmm.cache.token_table import TokenTable
from kvmm.calibration.heads import HeadShape, head_shapes, local_heads
from kvmm.codecs import StoreShape
from kvmm.codecs.tiers import span_tier
from kvmm.errors import KVMMError
from kvmm.fields import Field, check_fields, whole_number
from kvmm.modality import MODALITY_NAMES, PADDING

PAGE_SIZES = (32, 64, 128)
MODEL_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_DTYPES = tuple(MODEL_DTYPES.values())
Tensors = Mapping[str, torch.Tensor]


def layer_shapes(model: nn.Module) -> dict[int, HeadShape]:
    """:func:`kvmm.calibration.heads.head_shapes`, of the heads that this process holds."""
    shapes, split = head_shapes(model), local_heads(model)
    return shapes if split is None else {i: replace(one, heads=split[1] - split[0]) for i, one in shapes.items()}


# -- the table ---------------------------------------------------------------------------------------------------------


def check_table(
    values: Mapping[str, Any], tensors: Tensors, policy_sinks: int, entry_tokens: int | None = None
) -> None:
    """Check the token table of a file: ``values`` are its JSON, ``tensors`` what its names are without ``table.``.

    ``entry_tokens`` are the tokens of a page where a budget says so.

    Raises:
        KVMMError: with the field.
    """
    length = whole_number(values, "length", 0, 2**31 - 1)
    packed, page_sizes = values.get("packed"), values.get("page_sizes")
    if not isinstance(packed, bool) or not isinstance(page_sizes, dict):
        raise KVMMError("packed or page_sizes: is of the wrong kind")
    if not length or not packed:
        if page_sizes or (not length and (packed or tensors)):
            raise KVMMError("page_sizes: a cache that is not packed has pages")
        if not length:
            whole_number(values, "num_sinks", 0, 0)
            return
    position = {"low": -1, "high": length}
    fields = {
        "modality": Field(torch.int8, ("sequences", length), PADDING, len(MODALITY_NAMES)),
        "dense": Field(torch.int32, ("sequences", "columns"), **position),
    }
    known = {str(code) for code in range(len(MODALITY_NAMES))}
    sizes_allowed = PAGE_SIZES if entry_tokens is None else (entry_tokens,)
    for modality, size in page_sizes.items():
        if modality not in known or isinstance(size, bool) or size not in sizes_allowed:
            raise KVMMError(f"page_sizes: {modality!r} and {size!r} are no modality and its tokens per page")
        fields[modality] = Field(torch.int32, ("sequences", f"slots {modality}"), **position)
    sizes = check_fields(tensors, fields)
    for modality, size in page_sizes.items():
        slots = sizes[f"slots {modality}"]
        if not slots or slots % size:
            raise KVMMError(f"{modality}: has {slots} slots, no whole pages of {size}")
    if not sizes["sequences"]:
        raise KVMMError("modality: holds no sequence")
    whole_number(values, "num_sinks", 0, min(sizes["columns"], policy_sinks) if packed else 0)
    if not packed and sizes["columns"] != length:
        raise KVMMError("dense: a cache that is not packed has a column for every token")
    _check_positions(tensors, page_sizes, length)


def _check_positions(tensors: Tensors, page_sizes: Mapping[str, int], length: int) -> None:
    """Every token lies in at most one slot, and no padding does."""
    slots = torch.cat([tensors["dense"], *(tensors[modality] for modality in page_sizes)], 1).long()
    row = torch.arange(len(slots), device=slots.device).unsqueeze(1) * (length + 1)
    places = torch.where(slots < 0, length, slots) + row
    counts = torch.bincount(places.flatten(), minlength=row.numel() * (length + 1)).view(-1, length + 1)[:, :length]
    if bool((counts > 1).any()):
        raise KVMMError("dense: a token is in two places")
    if bool(((counts > 0) & (tensors["modality"] == PADDING)).any()):
        raise KVMMError("modality: says padding of a token that is there")


# -- layers ------------------------------------------------------------------------------------------------------------


def check_layer(
    values: Any, tensors: Tensors, table: TokenTable, shape: HeadShape, exact_dtype: Any, retains: bool
) -> tuple[torch.dtype, tuple[StoreShape, StoreShape]]:
    """Check what a file has of a packed layer besides its pages.

    Args:
        values, tensors: of the layer.
        table: the table of the file, which has been checked.
        shape: heads and channels of the layer.
        exact_dtype: from the dtype of the layer's keys to that of its exact tokens once it is packed.
        retains: whether the cache has a budget.

    Returns:
        the dtype of keys, and the shape of a store of keys and one of values without pages.

    Raises:
        KVMMError: with the field.
    """
    batch, columns = table.dense.shape
    whole_number(values, "seen", table.length, table.length)
    if values.get("packed") is not table.packed:
        raise KVMMError("packed: is another than that of the table")
    name = values.get("dtype")
    dense = tensors.get("dense_key")
    if name is None and dense is not None:  # written before exact tokens had a dtype of their own
        name = str(dense.dtype).removeprefix("torch.")
    if name not in MODEL_DTYPES:
        raise KVMMError(f"dtype: must be {', '.join(MODEL_DTYPES)}")
    dtype = MODEL_DTYPES[name]
    exact = exact_dtype(dtype) if table.packed else dtype
    heads: int | str = "heads" if shape.heads is None else shape.heads
    dim: int | str = "key dim" if shape.key_dim is None else shape.key_dim
    value_dim: int | str = "value dim" if shape.value_dim is None else shape.value_dim
    fields = {
        "dense_key": Field(exact, (batch, heads, columns, dim)),
        "dense_value": Field(exact, (batch, heads, columns, value_dim)),
        "query_sum": Field(torch.float32, (batch, heads, dim, dim), required=False),
        "query_count": Field(torch.float32, (batch, 1, 1, 1), required="query_sum" in tensors),
        "last_queries": Field(_DTYPES, (1, "query heads", "queries", dim), required=False),
    }
    pages = tuple(f"{modality}.{side}." for modality in table.page_sizes for side in ("key", "value"))
    own = {name: t for name, t in tensors.items() if not name.startswith(pages)}
    sizes = check_fields(own, fields)
    heads, dim, value_dim = (sizes.get(x, x) for x in (heads, dim, value_dim))
    if not heads or not dim or not value_dim:
        raise KVMMError("dense_key: has no heads or channels")
    if "last_queries" in own and (
        not retains or table.packed or sizes["query heads"] % heads or not 0 < sizes["queries"] <= table.length
    ):
        raise KVMMError("last_queries: do not belong to these keys")
    if retains and batch != 1:
        raise KVMMError("dense_key: a cache with a budget holds one sequence")
    sides = (StoreShape(batch, heads, 0, 0, one, exact, table.dense.device) for one in (dim, value_dim))
    return dtype, tuple(sides)


def check_parts(values: Any, table: TokenTable) -> None:
    """Check which modalities a layer has pages of: those of the table."""
    parts = values.get("parts")
    if not isinstance(parts, dict) or set(parts) != {str(modality) for modality in table.page_sizes}:
        raise KVMMError("parts: are not those of the table")
    for sides in parts.values():
        if not isinstance(sides, dict) or set(sides) != {"key", "value"} or not all(map(_is_mapping, sides.values())):
            raise KVMMError("parts: must have keys and values")


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def check_window(values: Any, tensors: Tensors, table: TokenTable, shape: HeadShape, window: int) -> None:
    """Check a layer of a sliding window, which keeps the newest tokens as the model made them."""
    whole_number(values, "seen", table.length, table.length)
    heads: int | str = "heads" if shape.heads is None else shape.heads
    key_dim: int | str = "key dim" if shape.key_dim is None else shape.key_dim
    value_dim: int | str = "value dim" if shape.value_dim is None else shape.value_dim
    batch = table.dense.shape[0]
    fields = {
        "keys": Field(_DTYPES, (batch, heads, "tokens", key_dim)),
        "values": Field(_DTYPES, (batch, heads, "tokens", value_dim)),
    }
    sizes = check_fields(tensors, fields)
    if tensors["keys"].dtype != tensors["values"].dtype:
        raise KVMMError("values: have another dtype than the keys")
    if not min(table.length, window - 1) <= sizes["tokens"] <= table.length:
        raise KVMMError(f"keys: holds {sizes['tokens']} of {table.length} tokens, with a window of {window}")


# -- pages -------------------------------------------------------------------------------------------------------------


def check_store(store: PageStore, shape: StoreShape, tensors: Tensors, values: Mapping[str, Any]) -> None:
    """Check the tensors and values of a store, against what its codec declares.

    Raises:
        KVMMError: with the name of the tensor or value.
    """
    if isinstance(store, TieredStore):
        fields = _tiered_fields(store, shape, tensors, values)
    else:
        fields = store.codec.fields(shape, tensors)
    sizes = check_fields(tensors, fields)
    groups = sizes["groups"] if "page_group" in fields else 0
    whole_number(values, "num_groups", groups, groups)


def _tiered_fields(
    store: TieredStore, shape: StoreShape, tensors: Tensors, values: Mapping[str, Any]
) -> dict[str, Field]:
    """What a store of entries holds; entries themselves are checked here."""
    pages, heads = shape.pages, shape.heads
    for name, count in (("num_pages", pages), ("num_heads", heads), ("dim", shape.dim)):
        whole_number(values, name, count, count)
    for name in ("changed", "flips"):
        rows = values.get(name)
        if not isinstance(rows, list) or [len(r) if isinstance(r, list) else -1 for r in rows] != [heads] * pages:
            raise KVMMError(f"{name}: must have a number per page and head")
        for row in rows:
            for head in range(heads):
                whole_number(dict(enumerate(row)), head, -1, where=f"{name}: ")  # type: ignore[arg-type]
    spanning = span_tier(store.tiers)
    declared = spanning.fields(shape, {})
    shared = {"page_group", *spanning.shared_tensors} if "page_group" in declared else set()
    fields = {name if name == "page_group" else f"span.{name}": declared[name] for name in shared & set(declared)}
    tiers = [(f"{tier}.", codec) for tier, codec in enumerate(store.tiers)]
    if store.keeps_backing and "backing.entries" in tensors:
        tiers.append(("backing.", store.tiers[0]))
    entries = {}
    for prefix, codec in tiers:
        entries[prefix] = _entries(tensors, f"{prefix}entries", pages * heads)
        fields[f"{prefix}entries"] = Field(torch.int32, (1, 1, len(entries[prefix])))
        own = codec.fields(replace(shape, heads=len(entries[prefix]), pages=1), {})
        of_span = shared if "page_group" in own else set()
        fields |= {f"{prefix}{name}": field for name, field in own.items() if name not in of_span}
    backed = entries.pop("backing.", None)
    if backed is not None and bool(torch.isin(backed, entries["0."]).any()):
        raise KVMMError("backing.entries: are in the first tier too")
    every = torch.cat(list(entries.values()))
    if len(every.unique()) != len(every):
        raise KVMMError("0.entries: a page is in two tiers")
    whole_number({"since": 0} | dict(values), "since", 0, store.settings.window - 1)
    return fields | _state_fields(store, shape, tensors)


def _entries(tensors: Tensors, name: str, count: int) -> torch.Tensor:
    check_fields(tensors, {name: Field(torch.int32, (1, 1, name), 0, count)}, closed=False)
    entries = tensors[name][0, 0].cpu()
    if bool((entries.diff() <= 0).any()):
        raise KVMMError(f"{name}: must rise")
    return entries


def _state_fields(store: TieredStore, shape: StoreShape, tensors: Tensors) -> dict[str, Field]:
    """What the controller of a budget knows of entries; margins that nobody has seen are infinite, energies NaN."""
    entry = (shape.pages, shape.heads)
    fields = {}
    if store.codec.side == "key" or store.num_tiers > 1:
        fields["error"] = Field(torch.float32, (store.num_tiers, *entry))
    if store.settings.entries == "token" and "state.order" in tensors:
        fields["order"] = _order_field(shape.pages * shape.page_size, shape.heads, tensors["state.order"])
    if store.codec.side == "key":
        fields["importance"] = Field(torch.float32, entry)
        fields["energy"] = Field(torch.float32, (shape.heads,), finite=False)
        fields["largest_error"] = Field(torch.float32, (store.num_tiers, *entry))
        if store.gated:
            fields["margin"] = Field(torch.float32, entry, finite=False)
        if store.settings.window > 1:
            fields["peak"] = Field(torch.float32, entry)
        if store.settings.selection == "vlcache":
            fields["sparsity"] = Field(torch.float32, (1,), required=False)
    return {f"state.{name}": field for name, field in fields.items()}


def _order_field(slots: int, heads: int, order: torch.Tensor) -> Field:
    """The order of the places of a store: every head has every slot once."""
    if order.dtype not in (torch.int16, torch.int32) or tuple(order.shape) != (heads, slots):
        raise KVMMError("state.order: must have a slot per place of a head")
    expected = torch.arange(slots, dtype=order.dtype, device=order.device)
    if not bool((order.sort(-1).values == expected).all()):
        raise KVMMError("state.order: must name every slot once")
    return Field(order.dtype, (heads, slots))


# -- the controller of a budget ----------------------------------------------------------------------------------------


def check_retention(values: Any) -> None:
    """Check what the controller of a budget has to remember."""
    for name in ("steps", "runs"):
        whole_number(values, name)
    counts, pins, last = values.get("counts"), values.get("pins"), values.get("last")
    for name in ("lowered", "dropped", "raised"):
        whole_number(counts, name, where="counts.")
    if len(counts) != 3 or not isinstance(last, list) or not all(isinstance(step, dict) for step in last):
        raise KVMMError("counts or last: is of the wrong kind")
    if not isinstance(pins, list) or not all(isinstance(span, list) and len(span) == 2 for span in pins):
        raise KVMMError("pins: must be pairs of positions")
    for span in pins:
        for end in (0, 1):
            whole_number({"pins": span[end]}, "pins")


__all__ = [
    "MODEL_DTYPES",
    "check_layer",
    "check_parts",
    "check_retention",
    "check_store",
    "check_table",
    "check_window",
    "layer_shapes",
]
