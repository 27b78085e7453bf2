"""Decode attention on a GPU: chooses kernels for what is stored and joins their results.

The same function as :func:`kvmm.kernels.attention.attend`. A step of one layer is, for every part, one kernel that
expands the queries, one that walks the pages and one that joins; the dense columns (sinks, residual) are read by the
kernel of the first part, or are a store of their own, and share the first join. All grids depend on capacities only and
lengths are read on the device, so a step can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from kvmm.kernels.attention.backends.cuda.pages import cuda_split
from kvmm.kernels.attention.backends.triton.call import LOG2E, Columns, Partial, Step
from kvmm.kernels.attention.backends.triton.pages import dense_split, triton_split
from kvmm.kernels.attention.backends.triton.reduce import combine, slopes
from kvmm.kernels.attention.call import AttentionCall, KVSegment
from kvmm.kernels.attention.format import DenseFormat, PackedFormat
from kvmm.kernels.attention.merge import AttentionState


def takes(call: AttentionCall) -> bool:
    """Whether the kernels take a call: any."""
    return True


def supports(segment: KVSegment, call: AttentionCall) -> bool:
    """Whether the kernels read a segment: at least its values, for whose keys the codec may make the logits."""
    return not segment.key.observes and segment.value.format is not None


def attend(call: AttentionCall, segments: Sequence[KVSegment]) -> torch.Tensor:
    """The whole call ``[B, H_q, q, D]``, of segments that :func:`supports` accepts."""
    out, _ = _attend(call, segments, True)
    return out.view(*call.query.shape[:3], -1)


def partial(call: AttentionCall, segments: Sequence[KVSegment]) -> AttentionState:
    """The segments (at least one) and the residual tokens, to be joined with what others read."""
    _, (largest, total, out) = _attend(call, segments, False)
    shape = (call.query.shape[0], call.heads, call.rows)
    there = total > 0
    out = torch.where(there.unsqueeze(-1), out / total.unsqueeze(-1), 0.0)
    lse = torch.where(there, (largest + total.log2()) / LOG2E, -torch.inf)
    return AttentionState(out.view(*shape, -1), lse.view(shape))


def _attend(
    call: AttentionCall, segments: Sequence[KVSegment], last: bool
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...] | None]:
    """The output ``[B * H_kv, rows, D_v]`` where nothing else is ``last``; else the state of ``combine``: the largest
    logit in units of log 2 and the sum of exponentials above it, ``[B * H_kv, rows]``, and the sums of values.
    """
    query, dense_key, dense_value = call.query, call.dense_key, call.dense_value
    batch, _, length, dim = query.shape
    heads, rows = call.heads, call.rows
    grouped = query.reshape(batch * heads, rows, dim).contiguous()
    step = Step(grouped, heads, length, call.scaling * LOG2E, call.bias)
    values = [segment.value.format for segment in segments]
    slots = [each.pages * each.page_size for each in values]
    columns = _columns(step, dense_key, dense_value, sum(slots), call.dense_length)
    capturing = segments and query.is_cuda and torch.cuda.is_current_stream_capturing()
    aside = _side_stream(query.device) if capturing else None
    if aside is not None:
        begin = torch.cuda.current_stream().record_event()
    out = torch.empty(batch * heads, rows, dense_value.shape[-1], device=query.device, dtype=query.dtype)
    if not segments:
        combine(step, None, None, dense_split(step, columns), None, out)
    state, start = None, 0
    for number, (segment, each, count) in enumerate(zip(segments, values, slots, strict=True)):
        partial = _part(step, segment, each, start, columns if number == 0 else None)
        dense = partial.dense
        if number == 0 and dense is None:
            if aside is None:
                dense = dense_split(step, columns)
                partial.early = False  # that kernel is not the last
            else:  # in a graph the dense columns are read beside the queries and the pages
                aside.wait_event(begin)
                with torch.cuda.stream(aside):
                    dense = dense_split(step, columns)
                torch.cuda.current_stream().wait_stream(aside)
                partial.early = False
        state = combine(step, partial, each, dense, state, out, last=last and number == len(segments) - 1)
        start += count
    return out, state


@lru_cache(maxsize=16)
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _part(
    step: Step, part: KVSegment, values: PackedFormat | DenseFormat, start: int, columns: Columns | None = None
) -> Partial:
    """All splits of one part, whose slots begin at ``start``, and those of ``columns`` if its kernel takes them."""
    keys = part.key.format
    if isinstance(keys, PackedFormat) and keys.group_channel is not None and not step.int8:
        keys = None  # channels that differ by group cannot be gathered from a query once
    used = part.value.pages_in_use
    pages = values.pages
    bias = None if step.bias is None else step.bias[..., start : start + pages * values.page_size]
    calibration = keys.logit_calibration if isinstance(keys, PackedFormat) else None
    logits = None
    if keys is None:
        query = step.query.view(-1, step.heads, step.rows, step.dim).float() * (step.scaling / LOG2E)
        scores = part.key.scores(part.key.transform_query(query))
        if part.key.adjusts_scores:
            by_row = bias is not None and bias.shape[2] > 1
            repeated = bias.repeat(1, 1, step.rows // step.length, 1) if by_row else bias
            scores = part.key.adjust_scores(scores, repeated)
        logits = (scores * LOG2E).contiguous()
    elif step.int8:
        found = cuda_split(step, keys, values, used, bias, columns, calibration)
        if found is not None:
            return found
    adjust = None
    if calibration is not None:
        logits = step.empty(step.bh, step.rows, pages * values.page_size)
        found = triton_split(step, keys, values, used, bias, logits=logits, write=True)
        adjust = slopes(step, found.m, found.l, calibration)
        keys = None
    return triton_split(step, keys, values, used, bias, logits=logits, adjust=adjust)


def _columns(step: Step, key: torch.Tensor, value: torch.Tensor, start: int, used: torch.Tensor | None) -> Columns:
    """The dense columns ``[B, H, n, D]``; their slots begin at ``start``."""
    bias = None if step.bias is None else step.bias[..., start : start + key.shape[2]]
    return Columns(key, value, bias, used)
