"""Decode attention on a GPU: chooses kernels for what is stored and joins their results.

The same function as :func:`kvmm.kernels.decode.reference.attend`. A step of one layer is, for every part, one kernel
that expands the queries, one that walks the pages and one that joins; the dense columns (sinks, residual) are read by
the kernel of the first part, or are a store of their own, and share the first join. All grids depend on capacities
only and lengths are read on the device, so a step can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from triton import next_power_of_2
from triton.runtime.interpreter import InterpretedFunction

from kvmm.kernels.decode import cuda, cuda_splits
from kvmm.kernels.decode.cuda_inputs import DenseColumns, DenseSplits, DigitKeys, DigitValues, Query
from kvmm.kernels.decode.cuda_variant import Variant
from kvmm.kernels.decode.digits import Dense, Digits, aligned
from kvmm.kernels.decode.triton import split_kernel
from kvmm.kernels.decode.triton_join import combine_kernel
from kvmm.kernels.decode.triton_query import expand_kernel, transform_kernel

LOG2E = math.log2(math.e)
INT8_ROWS = 16  # rows of queries up to which they are quantised; more pay for half precision
_SCORES, _INT8, _CHANNEL, _TOKEN, _DENSE, _NOTHING = range(6)
_WARPS = 12  # that a multiprocessor is given
_WIDTH = 32  # columns of a basis that a program computes
_FEW_ROWS = 128  # rows of all heads up to which each is joined by programs of its own
_TILE = 64  # tokens of the dense columns a program takes at once
_DENSE_INSIDE = True  # whether the CUDA split kernel reads the dense columns
_SPLITS_BY_CHANNEL = True  # whether the CUDA split kernel makes channels of the values' digits
_JOIN_BY_CHANNEL = True  # whether digits of many rows become channels before they leave the basis
_COMBINE_EARLY = True  # whether the join may start before the CUDA split kernel in front of it has ended


@dataclass
class Partial:
    """What the splits of one store found; see ``combine_kernel``."""

    m: torch.Tensor  # [BH, splits, rows]
    l: torch.Tensor
    acc: torch.Tensor  # [BH, splits, rows, Q]
    zero: torch.Tensor | None = None  # [BH, splits, rows, VDZ]
    scaled: bool = False  # whether scales and zero points are in these sums
    by_channel: bool = False  # whether the sums are by channel of the values' basis, the digits' places in them
    dense: Partial | None = None  # what the same kernel found in the dense columns
    early: bool = False  # whether the kernel that writes this lets the next one start


@dataclass
class Columns:
    """The columns in the model's dtype ``[B, H, n, D]``, their bias ``[B or 1, 1, 1 or q, n]``, how many are used."""

    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor | None
    used: torch.Tensor | None


@lru_cache(maxsize=16)
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@lru_cache(maxsize=16)
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def interpreted() -> bool:
    return isinstance(split_kernel, InterpretedFunction)


def _stride(x: torch.Tensor | None) -> int:
    """The stride of a (sequence, head) pair in a tensor ``[B, H, ...]``, which must be one."""
    return 0 if x is None else x.stride(1)


def _reach(x: torch.Tensor) -> int:
    """Elements from a tensor's first to its last."""
    return sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def _paired(x: torch.Tensor) -> torch.Tensor:
    """``x`` ``[B, H, n, ...]`` such that one stride walks sequences and heads, and what follows ``n`` is contiguous."""
    inner = 1
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if size != 1 and stride != inner:
            return x.contiguous()
        inner *= size
    if x.shape[0] > 1 and x.stride(0) != x.shape[1] * x.stride(1):
        return x.contiguous()
    return x


def _head_stride(x: torch.Tensor | None) -> int:
    """The stride of heads in a matrix ``[H or 1, ...]``."""
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)


def _norm_strides(norm: torch.Tensor | None) -> tuple[int, int]:
    """Strides of sequences and heads in ``[B, H or 1, P, N]``."""
    return (0, 0) if norm is None else (norm.stride(0), 0 if norm.shape[1] == 1 else norm.stride(1))


