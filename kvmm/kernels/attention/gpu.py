"""Decode attention on a GPU: chooses kernels for what is stored and joins their results.

The same function as :func:`kvmm.kernels.attention.attend`. A step of one layer is, for every part, one kernel that
expands the queries, one that walks the pages and one that joins; the dense columns (sinks, residual) are read by the
kernel of the first part, or are a store of their own, and share the first join. All grids depend on capacities only and
lengths are read on the device, so a step can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from kvmm.kernels.attention.backends.cuda.pages import cuda_split
from kvmm.kernels.attention.backends.triton.call import LOG2E, Columns, Partial, Step
from kvmm.kernels.attention.backends.triton.pages import dense_split, triton_split
from kvmm.kernels.attention.backends.triton.reduce import combine, slopes
from kvmm.kernels.attention.format import DenseFormat, PackedFormat


def supports(parts: Sequence) -> bool:
    """Whether the kernels can read all parts (their values; keys may bring logits of their own)."""
    return all(
        not part.key.observes and part.value.codec.packed_format(part.value.packed) is not None for part in parts
    )


def attend(
    query: torch.Tensor,
    parts: Sequence,
    dense_key: torch.Tensor,
    dense_value: torch.Tensor,
    bias: torch.Tensor | None,
    scaling: float,
    dense_length: torch.Tensor | None = None,
) -> torch.Tensor:
    """:func:`kvmm.kernels.attention.attend` by kernels; the arguments are its."""
    batch, query_heads, length, dim = query.shape
    heads = dense_key.shape[1]
    rows = query_heads // heads * length
    grouped = query.reshape(batch * heads, rows, dim).contiguous()
    step = Step(grouped, heads, length, scaling * LOG2E, bias)
    values = [part.value.codec.packed_format(part.value.packed) for part in parts]
    slots = [each.pages * each.page_size for each in values]
    columns = _columns(step, dense_key, dense_value, sum(slots), dense_length)
    aside = _side_stream(query.device) if parts and query.is_cuda and torch.cuda.is_current_stream_capturing() else None
    if aside is not None:
        begin = torch.cuda.current_stream().record_event()
    out = torch.empty(batch * heads, rows, dense_value.shape[-1], device=query.device, dtype=query.dtype)
    if not parts:
        combine(step, None, None, dense_split(step, columns), None, out)
    state, start = None, 0
    for part, each, count in zip(parts, values, slots, strict=True):
        first = part is parts[0]
        partial = _part(step, part, each, start, columns if first else None)
        dense = partial.dense
        if first and dense is None:
            if aside is None:
                dense = dense_split(step, columns)
                partial.early = False  # that kernel is not the last
            else:  # in a graph the dense columns are read beside the queries and the pages
                aside.wait_event(begin)
                with torch.cuda.stream(aside):
                    dense = dense_split(step, columns)
                torch.cuda.current_stream().wait_stream(aside)
                partial.early = False
        state = combine(step, partial, each, dense, state, out, last=part is parts[-1])
        start += count
    return out.view(batch, query_heads, length, -1)


@lru_cache(maxsize=16)
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _part(
    step: Step, part: Any, values: PackedFormat | DenseFormat, start: int, columns: Columns | None = None
) -> Partial:
    """All splits of one part, whose slots begin at ``start``, and those of ``columns`` if its kernel takes them."""
    codec, packed = part.key.codec, part.key.packed
    keys = codec.packed_format(packed)
    if isinstance(keys, PackedFormat) and keys.group_channel is not None and not step.int8:
        keys = None  # channels that differ by group cannot be gathered from a query once
    used = part.value.packed.num_pages
    pages = values.pages
    bias = None if step.bias is None else step.bias[..., start : start + pages * values.page_size]
    adjusts = codec.adjusts_scores
    logits = None
    if keys is None:
        query = step.query.view(-1, step.heads, step.rows, step.dim).float() * (step.scaling / LOG2E)
        scores = codec.scores(codec.transform_query(query), packed)
        if adjusts:
            by_row = bias is not None and bias.shape[2] > 1
            repeated = bias.repeat(1, 1, step.rows // step.length, 1) if by_row else bias
            scores = codec.adjust_scores(scores, repeated)
        logits, adjusts = (scores * LOG2E).contiguous(), False
    elif step.int8:
        found = cuda_split(step, keys, values, used, bias, columns, codec.tau if adjusts else None)
        if found is not None:
            return found
    adjust = None
    if adjusts:
        logits = step.empty(step.bh, step.rows, pages * values.page_size)
        found = triton_split(step, keys, values, used, bias, logits=logits, write=True)
        adjust = slopes(step, found.m, found.l, *codec.tau)
        keys = None
    return triton_split(step, keys, values, used, bias, logits=logits, adjust=adjust)


def _columns(step: Step, key: torch.Tensor, value: torch.Tensor, start: int, used: torch.Tensor | None) -> Columns:
    """The dense columns ``[B, H, n, D]``; their slots begin at ``start``."""
    bias = None if step.bias is None else step.bias[..., start : start + key.shape[2]]
    return Columns(key, value, bias, used)
