"""The results of one decode step's parts and dense columns, joined: launches of ``triton_join``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton import next_power_of_2

from kvmm.kernels.attention.backends.triton.call import LOG2E, Partial, Step, head_stride
from kvmm.kernels.attention.backends.triton.query import multiplies_bf16
from kvmm.kernels.attention.backends.triton.reduce_kernels import combine_kernel, slopes_kernel
from kvmm.kernels.attention.format import DenseFormat, LogitCalibration, PackedFormat


def _reach(x: torch.Tensor) -> int:
    """Elements from a tensor's first to its last."""
    return sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def _room(count: int) -> int:
    """A power of four: as many as a kernel is compiled for, so that caches that grow need few of them. Not for pages'
    splits, whose sums are held in registers."""
    power = next_power_of_2(count)
    return power if power.bit_length() % 2 else 2 * power


def slopes(step: Step, largest: torch.Tensor, smallest: torch.Tensor, calibration: LogitCalibration) -> torch.Tensor:
    """What a calibration does to every row's logits, slope and shift: ``[BH, rows, 2]``.

    Args:
        largest, smallest: each split's logits ``[BH, splits, rows]``, in units of log 2.
        calibration: of the store.
    """
    splits, out = largest.shape[1], step.empty(step.bh, step.rows, 2)
    room = _room(splits)
    together = min(64, _room(step.rows), max(1, 8192 // room))
    slopes_kernel[step.bh, -(-step.rows // together)](
        largest, smallest, out, step.rows, splits, calibration.low_shift * LOG2E, calibration.high_shift * LOG2E,
        SP=room, RB=together, num_warps=1,
    )  # fmt: skip
    return out


@dataclass
class _Tables:
    """What takes the sums of one store's splits to channels of the output; see ``combine_kernel``."""

    scale: torch.Tensor | None = None  # [B, H, 1, C], what splits did not do already
    zero_point: torch.Tensor | None = None  # [B, H, 1, DZ]
    offset: torch.Tensor | None = None  # float32 [H or 1, DZ]
    matrix: torch.Tensor | None = None  # [H or 1, D, D]
    lane_matrix: torch.Tensor | None = None  # [H or 1, lanes, D]
    index: torch.Tensor | None = None  # int32 [lanes], the channel of each
    place: torch.Tensor | None = None  # float32 [lanes]
    columns: torch.Tensor | None = None  # int32 [K, D], the lanes that a channel is the sum of
    places: torch.Tensor | None = None  # float32 [K, D]
    zero_kind: int = 0
    zero_width: int = 0  # VDZ of the splits' sums of zero points
    by_channel: bool = False


def _tables(step: Step, partial: Partial, values: PackedFormat) -> _Tables:
    """The tables of a packed store whose splits are ``partial``."""
    matrix = values.transform
    # digits become channels before they leave the basis
    gathers = values.lane_channel is not None and not partial.by_channel
    by_channel = matrix is not None and not step.few and not (gathers and values.channel_lanes is None)
    zero_width = 0 if partial.zero is None else partial.zero.shape[-1]
    found = _Tables(matrix=matrix, zero_width=zero_width, by_channel=by_channel)
    if partial.by_channel:
        found.lane_matrix = None if by_channel else matrix
    elif values.planes:
        if matrix is None or by_channel:
            found.columns, found.places = values.channel_lanes, values.channel_weights
        else:
            found.index, found.place = values.lane_channel, values.plane_weight
            found.lane_matrix = matrix if found.index is None else values.lane_transform
    if values.by_token:
        found.zero_kind = 3 if zero_width else 0
    elif partial.scaled:
        found.zero_kind = 2
        found.places = None if found.places is None else (found.places != 0).float()
    else:
        found.zero_kind = 1
        scale, found.zero_point, found.offset = values.scale, values.zero_point, values.offset
        if values.fallback is not None and values.scale.shape[2] == 0:
            scale, found.zero_point = (x.expand(step.bh // step.heads, -1, -1, -1) for x in values.fallback)
        found.scale = scale if values.planes else None
    return found


def combine(
    step: Step,
    partial: Partial | None,
    values: PackedFormat | DenseFormat | None,
    dense: Partial | None,
    state: tuple[torch.Tensor, ...] | None,
    out: torch.Tensor,
    last: bool = True,
) -> tuple[torch.Tensor, ...] | None:
    """Join one part with the dense columns and what was joined before; into ``out``, or, before the last part, a new
    state.
    """
    dim = out.shape[-1]
    following = None
    if not last:
        rows = (step.bh, step.rows)
        following = step.empty(*rows), step.empty(*rows), step.empty(*rows, dim)
    store = _tables(step, partial, values) if isinstance(values, PackedFormat) else _Tables()
    scale, zero, offset, matrix = store.scale, store.zero_point, store.offset, store.matrix
    splits = 1 if partial is None else partial.m.shape[1]
    splits0 = 1 if dense is None else dense.m.shape[1]
    before = state or (None, None, None)
    after = following or (None, None, None)
    batch = step.bh // step.heads
    # few rows: share the channels out among more programs; many: load the matrix for several rows at once
    few = step.few
    together = 1 if few else 4 if matrix is None else 16
    chunk = min((16 if matrix is None else 32) if few else 64 if matrix is None else 32, next_power_of_2(dim))
    width = max(16, next_power_of_2(0 if partial is None else partial.acc.shape[-1]))
    at_once = max(1, (16384 if few else 4096) // (together * max(width, chunk)))
    early = partial is not None and partial.early
    reached = (scale, zero, *(p and p.acc for p in (partial, dense)), out, state and state[2])
    wide = any(x is not None and _reach(x) >= 2**31 for x in reached)  # offsets need more than 32 bits
    combine_kernel[step.heads, -(-batch * step.rows // together), -(-dim // chunk)](
        None if partial is None else partial.m, None if partial is None else partial.l,
        None if partial is None else partial.acc, None if partial is None else partial.zero,
        scale, store.index, store.place, store.columns, store.places, zero, offset, matrix, store.lane_matrix,
        None if dense is None else dense.m, None if dense is None else dense.l,
        None if dense is None else dense.acc,
        *before, after[0], after[1], out if last else after[2],
        step.heads, batch, step.rows, splits, splits0,
        *((0, 0) if scale is None else scale.stride()[:2]), *((0, 0) if zero is None else zero.stride()[:2]),
        0 if offset is None or offset.shape[0] == 1 else offset.shape[-1], head_stride(matrix),
        head_stride(store.lane_matrix),
        0 if partial is None else partial.acc.shape[-1], 0 if scale is None else scale.shape[-1], dim,
        D=dim, DC=chunk, CP=max(16, next_power_of_2(dim)),
        JP=width, VDZ=store.zero_width, SP=next_power_of_2(splits),
        SP0=_room(splits0), SC=min(at_once, next_power_of_2(splits)), RB=together,
        DIGITS=0 if store.columns is None else store.columns.shape[0],
        HAS_PART=partial is not None, HAS_DIGITS=partial is not None and partial.acc.shape[-1] > 0,
        HAS_SCALE=scale is not None, ZERO_KIND=store.zero_kind, HAS_OFFSET=offset is not None,
        HAS_MATRIX=matrix is not None, BY_CHANNEL=store.by_channel, HAS_DENSE=dense is not None,
        HAS_STATE=state is not None, LAST=last, EARLY=early, WIDE=wide,
        HALF=last and out.dtype != torch.float32 and multiplies_bf16(out.device), num_warps=4,
        **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return following
