"""Splits of one packed segment by the CUDA kernel, where it has a variant."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvmm.kernels.attention.backends.cuda import kernel as cuda
from kvmm.kernels.attention.backends.cuda import splits as cuda_splits
from kvmm.kernels.attention.backends.cuda.inputs import KeyPlanes, Query, ResidualInputs, ResidualSplits, ValuePlanes
from kvmm.kernels.attention.backends.cuda.variant import Variant
from kvmm.kernels.attention.backends.triton.call import DecodeCall, Partial, ResidualTokens
from kvmm.kernels.attention.backends.triton.query import expand_query, transform_query, transformed_query_buffer
from kvmm.kernels.attention.backends.triton.reduce import logit_calibration
from kvmm.kernels.attention.bit_lanes import bit_layout
from kvmm.kernels.attention.format import DenseFormat, LogitCalibration, PackedFormat, aligned

_RESIDUAL_IN_SPLIT_KERNEL = True  # whether the CUDA split kernel may read the residual tokens


def cuda_split(
    call: DecodeCall,
    keys: PackedFormat | DenseFormat,
    values: PackedFormat | DenseFormat,
    pages_in_use: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual_tokens: ResidualTokens | None,
    calibration: LogitCalibration | None = None,
) -> Partial | None:
    """The splits of a segment by the CUDA kernel, and of residual tokens if it reads them; None without a variant.

    Args:
        pages_in_use: int32 ``[1]`` on the device, or None for all.
        bias: float32 ``[B or 1, 1, 1 or q, slots]`` or None.
        residual_tokens: may be read as well, or None.
        calibration: of the keys' logits, or None.
    """
    if not _fits(keys, values, bias):
        return None
    batch = call.bh // call.num_kv_heads
    k, v, grouped = _key_planes(keys), _value_planes(call, values), _grouped(values)
    bias = None if bias is None else bias[:, 0, 0].expand(batch, -1)
    residual = residual_inputs(call, residual_tokens)
    if k.kept_slot is not None:
        residual = _with_kept(call, residual, keys.kept, values.kept)

    def choose(query: torch.Tensor | Query) -> tuple[Variant | None, ResidualInputs | None]:
        with_residual = None if residual is None else cuda.choose(query, k, v, bias, residual, calibration is not None)
        if with_residual is not None:
            return with_residual, residual
        return cuda.choose(query, k, v, bias, calibrated=calibration is not None), None

    query, weight, offset = _foldable(call, keys), None, None
    variant, residual_read = (None, None) if query is None else choose(query)
    launch_dependents = False
    if variant is not None:
        launch_dependents = keys.transform is not None and cuda.supports_pdl(call.query.device)
        transform_query(call, keys, query.rows, launch_dependents)
    else:  # another kernel expands the query
        groups = keys.groups if k.group != "span" else 1
        if keys.groups_per_page > 1 or keys.by_token or not keys.plain_codes:
            return None
        query = call.empty(batch, call.num_kv_heads, groups, 2 * call.rows, keys.lanes, dtype=torch.int8)
        variant, residual_read = choose(query)
        if variant is None:
            return None
        q = expand_query(call, keys, True, query)
        weight, offset = (q[n].view(batch, call.num_kv_heads, groups, call.rows) for n in ("QW", "QZ"))
    num_kv_splits = cuda_splits.num_splits(query, k, residual_read, variant=variant)
    m, l = call.empty(call.bh, num_kv_splits, call.rows), call.empty(call.bh, num_kv_splits, call.rows)
    acc = call.empty(call.bh, num_kv_splits, call.rows, v.width)
    zero = None
    if grouped:
        zero = call.empty(call.bh, num_kv_splits, call.rows, values.zero_point.shape[-1])
    elif (values.by_token and not variant.half_products) or (values.norm is not None and values.high_norm is None):
        zero = call.empty(call.bh, num_kv_splits, call.rows)
    residual_splits = None
    if residual_read is not None:
        count, apart = cuda_splits.num_residual_splits(query, k, residual_read, num_kv_splits, variant=variant)
        shape = (call.bh, count, call.rows)
        width = aligned(residual_read.value.shape[-1])
        residual_splits = Partial(call.empty(*shape), call.empty(*shape), call.empty(*shape, width))
    residual_out = None
    if residual_splits is not None:
        residual_out = ResidualSplits(residual_splits.m, residual_splits.l, residual_splits.acc, apart)
    calibration_lines = None
    if calibration is not None:
        cuda.split_kernel(
            query, weight, offset, k, v, m, l, None, pages_in_use, bias, variant=variant.first_pass,
            launch_pdl=launch_dependents,
        )  # fmt: skip
        calibration_lines, launch_dependents = logit_calibration(call, m, l, calibration), False
    cuda.split_kernel(
        query, weight, offset, k, v, m, l, acc, pages_in_use, bias, zero, residual=residual_read,
        residual_out=residual_out, calibration=calibration_lines, variant=variant, launch_pdl=launch_dependents,
    )  # fmt: skip
    zero = zero if zero is None or grouped else zero.unsqueeze(-1)
    launch_dependents = cuda.supports_pdl(call.query.device)  # the reduction may start before this kernel has ended
    kept = residual_read is not None and residual_read.kept_key is not None
    return Partial(m, l, acc, zero, v.scaled, v.channels is not None, residual_splits, launch_dependents, kept)


def _with_kept(
    call: DecodeCall, residual: ResidualInputs | None, key: torch.Tensor, value: torch.Tensor
) -> ResidualInputs | None:
    """The residual tokens, if there are any, and the tokens that pages leave out."""
    if not _RESIDUAL_IN_SPLIT_KERNEL or key.dtype != call.query.dtype:
        return residual
    if residual is None:
        residual = ResidualInputs(call.query, key[:, :, :0], value[:, :, :0], call.scaling)
    return replace(residual, kept_key=key, kept_value=value)


def residual_inputs(call: DecodeCall, tokens: ResidualTokens | None) -> ResidualInputs | None:
    """Residual tokens as the CUDA kernels read them, or None."""
    if tokens is None or not _RESIDUAL_IN_SPLIT_KERNEL:
        return None
    batch = call.bh // call.num_kv_heads
    bias = None if tokens.bias is None else tokens.bias[:, 0, 0].expand(batch, -1)
    return ResidualInputs(call.query, tokens.key, tokens.value, call.scaling, bias, tokens.length)


def reads(
    call: DecodeCall,
    keys: PackedFormat | DenseFormat | None,
    values: PackedFormat | DenseFormat,
    bias: torch.Tensor | None,
) -> bool:
    """Whether the CUDA kernel reads a segment and folds the keys' scales itself, as it must where they are not plain.

    Args:
        bias: float32 ``[B or 1, 1, 1 or q, slots]`` of the call, or None.
    """
    if not call.int8 or not _fits(keys, values, bias):
        return False
    query = _foldable(call, keys)
    bias = None if bias is None else bias[:, 0, 0]
    return query is not None and cuda.supports(query, _key_planes(keys), _value_planes(call, values), bias)


def _fits(keys: PackedFormat | DenseFormat, values: PackedFormat | DenseFormat, bias: torch.Tensor | None) -> bool:
    """Whether the kernel may take the stores: packed, in planes, and their scales where it looks for them."""
    if not isinstance(keys, PackedFormat) or not isinstance(values, PackedFormat):
        return False
    if values.groups_per_page or not keys.planes or not values.planes:
        return False
    return bias is None or (bias.shape[2] == 1 and bias.stride(-1) == 1)


def _key_planes(keys: PackedFormat) -> KeyPlanes:
    group = keys.page_group if keys.page_group is not None else "page" if keys.groups_per_page else "span"
    planes = tuple((p.codes, p.bits) for p in keys.planes)
    if keys.by_token:
        scale, point = (x.flatten(3) for x in (keys.scale, keys.zero_point))
        return KeyPlanes(
            planes,
            keys.page_size,
            group,
            scale,
            point=point,
            chunks=keys.scale.shape[3],
            heads_together=keys.head_group,
            kept_slot=keys.kept_slot,
        )
    group = group if keys.centre is None else keys.centre_group
    bits = keys.bit_weights is not None
    parts = max(1, keys.groups_per_page)
    return KeyPlanes(
        planes,
        keys.page_size,
        group,
        keys.norm,
        parts,
        bit_lanes=bits,
        kept_slot=keys.kept_slot,
        high_norm=keys.high_norm,
        channels=None if keys.plane_weight is None else keys.zero_point.shape[-1],
    )


def _grouped(values: PackedFormat) -> bool:
    """Whether pages have scales of their own a channel, which the kernel applies; else the reduction does."""
    return values.page_group is not None and values.groups > 1


def _value_planes(call: DecodeCall, values: PackedFormat) -> ValuePlanes:
    planes = tuple((p.codes, p.bits) for p in values.planes)
    has_plane_weights = values.lane_channel is not None and (
        values.channel_lanes is None or len(values.channel_lanes) > 1
    )
    if values.by_token:
        return ValuePlanes(planes, "token", values.scale, values.zero_point)
    if values.bit_weights is not None:
        weights = {"norm": values.norm, "bit_weights": values.bit_weights}
        if values.high_norm is None:
            return ValuePlanes(planes, **weights)
        levels = {"scale": values.scale, "zero_point": values.zero_point}
        return ValuePlanes(planes, **levels, **weights, high_norm=values.high_norm)
    if _grouped(values):
        scale, zero_point = (x.contiguous() for x in values.expand())
        return ValuePlanes(
            planes, "channel", scale, zero_point, values.page_group, values.norm, has_plane_weights=has_plane_weights
        )
    # with many rows this kernel sums lanes to channels; with few the reduction does, with more programs
    sums_lanes = not call.few_rows and values.lane_channel is not None and values.channel_lanes is not None
    channels = (values.channel_lanes, values.channel_weights) if sums_lanes else None
    return ValuePlanes(planes, norm=values.norm, channels=channels, has_plane_weights=has_plane_weights)


def _foldable(call: DecodeCall, keys: PackedFormat) -> Query | None:
    """The query of the CUDA kernel that folds the keys' scales itself; None where groups are not all alike."""
    if keys.fallback is not None and keys.groups > 1:
        return None
    if keys.by_token:
        query = transformed_query_buffer(call, keys)
        return Query(query, call.scaling, None, None, mean=keys.mean, lane_order=keys.lane_order)
    scale, zero_point = keys.scale, keys.zero_point
    if keys.fallback is not None:
        scale, zero_point = (x.expand(call.bh // call.num_kv_heads, call.num_kv_heads, -1, -1) for x in keys.fallback)
    if keys.groups_per_page > 1:  # those of a page as one
        pages = (-1, keys.groups_per_page)
        scale, zero_point = (
            x[:, :, : keys.pages * pages[1]].unflatten(2, pages).flatten(3) for x in (scale, zero_point)
        )
    query, channel, weight = transformed_query_buffer(call, keys), keys.lane_channel, keys.plane_weight
    if keys.group_channel is not None:
        return Query(query, call.scaling, scale, zero_point, group_channel=keys.group_channel)
    if keys.bit_weights is not None:
        channel, weight = bit_layout(tuple(plane.width for plane in keys.planes), keys.bit_weights, query.device)
    return Query(query, call.scaling, scale, zero_point, channel, weight, keys.offset, keys.centre)
