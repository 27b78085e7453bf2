"""Splits of one packed store by the CUDA kernel (``cuda``), where it takes the case."""

from __future__ import annotations

import torch

from kvmm.kernels.attention.backends.cuda import kernel as cuda
from kvmm.kernels.attention.backends.cuda import splits as cuda_splits
from kvmm.kernels.attention.backends.cuda.inputs import DenseColumns, DenseSplits, DigitKeys, DigitValues, Query
from kvmm.kernels.attention.backends.cuda.variant import Variant
from kvmm.kernels.attention.backends.triton.call import Columns, Partial, Step
from kvmm.kernels.attention.backends.triton.query import basis, expand, transform
from kvmm.kernels.attention.backends.triton.reduce import slopes
from kvmm.kernels.attention.format import DenseFormat, LogitCalibration, PackedFormat, aligned

_DENSE_INSIDE = True  # whether the CUDA split kernel reads the dense columns


def cuda_split(
    step: Step,
    keys: PackedFormat | DenseFormat,
    values: PackedFormat | DenseFormat,
    used: torch.Tensor | None,
    bias: torch.Tensor | None,
    columns: Columns | None,
    calibration: LogitCalibration | None = None,
) -> Partial | None:
    """The splits by the CUDA kernel, those of ``columns`` with them where it can, or None where it does not take
    the case.

    Args:
        used: int32 ``[1]`` on the device, pages in use, or None for all.
        bias: float32 ``[B or 1, 1, 1 or q, slots]`` or None.
        columns: dense columns that may be read as well, or None.
        calibration: of the keys' logits, or None.
    """
    if not _fits(keys, values, bias):
        return None
    batch = step.bh // step.heads
    k, v, grouped = _digit_keys(keys), _digit_values(step, values), _grouped(values)
    bias = None if bias is None else bias[:, 0, 0].expand(batch, -1)
    dense = None
    if columns is not None and _DENSE_INSIDE:
        added = None if columns.bias is None else columns.bias[:, 0, 0].expand(batch, -1)
        dense = DenseColumns(step.query, columns.key, columns.value, step.scaling, added, columns.used)

    def choose(query: torch.Tensor | Query) -> tuple[Variant | None, DenseColumns | None]:
        with_dense = None if dense is None else cuda.choose(query, k, v, bias, dense, calibration is not None)
        if with_dense is not None:
            return with_dense, dense
        return cuda.choose(query, k, v, bias, adjust=calibration is not None), None

    query, weight, offset = _foldable(step, keys), None, None
    variant, inside = (None, None) if query is None else choose(query)
    early = False
    if variant is not None:
        early = keys.transform is not None and cuda.overlaps(step.query.device)
        transform(step, keys, query.rows, early)
    else:  # another kernel expands the query
        groups = keys.groups if k.group != "span" else 1
        query = step.empty(batch, step.heads, groups, 2 * step.rows, keys.lanes, dtype=torch.int8)
        variant, inside = choose(query)
        if variant is None:
            return None
        q = expand(step, keys, True, query)
        weight, offset = (q[n].view(batch, step.heads, groups, step.rows) for n in ("QW", "QZ"))
    splits = cuda_splits.num_splits(query, k, inside, variant=variant)
    m, l = step.empty(step.bh, splits, step.rows), step.empty(step.bh, splits, step.rows)
    acc = step.empty(step.bh, splits, step.rows, v.width)
    zero = None
    if grouped:
        zero = step.empty(step.bh, splits, step.rows, values.zero_point.shape[-1])
    elif values.by_token or values.norm is not None:
        zero = step.empty(step.bh, splits, step.rows)
    found = None
    if inside is not None:
        count, apart = cuda_splits.num_dense_splits(query, k, inside, splits, variant=variant)
        shape = (step.bh, count, step.rows)
        found = Partial(step.empty(*shape), step.empty(*shape), step.empty(*shape, aligned(columns.value.shape[-1])))
    adjust = None
    if calibration is not None:
        cuda.split_digits(query, weight, offset, k, v, m, l, None, used, bias, variant=variant.first_pass, early=early)
        adjust, early = slopes(step, m, l, calibration), False
    cuda.split_digits(
        query, weight, offset, k, v, m, l, acc, used, bias, zero, dense=inside,
        dense_out=None if found is None else DenseSplits(found.m, found.l, found.acc, apart),
        adjust=adjust, variant=variant, early=early,
    )  # fmt: skip
    zero = zero if zero is None or grouped else zero.unsqueeze(-1)
    early = cuda.overlaps(step.query.device)  # the join may start before this kernel has ended
    return Partial(m, l, acc, zero, grouped, v.channels is not None, found, early)


def _fits(keys: PackedFormat | DenseFormat, values: PackedFormat | DenseFormat, bias: torch.Tensor | None) -> bool:
    """Whether the kernel may take the stores: packed, in planes, and their scales where it looks for them."""
    if not isinstance(keys, PackedFormat) or not isinstance(values, PackedFormat):
        return False
    if keys.by_token or keys.groups_per_page > 1 or values.groups_per_page or not keys.planes or not values.planes:
        return False
    if values.by_token and values.scale.shape[3] > 1:
        return False
    return bias is None or (bias.shape[2] == 1 and bias.stride(-1) == 1)


def _digit_keys(keys: PackedFormat) -> DigitKeys:
    group = keys.page_group if keys.page_group is not None else "page" if keys.groups_per_page else "span"
    return DigitKeys(tuple((p.codes, p.bits) for p in keys.planes), keys.page_size, group, keys.norm)


def _grouped(values: PackedFormat) -> bool:
    """Whether pages have scales of their own a channel, which the kernel applies; else the join does."""
    return values.page_group is not None and values.groups > 1


def _digit_values(step: Step, values: PackedFormat) -> DigitValues:
    planes = tuple((p.codes, p.bits) for p in values.planes)
    places = values.lane_channel is not None and (values.channel_lanes is None or len(values.channel_lanes) > 1)
    if values.by_token:
        return DigitValues(planes, "token", values.scale, values.zero_point)
    if _grouped(values):
        scale, zero_point = (x.contiguous() for x in values.expand())
        return DigitValues(planes, "channel", scale, zero_point, values.page_group, values.norm, places=places)
    # of many rows the kernel makes channels of the digits; of few the join does it with more programs
    joins = not step.few and values.lane_channel is not None and values.channel_lanes is not None
    channels = (values.channel_lanes, values.channel_weights) if joins else None
    return DigitValues(planes, norm=values.norm, channels=channels, places=places)


def _foldable(step: Step, keys: PackedFormat) -> Query | None:
    """The query of the CUDA kernel that folds the keys' scales itself; None where groups are not all alike."""
    if keys.group_channel is not None or (keys.fallback is not None and keys.groups > 1):
        return None
    scale, zero_point = keys.scale, keys.zero_point
    if keys.fallback is not None:
        scale, zero_point = (x.expand(step.bh // step.heads, step.heads, -1, -1) for x in keys.fallback)
    return Query(basis(step, keys), step.scaling, scale, zero_point, keys.lane_channel, keys.plane_weight, keys.offset)
