"""Splits of one store by the Triton kernel (``triton``), which reads whatever is stored, packed or dense."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from triton import next_power_of_2

from kvmm.kernels.attention.backends.triton.call import Columns, Partial, Step, pair_stride, paired
from kvmm.kernels.attention.backends.triton.page_kernels import attention_kernel, logit_kernel
from kvmm.kernels.attention.backends.triton.query import expand, interpreted
from kvmm.kernels.attention.backends.triton.store_kernels import (
    Layout,
    Mode,
    Query,
    Store,
)
from kvmm.kernels.attention.format import DenseFormat, PackedFormat, aligned

_WARPS = 12  # that a multiprocessor is given
_SUB_TILES = 4  # that a split takes at least, of pages whose sub-tiles are taken one after the other
_TILE = 64  # tokens of the dense columns a program takes at once


@lru_cache(maxsize=16)
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@lru_cache(maxsize=64)
def _constant(bh: int, rows: int, value: float, device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.full((bh, rows), value, device=device)


def _described(store: PackedFormat | DenseFormat | None, key: bool) -> dict[str, Any]:
    """The fields of :class:`Store` and :class:`Layout` that follow from keys or values alone, and the ``lanes`` of all
    planes together."""
    found: dict[str, Any] = dict.fromkeys(("plane1", "plane2", "scale", "zero", "group", "norm"))
    found |= {"mode": Mode.SCORES, "bits1": 0, "bits2": 0, "lanes1": 0, "lanes2": 0, "block1": 16, "block2": 16}
    found |= {"grouped": 0, "groups_per_page": 1, "channel_groups": 1, "lanes": 0}
    if store is None:
        return found
    if isinstance(store, DenseFormat):
        values = store.values if store.values.dim() == 4 else store.values.flatten(2, 3)
        width = values.shape[-1]
        block = max(16, next_power_of_2(width))
        found |= {"mode": Mode.DENSE, "plane1": paired(values), "bits1": 16, "lanes1": width, "block1": block}
        return found | {"lanes": aligned(width)}
    for number, plane in enumerate(store.planes, 1):
        width = plane.codes.shape[-1 if key else -2]
        found |= {f"plane{number}": paired(plane.codes), f"bits{number}": plane.bits, f"lanes{number}": width}
        found[f"block{number}"] = max(32, next_power_of_2(width))
    mode = Mode.TOKEN if store.by_token else Mode.CHANNEL if store.planes else Mode.NOTHING
    found |= {"mode": mode, "lanes": store.lanes}
    if store.page_group is not None:
        found |= {"grouped": 2, "group": store.page_group}
    elif store.groups_per_page:
        found |= {"grouped": 1 if store.groups_per_page == 1 else 3, "groups_per_page": store.groups_per_page}
    if store.by_token:
        found |= {"scale": paired(store.scale), "zero": paired(store.zero_point)}
        found["channel_groups"] = store.scale.shape[3]
    return found | {"norm": store.norm}


def _store(found: dict[str, Any]) -> Store:
    """The tensors that the kernels read."""
    norm = found["norm"]  # [B, H or 1, P, N]
    of_norm = (0, 0) if norm is None else (norm.stride(0), 0 if norm.shape[1] == 1 else norm.stride(1))
    tensors = [found[name] for name in ("plane1", "plane2", "scale", "zero")]
    return Store(*tensors, found["group"], norm, *map(pair_stride, tensors), *of_norm)


def _layout(found: dict[str, Any], **more: Any) -> Layout:
    """What the kernels are compiled for; the interpreter takes numbers as they are."""
    constant = (lambda x: x) if interpreted() else tl.constexpr
    known = {name: found[name] for name in Layout._fields if name in found} | more
    known["mode"] = int(known["mode"])
    known |= {f"columns{plane}": aligned(known[f"lanes{plane}"]) for plane in (1, 2)}
    return Layout(**{name: constant(value) for name, value in (Layout._field_defaults | known).items()})


def _splits(step: Step, tiles: int, warps: int) -> int:
    wanted = _multiprocessors(step.query.device) * _WARPS // warps
    return max(1, min(tiles, -(-wanted // (step.bh * step.blocks))))


def dense_split(step: Step, columns: Columns) -> Partial:
    """All splits of the dense columns, by a kernel of their own."""
    key, value = DenseFormat(columns.key, _TILE), DenseFormat(columns.value, _TILE)
    return triton_split(step, key, value, columns.used, columns.bias, tokens=columns.key.shape[2])


def triton_split(
    step: Step,
    keys: PackedFormat | DenseFormat | None,
    values: PackedFormat | DenseFormat,
    used: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    logits: torch.Tensor | None = None,
    adjust: torch.Tensor | None = None,
    write: bool = False,
    tokens: int | None = None,
) -> Partial:
    """All splits of one store, of which the device has ``used`` (int32 ``[1]``, or None) pages or tokens.

    Args:
        keys: None where ``logits`` ``[BH, rows, slots]`` are given.
        bias: float32 ``[B or 1, 1, 1 or q, slots]`` or None.
        logits: float32, in units of log 2: read in place of keys, or with ``write`` where they go.
        adjust: ``[BH, rows, 2]``, slope and shift that ``logits`` are taken through, or None.
        write: only write logits; ``m`` and ``l`` are then each split's largest and smallest.
        tokens: tokens of a dense store, which need not fill its last tile; None for pages.
    """
    k, v = _described(keys, True), _described(values, False)
    page = values.page_size
    unit, pages_a_tile = _tile(keys, values, k, v, tokens is not None)
    _choose_integers(step, keys, k, v, pages_a_tile)
    quick = {k["mode"], v["mode"]} <= {Mode.INT8, Mode.NOTHING}
    warps = 1 if quick else 4  # of one warp many share a multiprocessor: no barriers
    query, groups = _query(step, keys, k["mode"] == Mode.INT8)
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
    rolled = subs > 1 and not quick and (not step.int8 or (k["mode"] == Mode.CHANNEL and subs > 4))
    if rolled:  # sub-tiles are tiles, of which a split has several
        tiles *= max(1, subs // _SUB_TILES)
    splits = _splits(step, tiles, warps)
    shape = (step.bh, splits, step.rows)
    m, l = step.empty(*shape), step.empty(*shape)
    slots = 0 if logits is None else logits.shape[-1]
    of_bias = (0, 0) if bias is None else (0 if bias.shape[0] == 1 else bias.stride(0), bias.stride(2))
    shared = {
        "N": page, "UI": unit, "F": pages_a_tile, "RP": step.block,
        "BIAS_KIND": 0 if bias is None else 1 if bias.shape[2] == 1 else 2, "ROLLED": rolled,
        "ASM": not interpreted(), "num_warps": warps, "num_stages": 2 if quick else 1,
    }  # fmt: skip
    grid = (step.bh, splits, step.blocks)
    if write:
        logit_kernel[grid](
            query, _store(k), _layout(k), bias, logits, used, m, l,
            step.heads, step.rows, step.length, groups, pages, splits, slots, *of_bias, **shared,
        )  # fmt: skip
        return Partial(m, l, None)
    of_values = _layout(v, zeros=zeros, zero_block=next_power_of_2(max(1, zeros)), by_token=token_int8)
    acc = step.empty(*shape, v["lanes"])
    zero = step.empty(*shape, zeros) if zeros else None
    attention_kernel[grid](
        query, _store(k), _layout(k), _store(v), of_values, bias, logits, adjust, used, m, l, acc, zero,
        step.heads, step.rows, step.length, groups, 1 if isinstance(values, DenseFormat) else values.groups, pages,
        splits, slots, *of_bias, IN_TOKENS=tokens is not None, **shared,
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
    step: Step, keys: PackedFormat | DenseFormat | None, k: dict[str, Any], v: dict[str, Any], pages_a_tile: int
) -> None:
    """Take products of integers where they can be had: one scale a tile folds into the query or the probabilities, not
    those of pages of one tile, or bytes, with several."""

    def folds(side: dict[str, Any]) -> bool:
        whole = pages_a_tile == 1 or not side["grouped"]
        return side["mode"] == Mode.CHANNEL and max(side["bits1"], side["bits2"]) <= 4 and whole

    if not step.int8:
        return
    if folds(k):
        k["mode"] = Mode.INT8
    by_token = v["mode"] == Mode.TOKEN and v["bits1"] <= 4 and v["channel_groups"] == 1
    if by_token or (folds(v) and v["grouped"] != 3):
        v["mode"] = Mode.INT8


def _query(step: Step, keys: PackedFormat | DenseFormat | None, int8: bool) -> tuple[Query, int]:
    """The queries as the keys want them, and how many groups they are for."""
    if keys is None:
        return Query(None, None, None, None), 1
    if isinstance(keys, DenseFormat):
        same = keys.values.dtype == step.query.dtype
        weight = _constant(step.bh, step.rows, step.scaling, step.query.device)
        return Query(step.query if same else step.query.float(), weight, None, None), 1
    q = expand(step, keys, int8)
    return Query(q["Q"], q["QW"], q["QZ"], q["QS"]), q["kgroups"]
