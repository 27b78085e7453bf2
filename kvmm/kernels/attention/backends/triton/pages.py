"""Splits of one store by the Triton kernel (``triton``), which reads whatever is stored, packed or dense."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from triton import next_power_of_2

from kvmm.kernels.attention.backends.triton.call import Columns, Partial, Step, pair_stride, paired
from kvmm.kernels.attention.backends.triton.page_kernels import split_kernel
from kvmm.kernels.attention.backends.triton.query import expand, interpreted
from kvmm.kernels.attention.format import DenseFormat, PackedFormat, aligned

_SCORES, _INT8, _CHANNEL, _TOKEN, _DENSE, _NOTHING = range(6)
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


def _norm_strides(norm: torch.Tensor | None) -> tuple[int, int]:
    """Strides of sequences and heads in ``[B, H or 1, P, N]``."""
    return (0, 0) if norm is None else (norm.stride(0), 0 if norm.shape[1] == 1 else norm.stride(1))


def _side(store: PackedFormat | DenseFormat | None, key: bool) -> dict[str, Any]:
    """What ``split_kernel`` has to know of keys or values."""
    side: dict[str, Any] = dict.fromkeys(("C1", "C2", "scale", "zero", "group", "norm"))
    side |= {"mode": _SCORES, "B1": 0, "B2": 0, "J1": 0, "J2": 0, "P1": 16, "P2": 16, "bits": 0, "groups": 1}
    side |= {"grouped": 0, "inside": 1, "chunks": 1, "pages": 0, "columns": 0}
    if store is None:
        return side
    side["pages"] = store.pages
    if isinstance(store, DenseFormat):
        values = store.values if store.values.dim() == 4 else store.values.flatten(2, 3)
        width = values.shape[-1]
        return side | {
            "mode": _DENSE, "C1": paired(values), "B1": 16, "J1": width, "P1": max(16, next_power_of_2(width)),
            "columns": aligned(width),
        }  # fmt: skip
    planes = [(paired(p.codes), p.bits, p.codes.shape[-1 if key else -2]) for p in store.planes]
    side |= {"mode": _TOKEN if store.by_token else _CHANNEL if planes else _NOTHING, "columns": store.lanes}
    for number, (codes, bits, width) in enumerate(planes, 1):
        side |= {
            f"C{number}": codes, f"B{number}": bits, f"J{number}": width,
            f"P{number}": max(32, next_power_of_2(width)),
        }  # fmt: skip
    side["bits"] = max([bits for _, bits, _ in planes], default=0)
    side["groups"] = store.groups
    if store.page_group is not None:
        side |= {"grouped": 2, "group": store.page_group}
    elif store.groups_per_page:
        side |= {"grouped": 1 if store.groups_per_page == 1 else 3, "inside": store.groups_per_page}
    if store.by_token:
        side |= {"scale": paired(store.scale), "zero": paired(store.zero_point), "chunks": store.scale.shape[3]}
    if store.norm is not None:
        side["norm"] = store.norm
    return side


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
    k, v = _side(keys, True), _side(values, False)
    page = values.page_size
    coded = [side for side in (k, v) if side["mode"] not in (_DENSE, _NOTHING)]
    planes = [side[name] for side in coded for name in ("B1", "B2") if side[name]]
    unit = min([page * b // 8 for b in planes], default=min(page, _TILE))
    if keys is not None and not isinstance(keys, DenseFormat) and keys.groups_per_page > 1:
        unit = min(unit, page // keys.groups_per_page)
    if isinstance(values, PackedFormat) and values.groups_per_page > 1:
        unit = min(unit, page // values.groups_per_page)
    pages = tokens if tokens is not None else v["pages"]
    pages_a_tile = 1 if tokens is not None else max(1, 32 // unit)
    warps = 4
    # int8 folds one scale a tile: not where pages of one tile, or bytes, have several
    kint = step.int8 and k["mode"] == _CHANNEL and k["bits"] <= 4 and (pages_a_tile == 1 or not k["grouped"])
    if k["mode"] == _CHANNEL and kint:
        k["mode"] = _INT8
    vint = v["mode"] == _CHANNEL and v["bits"] <= 4 and v["grouped"] != 3
    vint = vint and (pages_a_tile == 1 or not v["grouped"])
    by_token = v["mode"] == _TOKEN and v["bits"] <= 4 and v["chunks"] == 1
    if step.int8 and (vint or by_token):
        v["mode"] = _INT8
    quick = {k["mode"], v["mode"]} <= {_INT8, _NOTHING}
    if quick:
        warps = 1  # of which many share a multiprocessor: no barriers
    if keys is None:
        k["mode"] = _SCORES
        q = {"Q": None, "QW": None, "QZ": None, "QS": None, "kgroups": 1}
    elif isinstance(keys, DenseFormat):
        same = keys.values.dtype == step.query.dtype
        weight = _constant(step.bh, step.rows, step.scaling, step.query.device)
        q = {"Q": step.query if same else step.query.float(), "QW": weight, "QZ": None, "QS": None, "kgroups": 1}
    else:
        q = expand(step, keys, k["mode"] == _INT8)
    if k["mode"] == _CHANNEL:
        k["scale"] = keys.expand()[0].contiguous()
    grouped_values = (
        isinstance(values, PackedFormat) and not values.by_token and (v["mode"] == _CHANNEL or v["grouped"])
    )
    if grouped_values:
        v["scale"], v["zero"] = (x.contiguous() for x in values.expand())
    token_int8 = v["mode"] == _INT8 and values.by_token
    norm = v["norm"]
    vdz = v["zero"].shape[-1] if grouped_values else 1 if token_int8 or norm is not None else 0
    if v["mode"] == _TOKEN:
        vdz = 0
    columns = v["columns"]
    tiles = -(-pages // (page if tokens is not None else pages_a_tile))
    subs = page // unit
    rolled = subs > 1 and not quick and (not step.int8 or (k["mode"] == _CHANNEL and subs > 4))
    if rolled:  # sub-tiles are tiles, of which a split has several
        tiles *= max(1, subs // _SUB_TILES)
    splits = _splits(step, tiles, warps)
    shape = (step.bh, splits, step.rows)
    m, l = step.empty(*shape), step.empty(*shape)
    acc = None if write else step.empty(*shape, columns)
    zero = step.empty(*shape, vdz) if vdz and not write else None
    knorm = k["norm"]
    split_kernel[step.bh, splits, step.blocks](
        q["Q"], q["QW"], q["QZ"], q["QS"], k["C1"], k["C2"], k["scale"], k["zero"],
        k["group"], knorm, bias, logits, adjust,
        v["C1"], v["C2"], v["scale"], v["zero"], v["group"], norm, used,
        m, l, acc, zero,
        step.heads, step.rows, step.length, q["kgroups"], v["groups"], pages, splits,
        0 if logits is None else logits.shape[-1],
        0 if bias is None or bias.shape[0] == 1 else bias.stride(0),
        0 if bias is None else bias.stride(2),
        pair_stride(k["C1"]), pair_stride(k["C2"]), pair_stride(k["scale"]), *_norm_strides(knorm),
        pair_stride(v["C1"]), pair_stride(v["C2"]), pair_stride(v["scale"]), pair_stride(v["zero"]),
        *_norm_strides(norm),
        N=page, UI=unit, F=pages_a_tile, RP=step.block,
        KMODE=k["mode"], KB1=k["B1"], KB2=k["B2"], KJ1=k["J1"], KJ2=k["J2"], KP1=k["P1"], KP2=k["P2"],
        INSIDE=k["inside"], KGROUPED=k["grouped"], CHUNKS=k["chunks"],
        HAS_QZ=q["QZ"] is not None, HAS_KNORM=knorm is not None,
        VMODE=v["mode"], VB1=v["B1"], VB2=v["B2"], VJ1=v["J1"], VJ2=v["J2"], VP1=v["P1"], VP2=v["P2"],
        VDZ=vdz, VDP=next_power_of_2(max(1, vdz)), VINSIDE=v["inside"], VGROUPED=v["grouped"], VTOKEN=token_int8,
        VCHUNKS=v["chunks"], HAS_VNORM=norm is not None,
        BIAS_KIND=0 if bias is None else 1 if bias.shape[2] == 1 else 2, HAS_USED=used is not None,
        HAS_ADJUST=adjust is not None, WRITE_LOGITS=write, IN_TOKENS=tokens is not None, ROLLED=rolled,
        ASM=not interpreted(), num_warps=warps, num_stages=2 if quick else 1,
    )  # fmt: skip
    return Partial(m, l, acc, zero, grouped_values)
