"""Decode attention on a GPU: select kernels for each segment and merge their results.

Implements :func:`kvmm.kernels.attention.attend`. Each segment takes three kernels: one expands the queries, one reads
the pages in splits, and one reduces the splits. The residual tokens are read by the page kernel of the first segment or
by a kernel of their own, and are merged in the first reduction. Grids depend on capacities only and lengths are read on
the device, so a call can be captured in a CUDA graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import lru_cache

import torch

from kvmm.kernels.angle.format import AngleFormat
from kvmm.kernels.attention.backends.cuda.angle_kernel import angle_split
from kvmm.kernels.attention.backends.cuda.pages import cuda_split, reads, residual_inputs
from kvmm.kernels.attention.backends.torch.reference import MASKED
from kvmm.kernels.attention.backends.triton.call import LOG2E, DecodeCall, Partial, ResidualTokens
from kvmm.kernels.attention.backends.triton.pages import residual_split, triton_split
from kvmm.kernels.attention.backends.triton.reduce import logit_calibration, reduce_splits
from kvmm.kernels.attention.call import AttentionCall, KVSegment
from kvmm.kernels.attention.format import DenseFormat, PackedFormat
from kvmm.kernels.attention.merge import AttentionState


def takes(call: AttentionCall) -> bool:
    """Whether the kernels take a call: any."""
    return True


def supports(segment: KVSegment, call: AttentionCall) -> bool:
    """Whether the kernels read a segment: at least its values, for whose keys the codec may make the logits. Codes that
    are not plain only the CUDA kernel reads."""
    values = segment.value.format
    if segment.key.observes or values is None:
        return False
    if not isinstance(values, PackedFormat) or values.plain:
        return True
    keys = segment.key.format
    if not isinstance(keys, PackedFormat):
        return False
    if not _keep_the_same(segment, keys, values):
        return False
    if values.plain_codes and keys.logit_calibration is None and not segment.key.calibrates_logits:
        return True
    return reads(_decode_call(call), keys, values, call.bias)


# whether keys and values keep the same tokens, by the identity of the keys; read from the device once
_kept_alike: dict[int, tuple[weakref.ref, weakref.ref, bool]] = {}


def _keep_the_same(segment: KVSegment, keys: PackedFormat, values: PackedFormat) -> bool:
    """Whether keys and values keep the same tokens; False where that is not known while a graph is captured."""
    if keys.kept_slot is None or values.kept_slot is None:
        return keys.kept_slot is values.kept_slot
    if keys.kept_slot.shape != values.kept_slot.shape:
        return False
    packed, others = segment.key.packed, segment.value.packed
    name = id(packed)
    known = _kept_alike.get(name)
    if known is None or known[0]() is not packed or known[1]() is not others:
        if keys.kept_slot.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        pair = weakref.ref(packed, lambda _: _kept_alike.pop(name, None)), weakref.ref(others)
        _kept_alike[name] = known = (*pair, torch.equal(keys.kept_slot, values.kept_slot))
    return known[2]


def attend(call: AttentionCall, segments: Sequence[KVSegment]) -> torch.Tensor:
    """The whole call ``[B, H_q, q, D]``, of segments that :func:`supports` accepts."""
    out, _ = _attend(call, segments, True)
    return out.view(*call.query.shape[:3], -1)


def partial(call: AttentionCall, segments: Sequence[KVSegment]) -> AttentionState:
    """The segments (at least one) and the residual tokens, to be merged with the results of other backends."""
    _, (largest, total, out) = _attend(call, segments, False)
    shape = (call.query.shape[0], call.num_kv_heads, call.rows)
    has_tokens = total > 0
    out = torch.where(has_tokens.unsqueeze(-1), out / total.unsqueeze(-1), 0.0)
    lse = torch.where(has_tokens, (largest + total.log2()) / LOG2E, -torch.inf)
    return AttentionState(out.view(*shape, -1), lse.view(shape))


def _attend(
    call: AttentionCall, segments: Sequence[KVSegment], last: bool
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...] | None]:
    """The output ``[B * H_kv, rows, D_v]``; unless ``last``, also the state of :func:`reduce_splits` in its place: the
    largest logit in units of log 2 and the sum of exponentials relative to it, ``[B * H_kv, rows]``, and the weighted
    values.
    """
    query, residual_key, residual_value = call.query, call.residual_key, call.residual_value
    batch, heads, rows = query.shape[0], call.num_kv_heads, call.rows
    decode = _decode_call(call)
    values = [segment.value.format for segment in segments]
    slots = [each.pages * each.page_size for each in values]
    residual_tokens = _residual_tokens(decode, residual_key, residual_value, sum(slots), call.residual_length)
    capturing = segments and query.is_cuda and torch.cuda.is_current_stream_capturing()
    side_stream = _side_stream(query.device) if capturing else None
    if side_stream is not None:
        begin = torch.cuda.current_stream().record_event()
    out = torch.empty(batch * heads, rows, residual_value.shape[-1], device=query.device, dtype=query.dtype)
    if not segments:
        reduce_splits(decode, None, None, residual_split(decode, residual_tokens), None, out)
    state, start = None, 0
    for number, (segment, each, count) in enumerate(zip(segments, values, slots, strict=True)):
        partial = _segment_splits(decode, segment, each, start, residual_tokens if number == 0 else None)
        residual = partial.residual
        if number == 0 and residual is None:
            if side_stream is None:
                residual = residual_split(decode, residual_tokens)
                partial.launch_dependents = False  # its dependent is the kernel of the residual tokens
            else:  # in a graph, read the residual tokens in parallel to the queries and the pages
                side_stream.wait_event(begin)
                with torch.cuda.stream(side_stream):
                    residual = residual_split(decode, residual_tokens)
                torch.cuda.current_stream().wait_stream(side_stream)
                partial.launch_dependents = False
        final = last and number == len(segments) - 1
        kept = _keeps(each) and not partial.kept
        state = reduce_splits(decode, partial, each, residual, state, out, last=final and not kept)
        if kept:
            bias = None if call.bias is None else call.bias[..., start : start + count]
            tokens = _kept_split(decode, segment.key.format, each, segment.value.pages_in_use, bias)
            state = reduce_splits(decode, None, None, tokens, state, out, last=final)
        start += count
    return out, state


def _decode_call(call: AttentionCall) -> DecodeCall:
    batch, _, length, dim = call.query.shape
    grouped = call.query.reshape(batch * call.num_kv_heads, call.rows, dim).contiguous()
    return DecodeCall(grouped, call.num_kv_heads, length, call.scaling * LOG2E, call.bias)


@lru_cache(maxsize=16)
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _segment_splits(
    call: DecodeCall,
    segment: KVSegment,
    values: PackedFormat | DenseFormat,
    start: int,
    residual_tokens: ResidualTokens | None = None,
) -> Partial:
    """All splits of one segment, whose slots begin at ``start``, and of the residual tokens if the same kernel reads
    them."""
    keys = segment.key.format
    if isinstance(keys, PackedFormat) and keys.group_channel is not None and not call.int8:
        keys = None  # channels that differ per group need a gather per group
    pages_in_use = segment.value.pages_in_use
    pages = values.pages
    bias = None if call.bias is None else call.bias[..., start : start + pages * values.page_size]
    calibration = keys.logit_calibration if isinstance(keys, PackedFormat) else None
    logits = None
    if isinstance(keys, AngleFormat):
        if call.int8 and isinstance(values, DenseFormat):
            residual = residual_inputs(call, residual_tokens)
            partial = angle_split(call, keys, values, pages_in_use, bias, residual)
            if partial is not None:
                return partial
        keys = None
    if keys is not None and call.int8:
        partial = cuda_split(call, keys, values, pages_in_use, bias, residual_tokens, calibration)
        if partial is not None:
            return partial
    hidden = _hidden_slots(values) if _keeps(values) else None
    if isinstance(keys, PackedFormat) and not (keys.plain_codes if hidden is not None else keys.plain):
        keys = None
    if keys is None:
        # natural logits where the codec calibrates them, else in units of log 2
        unit = LOG2E if segment.key.calibrates_logits else 1.0
        query = call.query.view(-1, call.num_kv_heads, call.rows, call.dim).float() * (call.scaling / unit)
        scores = segment.key.scores(segment.key.transform_query(query))
        if segment.key.calibrates_logits:
            by_row = bias is not None and bias.shape[2] > 1
            repeated = bias.repeat(1, 1, call.rows // call.query_length, 1) if by_row else bias
            scores = segment.key.calibrate_logits(scores, repeated)
        logits = (scores * unit if unit != 1.0 else scores).contiguous()
    lines = None
    if calibration is not None:
        logits = call.empty(call.bh, call.rows, pages * values.page_size)
        extrema = triton_split(call, keys, values, pages_in_use, bias, logits=logits, write_logits=True)
        lines = logit_calibration(call, extrema.m, extrema.l, calibration)
        keys = None
    return triton_split(call, keys, values, pages_in_use, bias, logits=logits, hidden=hidden, calibration=lines)


def _keeps(store: PackedFormat | DenseFormat) -> bool:
    return isinstance(store, PackedFormat) and store.kept is not None and store.kept.shape[2] > 0


def _hidden_slots(store: PackedFormat) -> torch.Tensor:
    """uint8 ``[BH, slots]``: 1 for the tokens that a store keeps as the model made them."""
    slot, slots = store.kept_slot.flatten(0, 1), store.pages * store.page_size
    return slot.new_zeros(len(slot), slots, dtype=torch.uint8).scatter_(-1, slot.long().clamp_max(slots - 1), 1)


def _kept_split(
    call: DecodeCall,
    keys: PackedFormat,
    values: PackedFormat,
    pages_in_use: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> Partial:
    """All splits of the tokens that a segment keeps as the model made them; ``bias`` is the segment's."""
    slot = keys.kept_slot
    kept_bias = None
    if bias is not None:
        by_head = bias.expand(*slot.shape[:2], -1, -1)
        kept_bias = by_head.gather(-1, slot.long().unsqueeze(2).expand(-1, -1, bias.shape[2], -1))
    if pages_in_use is not None:
        outside = torch.where(slot < pages_in_use * keys.page_size, 0.0, MASKED).unsqueeze(2)
        kept_bias = outside if kept_bias is None else kept_bias + outside
    # heads keep other tokens, so each is a sequence of its own
    heads = DecodeCall(call.query, 1, call.query_length, call.scaling, None)
    key, value = (store.kept.flatten(0, 1).unsqueeze(1) for store in (keys, values))
    kept_bias = None if kept_bias is None else kept_bias.flatten(0, 1)[:, None].contiguous()
    return residual_split(heads, ResidualTokens(key, value, kept_bias, None))


def _residual_tokens(
    call: DecodeCall, key: torch.Tensor, value: torch.Tensor, start: int, length: torch.Tensor | None
) -> ResidualTokens:
    """The residual tokens ``[B, H, n, D]``; their slots begin at ``start``."""
    bias = None if call.bias is None else call.bias[..., start : start + key.shape[2]]
    return ResidualTokens(key, value, bias, length)