def _side(store: Digits | Dense | None, key: bool) -> dict[str, Any]:
    """What ``split_kernel`` has to know of keys or values."""
    side: dict[str, Any] = dict.fromkeys(("C1", "C2", "scale", "zero", "group", "norm"))
    side |= {"mode": _SCORES, "B1": 0, "B2": 0, "J1": 0, "J2": 0, "P1": 16, "P2": 16, "bits": 0, "groups": 1}
    side |= {"grouped": 0, "inside": 1, "chunks": 1, "pages": 0, "columns": 0}
    if store is None:
        return side
    side["pages"] = store.pages
    if isinstance(store, Dense):
        values = store.values if store.values.dim() == 4 else store.values.flatten(2, 3)
        width = values.shape[-1]
        return side | {
            "mode": _DENSE, "C1": _paired(values), "B1": 16, "J1": width, "P1": max(16, next_power_of_2(width)),
            "columns": aligned(width),
        }  # fmt: skip
    planes = [(_paired(p.codes), p.bits, p.codes.shape[-1 if key else -2]) for p in store.planes]
    side |= {"mode": _TOKEN if store.by_token else _CHANNEL if planes else _NOTHING, "columns": store.columns}
    for number, (codes, bits, width) in enumerate(planes, 1):
        side |= {
            f"C{number}": codes, f"B{number}": bits, f"J{number}": width,
            f"P{number}": max(32, next_power_of_2(width)),
        }  # fmt: skip
    side["bits"] = max([bits for _, bits, _ in planes], default=0)
    side["groups"] = store.groups
    if store.page_group is not None:
        side |= {"grouped": 2, "group": store.page_group}
    elif store.inside:
        side |= {"grouped": 1 if store.inside == 1 else 3, "inside": store.inside}
    if store.by_token:
        side |= {"scale": _paired(store.scale), "zero": _paired(store.zero_point), "chunks": store.scale.shape[3]}
    if store.norm is not None:
        side["norm"] = store.norm
    return side


def _slopes(delta: torch.Tensor, gamma: torch.Tensor, tau1: float, tau2: float) -> torch.Tensor:
    """The line that takes logits of ``[gamma, delta]`` to ``[gamma - tau1, delta - tau2]``: ``[BH, rows, 2]``.

    CalibQuant's calibration (section 3.3) in units of log 2; rows where it would not rise are left alone.
    """
    span, tau1, tau2 = delta - gamma, tau1 * LOG2E, tau2 * LOG2E
    slope = 1 + (tau1 - tau2) / span
    rises = (slope > 0) & (span > 0) & span.isfinite()
    shift = gamma * (1 - slope) - tau1
    return torch.stack((torch.where(rises, slope, 1.0), torch.where(rises, shift, 0.0)), -1)


