"""Splits of one segment by the Triton kernels, which read any format, packed or dense."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from triton import next_power_of_2

from kvmm.kernels.attention.backends.triton.call import DecodeCall, Partial, ResidualTokens, pair_stride, paired
from kvmm.kernels.attention.backends.triton.page_kernels import attention_kernel, logit_kernel
from kvmm.kernels.attention.backends.triton.query import expand_query, interpreted
from kvmm.kernels.attention.backends.triton.store_kernels import (
    Mode,
    Query,
    Store,
    StoreLayout,
)
from kvmm.kernels.attention.format import DenseFormat, PackedFormat, aligned

_WARPS = 12  # per multiprocessor
_SUB_TILES = 4  # at least, per split, of pages whose sub-tiles are read one after the other
_TILE = 64  # residual tokens per tile


@lru_cache(maxsize=16)
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@lru_cache(maxsize=64)
def _constant(bh: int, rows: int, value: float, device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.full((bh, rows), value, device=device)


def _describe(store: PackedFormat | DenseFormat | None, key: bool) -> dict[str, Any]:
    """The fields of :class:`Store` and :class:`StoreLayout` that follow from keys or values alone, and ``lanes``, the
    padded lanes of all planes."""
    fields: dict[str, Any] = dict.fromkeys(("plane1", "plane2", "scale", "zero", "group", "norm"))
    fields |= {"mode": Mode.SCORES, "bits1": 0, "bits2": 0, "lanes1": 0, "lanes2": 0, "block1": 16, "block2": 16}
    fields |= {"grouped": 0, "groups_per_page": 1, "channel_groups": 1, "lanes": 0}
    if store is None:
        return fields
    if isinstance(store, DenseFormat):
        values = store.values if store.values.dim() == 4 else store.values.flatten(2, 3)
        width = values.shape[-1]
        block = max(16, next_power_of_2(width))
        fields |= {"mode": Mode.DENSE, "plane1": paired(values), "bits1": 16, "lanes1": width, "block1": block}
        return fields | {"lanes": aligned(width)}
    for number, plane in enumerate(store.planes, 1):
        width = plane.codes.shape[-1 if key else -2]
        fields |= {f"plane{number}": paired(plane.codes), f"bits{number}": plane.bits, f"lanes{number}": width}
        fields[f"block{number}"] = max(32, next_power_of_2(width))
    mode = Mode.TOKEN if store.by_token else Mode.CHANNEL if store.planes else Mode.NOTHING
    fields |= {"mode": mode, "lanes": store.lanes}
    if store.page_group is not None:
        fields |= {"grouped": 2, "group": store.page_group}
    elif store.groups_per_page:
        fields |= {"grouped": 1 if store.groups_per_page == 1 else 3, "groups_per_page": store.groups_per_page}
    if store.by_token:
        fields |= {"scale": paired(store.scale), "zero": paired(store.zero_point)}
        fields["channel_groups"] = store.scale.shape[3]
    return fields | {"norm": store.norm}


def _store(fields: dict[str, Any]) -> Store:
    """The tensors that the kernels read."""
    norm = fields["norm"]  # [B, H or 1, P, N]
    norm_strides = (0, 0) if norm is None else (norm.stride(0), 0 if norm.shape[1] == 1 else norm.stride(1))
    tensors = [fields[name] for name in ("plane1", "plane2", "scale", "zero")]
    return Store(*tensors, fields["group"], norm, *map(pair_stride, tensors), *norm_strides)


def _store_layout(described: dict[str, Any], **more: Any) -> StoreLayout:
    """What the kernels are compiled for; the interpreter takes numbers as they are."""
    constant = (lambda x: x) if interpreted() else tl.constexpr
    fields = {name: described[name] for name in StoreLayout._fields if name in described} | more
    fields["mode"] = int(fields["mode"])
    fields |= {f"padded_lanes{plane}": aligned(fields[f"lanes{plane}"]) for plane in (1, 2)}
    return StoreLayout(**{name: constant(value) for name, value in (StoreLayout._field_defaults | fields).items()})


def _num_kv_splits(call: DecodeCall, tiles: int, warps: int) -> int:
    wanted = _multiprocessors(call.query.device) * _WARPS // warps
    return max(1, min(tiles, -(-wanted // (call.bh * call.num_row_blocks))))


def residual_split(call: DecodeCall, residual_tokens: ResidualTokens) -> Partial:
    """All splits of the residual tokens, by a kernel of their own."""
    key, value = DenseFormat(residual_tokens.key, _TILE), DenseFormat(residual_tokens.value, _TILE)
    tokens = residual_tokens.key.shape[2]
    return triton_split(call, key, value, residual_tokens.length, residual_tokens.bias, tokens=tokens)


def triton_split(
    call: DecodeCall,
    keys: PackedFormat | DenseFormat | None,
    values: PackedFormat | DenseFormat,
    used: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    logits: torch.Tensor | None = None,
    hidden: torch.Tensor | None = None,
    calibration: torch.Tensor | None = None,
    write_logits: bool = False,
    tokens: int | None = None,
) -> Partial:
    """All splits of one segment, of which ``used`` (int32 ``[1]`` on the device, or None) pages or tokens are in use.

    Args:
        keys: None where ``logits`` ``[BH, rows, slots]`` are given.
        bias: float32 ``[B or 1, 1, 1 or q, slots]`` or None.
        logits: float32, in units of log 2: read in place of keys, or written with ``write_logits``.
        hidden: uint8 ``[BH, slots]``, 1 for tokens to leave out, or None.
        calibration: ``[BH, rows, 2]``, slope and shift applied to each row's logits, or None.
        write_logits: only write logits; ``m`` and ``l`` are then the largest and smallest logit of each split.
        tokens: tokens of a dense store, which need not fill its last tile; None for pages.
    """
    k, v = _describe(keys, True), _describe(values, False)
    page = values.page_size
    unit, pages_a_tile = _tile(keys, values, k, v, tokens is not None)
    _choose_integers(call, keys, k, v, pages_a_tile)
    quick = {k["mode"], v["mode"]} <= {Mode.INT8, Mode.NOTHING}
    warps = 1 if quick else 4  # of one warp many share a multiprocessor: no barriers
    query, groups = _query(call, keys, k["mode"] == Mode.INT8)
    if keys is None:
        k["mode"] = Mode.SCORES
    elif k["mode"] == Mode.CHANNEL:
        k["scale"] = keys.expand()[0].contiguous()
    by_channel = isinstance(values, PackedFormat) and not values.by_token
    grouped_values = by_channel and (v["mode"] == Mode.CHANNEL or v["grouped"])
    if grouped_values:
        v["scale"], v["zero"] = (x.contiguous() for x in values.expand())
    token_int8 = v["mode"] == Mode.INT8 and values.by_token
    zeros = v["zero"].shape[-1] if grouped_values else 1 if token_int8 or v["norm"] is not None else 0
    if v["mode"] == Mode.TOKEN:
        zeros = 0
    pages = tokens if tokens is not None else values.pages
    tiles = -(-pages // (page if tokens is not None else pages_a_tile))
    subs = page // unit
    rolled = subs > 1 and not quick and (not call.int8 or (k["mode"] == Mode.CHANNEL and subs > 4))
    if rolled:  # sub-tiles are tiles, of which a split has several
        tiles *= max(1, subs // _SUB_TILES)
    num_kv_splits = _num_kv_splits(call, tiles, warps)
    shape = (call.bh, num_kv_splits, call.rows)
    m, l = call.empty(*shape), call.empty(*shape)
    slots = next((x.shape[-1] for x in (logits, hidden) if x is not None), 0)
    bias_strides = (0, 0) if bias is None else (0 if bias.shape[0] == 1 else bias.stride(0), bias.stride(2))
    shared = {
        "N": page, "UI": unit, "F": pages_a_tile, "RP": call.row_block,
        "BIAS_KIND": 0 if bias is None else 1 if bias.shape[2] == 1 else 2, "ROLLED": rolled,
        "ASM": not interpreted(), "num_warps": warps, "num_stages": 2 if quick else 1,
    }  # fmt: skip
    grid = (call.bh, num_kv_splits, call.num_row_blocks)
    if write_logits:
        logit_kernel[grid](
            query, _store(k), _store_layout(k), bias, logits, used, m, l,
            call.num_kv_heads, call.rows, call.query_length, groups, pages, num_kv_splits, slots, *bias_strides,
            **shared,
        )  # fmt: skip
        return Partial(m, l, None)
    value_layout = _store_layout(v, zeros=zeros, zero_block=next_power_of_2(max(1, zeros)), by_token=token_int8)
    acc = call.empty(*shape, v["lanes"])
    zero = call.empty(*shape, zeros) if zeros else None
    attention_kernel[grid](
        query, _store(k), _store_layout(k), _store(v), value_layout, bias, hidden, logits, calibration, used, m, l, acc,
        zero,
        call.num_kv_heads, call.rows, call.query_length, groups,
        1 if isinstance(values, DenseFormat) else values.groups, pages, num_kv_splits, slots,
        *bias_strides, IN_TOKENS=tokens is not None, **shared,
    )  # fmt: skip
    return Partial(m, l, acc, zero, grouped_values)


def _tile(
    keys: PackedFormat | DenseFormat | None,
    values: PackedFormat | DenseFormat,
    k: dict[str, Any],
    v: dict[str, Any],
    in_tokens: bool,
) -> tuple[int, int]:
    """Tokens of a sub-tile, as many as every plane has in one bit position and every group has, and pages a tile."""
    page = values.page_size
    coded = [side for side in (k, v) if side["mode"] not in (Mode.DENSE, Mode.NOTHING)]
    planes = [side[name] for side in coded for name in ("bits1", "bits2") if side[name]]
    unit = min([page * bits // 8 for bits in planes], default=min(page, _TILE))
    for store in (keys, values):
        if isinstance(store, PackedFormat) and store.groups_per_page > 1:
            unit = min(unit, page // store.groups_per_page)
    return unit, 1 if in_tokens else max(1, 32 // unit)


def _choose_integers(
    call: DecodeCall, keys: PackedFormat | DenseFormat | None, k: dict[str, Any], v: dict[str, Any], pages_a_tile: int
) -> None:
    """Take products of integers where they can be had: one scale a tile folds into the query or the probabilities, not
    those of pages of one tile, or bytes, with several."""

    def folds(side: dict[str, Any]) -> bool:
        whole = pages_a_tile == 1 or not side["grouped"]
        return side["mode"] == Mode.CHANNEL and max(side["bits1"], side["bits2"]) <= 4 and whole

    if not call.int8:
        return
    if folds(k):
        k["mode"] = Mode.INT8
    by_token = v["mode"] == Mode.TOKEN and v["bits1"] <= 4 and v["channel_groups"] == 1
    if by_token or (folds(v) and v["grouped"] != 3):
        v["mode"] = Mode.INT8


def _query(call: DecodeCall, keys: PackedFormat | DenseFormat | None, int8: bool) -> tuple[Query, int]:
    """The queries as the keys want them, and how many groups they are for."""
    if keys is None:
        return Query(None, None, None, None), 1
    if isinstance(keys, DenseFormat):
        same = keys.values.dtype == call.query.dtype
        weight = _constant(call.bh, call.rows, call.scaling, call.query.device)
        return Query(call.query if same else call.query.float(), weight, None, None), 1
    q = expand_query(call, keys, int8)
    return Query(q["Q"], q["QW"], q["QZ"], q["QS"]), q["kgroups"]
