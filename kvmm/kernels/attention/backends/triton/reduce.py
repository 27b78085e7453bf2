"""Merge the results of segments and residual tokens: launches of ``reduce_kernels``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton import next_power_of_2

from kvmm.kernels.attention.backends.triton.call import LOG2E, DecodeCall, Partial, head_stride, strides_of
from kvmm.kernels.attention.backends.triton.query import multiplies_bf16
from kvmm.kernels.attention.backends.triton.reduce_kernels import calibration_kernel, reduce_kernel
from kvmm.kernels.attention.format import DenseFormat, LogitCalibration, PackedFormat


def _extent(x: torch.Tensor) -> int:
    """The offset of a tensor's last element from its first, in elements."""
    return sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def _block_size(count: int) -> int:
    """``count`` rounded up to a power of four, so that a growing cache compiles few variants. Not for pages' splits,
    whose sums are kept in registers."""
    power = next_power_of_2(count)
    return power if power.bit_length() % 2 else 2 * power


def logit_calibration(
    call: DecodeCall, largest: torch.Tensor, smallest: torch.Tensor, calibration: LogitCalibration
) -> torch.Tensor:
    """Slope and shift that calibrate the logits of each row: ``[BH, rows, 2]``.

    Args:
        largest, smallest: logits of each split ``[BH, splits, rows]``, in units of log 2.
        calibration: of the segment's keys.
    """
    num_kv_splits, out = largest.shape[1], call.empty(call.bh, call.rows, 2)
    split_block = _block_size(num_kv_splits)
    row_block = min(64, _block_size(call.rows), max(1, 8192 // split_block))
    calibration_kernel[call.bh, -(-call.rows // row_block)](
        largest, smallest, out, call.rows, num_kv_splits, calibration.low_shift * LOG2E, calibration.high_shift * LOG2E,
        SP=split_block, RB=row_block, num_warps=1,
    )  # fmt: skip
    return out


@dataclass
class _ValueTables:
    """The tables that map the split sums of one segment to output channels; see ``reduce_kernel``."""

    scale: torch.Tensor | None = None  # [B, H, 1, C], where the splits did not apply it
    zero_point: torch.Tensor | None = None  # [B, H, 1, DZ]
    offset: torch.Tensor | None = None  # float32 [H or 1, DZ]
    matrix: torch.Tensor | None = None  # [H or 1, D, D]
    lane_matrix: torch.Tensor | None = None  # [H or 1, lanes, D]
    lane_channel: torch.Tensor | None = None  # int32 [lanes]
    plane_weight: torch.Tensor | None = None  # float32 [lanes]
    channel_lanes: torch.Tensor | None = None  # int32 [K, D]
    channel_weights: torch.Tensor | None = None  # float32 [K, D]
    zero_kind: int = 0
    zero_width: int = 0  # VDZ of Partial.zero
    by_channel: bool = False


def _value_tables(call: DecodeCall, partial: Partial, values: PackedFormat) -> _ValueTables:
    """The tables of packed values whose splits are ``partial``."""
    matrix = values.transform
    # lanes are summed to channels before the inverse transform
    gathers = values.lane_channel is not None and not partial.by_channel
    by_channel = matrix is not None and not call.few_rows and not (gathers and values.channel_lanes is None)
    zero_width = 0 if partial.zero is None else partial.zero.shape[-1]
    tables = _ValueTables(matrix=matrix, zero_width=zero_width, by_channel=by_channel)
    if partial.by_channel:
        tables.lane_matrix = None if by_channel else matrix
    elif values.planes:
        if matrix is None or by_channel:
            tables.channel_lanes, tables.channel_weights = values.channel_lanes, values.channel_weights
        else:
            tables.lane_channel, tables.plane_weight = values.lane_channel, values.plane_weight
            tables.lane_matrix = matrix if tables.lane_channel is None else values.lane_transform
    if values.by_token:
        tables.zero_kind = 3 if zero_width else 0
    elif partial.scaled:
        tables.zero_kind = 2 if zero_width else 0
        weights = tables.channel_weights
        tables.channel_weights = None if weights is None else (weights != 0).float()
    else:
        tables.zero_kind = 1
        scale, tables.zero_point, tables.offset = values.scale, values.zero_point, values.offset
        if values.fallback is not None and values.scale.shape[2] == 0:
            scale, tables.zero_point = (x.expand(call.bh // call.num_kv_heads, -1, -1, -1) for x in values.fallback)
        tables.scale = scale if values.planes else None
    return tables


def reduce_splits(
    call: DecodeCall,
    partial: Partial | None,
    values: PackedFormat | DenseFormat | None,
    residual: Partial | None,
    state: tuple[torch.Tensor, ...] | None,
    out: torch.Tensor,
    last: bool = True,
) -> tuple[torch.Tensor, ...] | None:
    """Merge the splits of one segment with those of the residual tokens and the state so far.

    The result goes to ``out`` or, if more segments follow, to a new state, which is returned.
    """
    dim = out.shape[-1]
    next_state = None
    if not last:
        rows = (call.bh, call.rows)
        next_state = call.empty(*rows), call.empty(*rows), call.empty(*rows, dim)
    tables = _value_tables(call, partial, values) if isinstance(values, PackedFormat) else _ValueTables()
    scale, zero, offset, matrix = tables.scale, tables.zero_point, tables.offset, tables.matrix
    order = values.channel_order if isinstance(values, PackedFormat) else None
    num_kv_splits = 1 if partial is None else partial.m.shape[1]
    num_residual_splits = 1 if residual is None else residual.m.shape[1]
    state_in = state or (None, None, None)
    state_out = next_state or (None, None, None)
    batch = call.bh // call.num_kv_heads
    # few rows: more programs per row, of fewer channels; many rows: each program loads the matrix for several rows
    few = call.few_rows
    row_block = 1 if few else 4 if matrix is None else 16
    channel_block = min((16 if matrix is None else 32) if few else 64 if matrix is None else 32, next_power_of_2(dim))
    width = max(16, next_power_of_2(0 if partial is None else partial.acc.shape[-1]))
    split_block = max(1, (16384 if few else 4096) // (row_block * max(width, channel_block)))
    launch_pdl = partial is not None and partial.launch_dependents
    addressed = (scale, zero, *(p and p.acc for p in (partial, residual)), out, state and state[2])
    wide = any(x is not None and _extent(x) >= 2**31 for x in addressed)  # offsets need more than 32 bits
    reduce_kernel[call.num_kv_heads, -(-batch * call.rows // row_block), -(-dim // channel_block)](
        None if partial is None else partial.m, None if partial is None else partial.l,
        None if partial is None else partial.acc, None if partial is None else partial.zero,
        scale, tables.lane_channel, tables.plane_weight, tables.channel_lanes, tables.channel_weights,
        zero, offset, matrix, tables.lane_matrix, order,
        None if residual is None else residual.m, None if residual is None else residual.l,
        None if residual is None else residual.acc,
        *state_in, state_out[0], state_out[1], out if last else state_out[2],
        call.num_kv_heads, batch, call.rows, num_kv_splits, num_residual_splits,
        *((0, 0) if scale is None else scale.stride()[:2]), *((0, 0) if zero is None else zero.stride()[:2]),
        0 if offset is None or offset.shape[0] == 1 else offset.shape[-1], head_stride(matrix),
        head_stride(tables.lane_matrix), *strides_of(order),
        0 if partial is None else partial.acc.shape[-1], 0 if scale is None else scale.shape[-1], dim,
        D=dim, DC=channel_block, CP=max(16, next_power_of_2(dim)),
        JP=width, VDZ=tables.zero_width, SP=next_power_of_2(num_kv_splits),
        SP0=_block_size(num_residual_splits), SC=min(split_block, next_power_of_2(num_kv_splits)), RB=row_block,
        LANES_PER_CHANNEL=0 if tables.channel_lanes is None else tables.channel_lanes.shape[0],
        HAS_SEGMENT=partial is not None, HAS_LANES=partial is not None and partial.acc.shape[-1] > 0,
        HAS_SCALE=scale is not None, ZERO_KIND=tables.zero_kind, HAS_OFFSET=offset is not None,
        HAS_MATRIX=matrix is not None, BY_CHANNEL=tables.by_channel, HAS_RESIDUAL=residual is not None,
        HAS_STATE=state is not None, LAST=last, LAUNCH_PDL=launch_pdl, WIDE=wide,
        HALF=last and out.dtype != torch.float32 and multiplies_bf16(out.device), num_warps=4,
        **({"launch_pdl": True} if launch_pdl else {}),
    )  # fmt: skip
    return next_state