@lru_cache(maxsize=64)
def _constant(bh: int, rows: int, value: float, device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.full((bh, rows), value, device=device)


def supports(parts: Sequence) -> bool:
    """Whether the kernels can read all parts (their values; keys may bring logits of their own)."""
    return all(not part.key.observes and part.value.codec.digits(part.value.packed) is not None for part in parts)


def attend(
    query: torch.Tensor,
    parts: Sequence,
    dense_key: torch.Tensor,
    dense_value: torch.Tensor,
    bias: torch.Tensor | None,
    scaling: float,
    dense_length: torch.Tensor | None = None,
) -> torch.Tensor:
    """:func:`kvmm.kernels.decode.attend` by kernels; the arguments are its."""
    batch, query_heads, length, dim = query.shape
    heads = dense_key.shape[1]
    rows = query_heads // heads * length
    grouped = query.reshape(batch * heads, rows, dim).contiguous()
    step = _Step(grouped, heads, length, scaling * LOG2E, bias)
    values = [part.value.codec.digits(part.value.packed) for part in parts]
    slots = [each.pages * each.page_size for each in values]
    columns = step.columns(dense_key, dense_value, sum(slots), dense_length)
    aside = _side_stream(query.device) if parts and query.is_cuda and torch.cuda.is_current_stream_capturing() else None
    if aside is not None:
        begin = torch.cuda.current_stream().record_event()
    out = torch.empty(batch * heads, rows, dense_value.shape[-1], device=query.device, dtype=query.dtype)
    if not parts:
        step.combine(None, None, step.dense(columns), None, out)
    state, start = None, 0
    for part, each, count in zip(parts, values, slots, strict=True):
        first = part is parts[0]
        partial = step.part(part, each, start, columns if first else None)
        dense = partial.dense
        if first and dense is None:
            if aside is None:
                dense = step.dense(columns)
                partial.early = False  # that kernel is not the last
            else:  # in a graph the dense columns are read beside the queries and the pages
                aside.wait_event(begin)
                with torch.cuda.stream(aside):
                    dense = step.dense(columns)
                torch.cuda.current_stream().wait_stream(aside)
                partial.early = False
        state = step.combine(partial, each, dense, state, out if part is parts[-1] else None)
        start += count
    return out.view(batch, query_heads, length, -1)


class _Step:
    """One call: the queries and what all stores need of them."""

    def __init__(self, query: torch.Tensor, heads: int, length: int, scaling: float, bias: torch.Tensor | None):
        self.query = query  # [BH, rows, D]
        self.heads = heads
        self.length = length
        self.scaling = scaling
        self.bias = bias
        self.bh, self.rows, self.dim = query.shape
        self.int8 = self.rows <= INT8_ROWS
        # rows a program takes: columns of the right operand, twice as many for int8
        self.block = max(4, next_power_of_2(self.rows)) if self.int8 else min(64, max(16, next_power_of_2(self.rows)))
        self.blocks = -(-self.rows // self.block)

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, device=self.query.device, dtype=dtype)

    def _splits(self, tiles: int, warps: int) -> int:
        wanted = _multiprocessors(self.query.device) * _WARPS // warps
        return max(1, min(tiles, -(-wanted // (self.bh * self.blocks))))

    # -- keys -----------------------------------------------------------------------------------------------------

    def _basis(self, keys: Digits) -> tuple[torch.Tensor, int]:
        """Room for the queries in the keys' basis, or the queries, and the column where the channels begin in it."""
        if keys.matrix is None:
            return self.query, 0
        width = keys.matrix.shape[-1]
        return self._empty(self.bh, self.rows, width), keys.columns if width > keys.columns else 0

    def _transform(self, keys: Digits, z: torch.Tensor, early: bool = False) -> None:
        """The queries in the keys' basis, to what ``_basis`` made. ``early``: the next kernel waits for it itself."""
        if keys.matrix is None:
            return
        width = z.shape[-1]
        shared = keys.matrix.shape[0] == 1  # then all heads' rows are one matrix product
        heads, rows = (1, self.heads * self.rows) if shared else (self.heads, self.rows)
        batch = self.bh // self.heads
        together = 16 if batch * rows <= 64 else 64  # rows that share one reading of the matrix
        transform_kernel[heads, -(-width // _WIDTH), -(-batch * rows // together)](
            self.query, keys.matrix, z, heads, batch, rows, width, _head_stride(keys.matrix),
            D=self.dim, DP=max(16, next_power_of_2(self.dim)), RP=together, WC=_WIDTH, EARLY=early, num_warps=4,
        )  # fmt: skip

    def expand(self, keys: Digits, int8: bool, out: torch.Tensor | None = None) -> dict[str, Any]:
        """The queries in the digits of ``keys``: arguments of ``split_kernel``.

        ``out`` ``[B, H, groups, 2 * rows, Q]`` may have room for the first groups only, where no page uses others.
        """
        groups, columns = keys.groups if out is None else out.shape[2], keys.columns
        chunks = keys.scale.shape[3] if keys.by_token else 1
        zero = keys.mean if keys.by_token else keys.zero_point
        fold = int8 and not keys.by_token
        if columns == 0:
            columns = aligned(1)
        out = out if out is not None else self._empty(
            self.bh, *((groups if fold else 1,) if int8 else ()), self.rows, *((2,) if int8 else ()), columns,
            dtype=torch.int8 if int8 else torch.float16,
        )  # fmt: skip
        weight = self._empty(self.bh, groups if fold else 1, self.rows)
        bias = None if zero is None else self._empty(self.bh, groups, self.rows)
        sums = self._empty(self.bh, self.rows, chunks) if keys.by_token else None
        scale = _paired(keys.scale) if fold and keys.planes else None
        zero = None if zero is None else _paired(zero)
        extra_scale, extra_zero = keys.extra or (None, None)
        index = keys.index if keys.planes else None
        place = keys.place if int8 and keys.planes else None  # half precision has it in the codes' scale
        z, z_column = self._basis(keys)
        width = z.shape[-1]
        self._transform(keys, z)
        per_program = 1 if groups == 1 else 4
        height = min(4, self.block)
        dz = 1 if zero is None else zero.shape[-1]
        expand_kernel[self.bh, -(-groups // per_program), -(-self.rows // height)](
            z, index, keys.group_index, place, scale, zero, keys.offset, extra_scale, extra_zero,
            out, weight, bias, sums,
            self.heads, self.rows, groups, keys.scale.shape[2] if keys.extra and not keys.by_token else groups,
            self.scaling, width, z_column, _stride(scale), _stride(zero), _stride(keys.group_index),
            0 if keys.offset is None or keys.offset.shape[0] == 1 else keys.offset.shape[-1],
            0 if extra_zero is None or extra_zero.shape[1] == 1 else 1,
            columns, aligned(keys.planes[0].width) if keys.planes else 0,
            0 if keys.group_index is None else keys.group_index.shape[-1], 0 if scale is None else scale.shape[-1], dz,
            DP=next_power_of_2(dz), JP=next_power_of_2(columns), RP=height, GROUPS=per_program, CHUNKS=chunks,
            HAS_INDEX=index is not None, GATHER=keys.matrix is None and index is not None,
            HAS_GROUP_INDEX=keys.group_index is not None, HAS_PLACE=place is not None,
            HAS_SCALE=scale is not None, HAS_ZERO=zero is not None, HAS_OFFSET=keys.offset is not None,
            HAS_EXTRA=keys.extra is not None, QUANTISE=int8, SUMS=sums is not None, num_warps=1,
        )  # fmt: skip
        return {"Q": out, "QW": weight, "QZ": bias, "QS": sums, "kgroups": groups}

    # -- splits ---------------------------------------------------------------------------------------------------

    def part(self, part: Any, values: Digits | Dense, start: int, columns: Columns | None = None) -> Partial:
        """All splits of one part, whose slots begin at ``start``, and those of ``columns`` if its kernel takes them."""
        codec, packed = part.key.codec, part.key.packed
        keys = codec.digits(packed)
        if isinstance(keys, Digits) and keys.group_index is not None and not self.int8:
            keys = None  # channels that differ by group cannot be gathered from a query once
        used = part.value.packed.num_pages
        pages = values.pages
        bias = None if self.bias is None else self.bias[..., start : start + pages * values.page_size]
        adjusts = codec.adjusts_scores
        logits = None
        if keys is None:
            query = self.query.view(-1, self.heads, self.rows, self.dim).float() * (self.scaling / LOG2E)
            scores = codec.scores(codec.transform_query(query), packed)
            if adjusts:
                by_row = bias is not None and bias.shape[2] > 1
                repeated = bias.repeat(1, 1, self.rows // self.length, 1) if by_row else bias
                scores = codec.adjust_scores(scores, repeated)
            logits, adjusts = (scores * LOG2E).contiguous(), False
        elif not adjusts and self.int8:
            found = self._cuda_split(keys, values, used, bias, columns)
            if found is not None:
                return found
        adjust = None
        if adjusts:
            logits = self._empty(self.bh, self.rows, pages * values.page_size)
            found = self._split(keys, values, used, bias, logits=logits, write=True)
            adjust = _slopes(found.m.amax(1), found.l.amin(1), *codec.tau)
            keys = None
        return self._split(keys, values, used, bias, logits=logits, adjust=adjust)

    def columns(self, key: torch.Tensor, value: torch.Tensor, start: int, used: torch.Tensor | None) -> Columns:
        """The columns in the model's dtype ``[B, H, n, D]``; their slots begin at ``start``."""
        bias = None if self.bias is None else self.bias[..., start : start + key.shape[2]]
        return Columns(key, value, bias, used)

    def dense(self, columns: Columns) -> Partial:
        """All splits of the columns in the model's dtype, by a kernel of their own."""
        key, value = Dense(columns.key, _TILE), Dense(columns.value, _TILE)
        return self._split(key, value, columns.used, columns.bias, tokens=columns.key.shape[2])

    def _cuda_split(
        self,
        keys: Digits | Dense,
        values: Digits | Dense,
        used: torch.Tensor | None,
        bias: torch.Tensor | None,
        columns: Columns | None,
    ) -> Partial | None:
        """The splits by the CUDA kernel, those of ``columns`` with them where it can, or None where it does not take
        the case."""
        if not isinstance(keys, Digits) or not isinstance(values, Digits):
            return None
        if keys.by_token or keys.inside > 1 or values.inside or not keys.planes or not values.planes:
            return None
        if values.by_token and values.scale.shape[3] > 1:
            return None
        if bias is not None and (bias.shape[2] > 1 or bias.stride(-1) != 1):
            return None
        batch = self.bh // self.heads
        group = keys.page_group if keys.page_group is not None else "page" if keys.inside else "span"
        k = DigitKeys(tuple((p.codes, p.bits) for p in keys.planes), keys.page_size, group, keys.norm)
        planes = tuple((p.codes, p.bits) for p in values.planes)
        grouped = values.page_group is not None and values.groups > 1
        if values.by_token:
            v = DigitValues(planes, "token", values.scale, values.zero_point)
        elif grouped:
            scale, zero_point = (x.contiguous() for x in values.spread())
            v = DigitValues(planes, "channel", scale, zero_point, values.page_group, values.norm)
        else:
            channels = (values.channel_digits, values.channel_places)
            joins = _SPLITS_BY_CHANNEL and self.bh * self.rows > _FEW_ROWS
            joins = joins and values.index is not None and values.channel_digits is not None
            v = DigitValues(planes, norm=values.norm, channels=channels if joins else None)
        bias = None if bias is None else bias[:, 0, 0].expand(batch, -1)
        dense = None
        if columns is not None and _DENSE_INSIDE:
            added = None if columns.bias is None else columns.bias[:, 0, 0].expand(batch, -1)
            dense = DenseColumns(self.query, columns.key, columns.value, self.scaling, added, columns.used)

        def choose(query: torch.Tensor | Query) -> tuple[Variant | None, DenseColumns | None]:
            with_dense = None if dense is None else cuda.choose(query, k, v, bias, dense)
            return (with_dense, dense) if with_dense is not None else (cuda.choose(query, k, v, bias), None)

        query, weight, offset = self._foldable(keys), None, None
        variant, inside = (None, None) if query is None else choose(query)
        early = False
        if variant is not None:
            early = keys.matrix is not None and cuda.overlaps(self.query.device)
            self._transform(keys, query.rows, early)
        else:  # another kernel expands the query
            groups = keys.groups if group != "span" else 1
            query = self._empty(batch, self.heads, groups, 2 * self.rows, keys.columns, dtype=torch.int8)
            variant, inside = choose(query)
            if variant is None:
                return None
            q = self.expand(keys, True, query)
            weight, offset = (q[n].view(batch, self.heads, groups, self.rows) for n in ("QW", "QZ"))
        splits = cuda_splits.num_splits(query, k, inside, variant=variant)
        m, l = self._empty(self.bh, splits, self.rows), self._empty(self.bh, splits, self.rows)
        acc = self._empty(self.bh, splits, self.rows, v.width)
        zero = None
        if grouped:
            zero = self._empty(self.bh, splits, self.rows, values.zero_point.shape[-1])
        elif values.by_token or values.norm is not None:
            zero = self._empty(self.bh, splits, self.rows)
        found = None
        if inside is not None:
            count, apart = cuda_splits.num_dense_splits(query, k, inside, splits, variant=variant)
            shape = (self.bh, count, self.rows)
            found = Partial(
                self._empty(*shape), self._empty(*shape), self._empty(*shape, aligned(columns.value.shape[-1]))
            )
        cuda.split_digits(
            query, weight, offset, k, v, m, l, acc, used, bias, zero, dense=inside,
            dense_out=None if found is None else DenseSplits(found.m, found.l, found.acc, apart),
            variant=variant, early=early,
        )  # fmt: skip
        zero = zero if zero is None or grouped else zero.unsqueeze(-1)
        early = _COMBINE_EARLY and cuda.overlaps(self.query.device)
        return Partial(m, l, acc, zero, grouped, v.channels is not None, found, early)

    def _foldable(self, keys: Digits) -> Query | None:
        """The query of the CUDA kernel that folds the keys' scales itself; None where groups are not all alike."""
        if keys.group_index is not None or (keys.extra is not None and keys.groups > 1):
            return None
        scale, zero_point = keys.scale, keys.zero_point
        if keys.extra is not None:
            scale, zero_point = (x.expand(self.bh // self.heads, self.heads, -1, -1) for x in keys.extra)
        z, column = self._basis(keys)
        gather = keys.matrix is None and keys.index is not None
        return Query(z, self.scaling, scale, zero_point, column, keys.index, keys.place, keys.offset, gather)

    def _split(
        self,
        keys: Digits | Dense | None,
        values: Digits | Dense,
        used: torch.Tensor | None,
        bias: torch.Tensor | None,
        *,
        logits: torch.Tensor | None = None,
        adjust: torch.Tensor | None = None,
        write: bool = False,
        tokens: int | None = None,
    ) -> Partial:
        k, v = _side(keys, True), _side(values, False)
        page = values.page_size
        coded = [side for side in (k, v) if side["mode"] not in (_DENSE, _NOTHING)]
        planes = [side[name] for side in coded for name in ("B1", "B2") if side[name]]
        unit = min([page * b // 8 for b in planes], default=min(page, _TILE))
        if keys is not None and not isinstance(keys, Dense) and keys.inside > 1:
            unit = min(unit, page // keys.inside)
        if isinstance(values, Digits) and values.inside > 1:
            unit = min(unit, page // values.inside)
        pages = tokens if tokens is not None else v["pages"]
        pages_a_tile = 1 if tokens is not None else max(1, 32 // unit)
        warps = 4
        # int8 folds one scale a tile: not where pages of one tile, or bytes, have several
        kint = self.int8 and k["mode"] == _CHANNEL and k["bits"] <= 4 and (pages_a_tile == 1 or not k["grouped"])
        if k["mode"] == _CHANNEL and kint:
            k["mode"] = _INT8
        vint = v["mode"] == _CHANNEL and v["bits"] <= 4 and v["grouped"] != 3
        vint = vint and (pages_a_tile == 1 or not v["grouped"])
        by_token = v["mode"] == _TOKEN and v["bits"] <= 4 and v["chunks"] == 1
        if self.int8 and (vint or by_token):
            v["mode"] = _INT8
        quick = {k["mode"], v["mode"]} <= {_INT8, _NOTHING}
        if quick:
            warps = 1  # of which many share a multiprocessor: no barriers
        if keys is None:
            k["mode"] = _SCORES
            q = {"Q": None, "QW": None, "QZ": None, "QS": None, "kgroups": 1}
        elif isinstance(keys, Dense):
            kind = keys.values.dtype
            q = {"Q": self.query.to(kind), "QW": self._weight(), "QZ": None, "QS": None, "kgroups": 1}
        else:
            q = self.expand(keys, k["mode"] == _INT8)
        if k["mode"] == _CHANNEL:
            k["scale"] = keys.spread()[0].contiguous()
        grouped_values = isinstance(values, Digits) and not values.by_token and (v["mode"] == _CHANNEL or v["grouped"])
        if grouped_values:
            v["scale"], v["zero"] = (x.contiguous() for x in values.spread())
        token_int8 = v["mode"] == _INT8 and values.by_token
        norm = v["norm"]
        vdz = v["zero"].shape[-1] if grouped_values else 1 if token_int8 or norm is not None else 0
        if v["mode"] == _TOKEN:
            vdz = 0
        columns = v["columns"]
        tiles = -(-pages // (page if tokens is not None else pages_a_tile))
        splits = self._splits(tiles, warps)
        shape = (self.bh, splits, self.rows)
        m, l = self._empty(*shape), self._empty(*shape)
        acc = None if write else self._empty(*shape, columns)
        zero = self._empty(*shape, vdz) if vdz and not write else None
        knorm = k["norm"]
        bias_q = 0 if bias is None or bias.shape[2] == 1 else bias.stride(2)
        split_kernel[self.bh, splits, self.blocks](
            q["Q"], q["QW"], q["QZ"], q["QS"], k["C1"], k["C2"], k["scale"], k["zero"],
            k["group"], knorm, bias, logits, adjust,
            v["C1"], v["C2"], v["scale"], v["zero"], v["group"], norm, used,
            m, l, acc, zero,
            self.heads, self.rows, self.length, q["kgroups"], v["groups"], pages, splits,
            0 if logits is None else logits.shape[-1],
            0 if bias is None or bias.shape[0] == 1 else bias.stride(0), bias_q,
            _stride(k["C1"]), _stride(k["C2"]), _stride(k["scale"]), *_norm_strides(knorm),
            _stride(v["C1"]), _stride(v["C2"]), _stride(v["scale"]), _stride(v["zero"]), *_norm_strides(norm),
            N=page, UI=unit, F=pages_a_tile, RP=self.block,
            KMODE=k["mode"], KB1=k["B1"], KB2=k["B2"], KJ1=k["J1"], KJ2=k["J2"], KP1=k["P1"], KP2=k["P2"],
            INSIDE=k["inside"], KGROUPED=k["grouped"], CHUNKS=k["chunks"],
            HAS_QZ=q["QZ"] is not None, HAS_KNORM=knorm is not None,
            VMODE=v["mode"], VB1=v["B1"], VB2=v["B2"], VJ1=v["J1"], VJ2=v["J2"], VP1=v["P1"], VP2=v["P2"],
            VDZ=vdz, VDP=next_power_of_2(max(1, vdz)), VINSIDE=v["inside"], VGROUPED=v["grouped"], VTOKEN=token_int8,
            VCHUNKS=v["chunks"], HAS_VNORM=norm is not None,
            HAS_BIAS=bias is not None, HAS_USED=used is not None, HAS_ADJUST=adjust is not None, WRITE_LOGITS=write,
            IN_TOKENS=tokens is not None, ASM=not interpreted(), num_warps=warps, num_stages=2 if quick else 1,
        )  # fmt: skip
        return Partial(m, l, acc, zero, grouped_values)

    def _weight(self) -> torch.Tensor:
        return _constant(self.bh, self.rows, self.scaling, self.query.device)

    # -- join -----------------------------------------------------------------------------------------------------

    def combine(
        self,
        partial: Partial | None,
        values: Digits | Dense | None,
        dense: Partial | None,
        state: tuple[torch.Tensor, ...] | None,
        out: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...] | None:
        """Join one part with the dense columns and what was joined before; into ``out``, or a new state."""
        dim = out.shape[-1] if out is not None else dense.acc.shape[-1] if dense is not None else state[2].shape[-1]
        following = None
        if out is None:
            rows = (self.bh, self.rows)
            following = self._empty(*rows), self._empty(*rows), self._empty(*rows, dim)
        digits = values if isinstance(values, Digits) else None
        scale = zero = offset = matrix = digit_matrix = index = place = columns = places = None
        kind, vdz = 0, 0
        # few rows: share the channels out among more programs; many: load the matrix for several rows at once
        few = self.bh * self.rows <= _FEW_ROWS
        by_channel = False
        if digits is not None:
            matrix = digits.matrix
            by_channel = _JOIN_BY_CHANNEL and matrix is not None and not few
            gathers = digits.index is not None and not partial.by_channel
            by_channel = by_channel and not (gathers and digits.channel_digits is None)
            if partial.by_channel:
                digit_matrix = None if by_channel else matrix
            elif digits.planes:
                if matrix is None or by_channel:
                    columns, places = digits.channel_digits, digits.channel_places
                else:
                    index, place = digits.index, digits.place
                    digit_matrix = matrix if index is None else digits.digit_matrix
            vdz = 0 if partial.zero is None else partial.zero.shape[-1]
            if digits.by_token:
                kind = 3 if vdz else 0
            elif partial.scaled:
                kind = 2
                places = None if places is None else (places != 0).float()
            else:
                kind = 1
                scale, zero, offset = digits.scale, digits.zero_point, digits.offset
                if digits.extra is not None and digits.scale.shape[2] == 0:
                    scale, zero = (x.expand(self.bh // self.heads, -1, -1, -1) for x in digits.extra)
                scale = scale if digits.planes else None
        splits = 1 if partial is None else partial.m.shape[1]
        splits0 = 1 if dense is None else dense.m.shape[1]
        before = state or (None, None, None)
        after = following or (None, None, None)
        batch = self.bh // self.heads
        together = 1 if few else 4 if matrix is None else 16
        chunk = min((16 if matrix is None else 32) if few else 64 if matrix is None else 32, next_power_of_2(dim))
        width = max(16, next_power_of_2(0 if partial is None else partial.acc.shape[-1]))
        at_once = max(1, (16384 if few else 4096) // (together * max(width, chunk)))
        early = partial is not None and partial.early
        reached = (scale, zero, *(p and p.acc for p in (partial, dense)), out if state is None else state[2])
        wide = any(x is not None and _reach(x) >= 2**31 for x in reached)  # offsets need more than 32 bits
        combine_kernel[self.heads, -(-batch * self.rows // together), -(-dim // chunk)](
            None if partial is None else partial.m, None if partial is None else partial.l,
            None if partial is None else partial.acc, None if partial is None else partial.zero,
            scale, index, place, columns, places, zero, offset, matrix, digit_matrix,
            None if dense is None else dense.m, None if dense is None else dense.l,
            None if dense is None else dense.acc,
            *before, after[0], after[1], after[2] if out is None else out,
            self.heads, batch, self.rows, splits, splits0,
            *((0, 0) if scale is None else scale.stride()[:2]), *((0, 0) if zero is None else zero.stride()[:2]),
            0 if offset is None or offset.shape[0] == 1 else offset.shape[-1], _head_stride(matrix),
            _head_stride(digit_matrix),
            0 if partial is None else partial.acc.shape[-1], 0 if scale is None else scale.shape[-1], dim,
            D=dim, DC=chunk, CP=max(16, next_power_of_2(dim)),
            JP=width, VDZ=vdz, SP=next_power_of_2(splits),
            SP0=next_power_of_2(splits0), SC=min(at_once, next_power_of_2(splits)), RB=together,
            DIGITS=0 if columns is None else columns.shape[0],
            HAS_PART=partial is not None, HAS_DIGITS=partial is not None and partial.acc.shape[-1] > 0,
            HAS_SCALE=scale is not None, ZERO_KIND=kind, HAS_OFFSET=offset is not None,
            HAS_MATRIX=matrix is not None, BY_CHANNEL=by_channel, HAS_DENSE=dense is not None,
            HAS_STATE=state is not None, LAST=out is not None, EARLY=early, WIDE=wide, num_warps=4,
            **({"launch_pdl": True} if early else {}),
        )  # fmt: skip
        return following
