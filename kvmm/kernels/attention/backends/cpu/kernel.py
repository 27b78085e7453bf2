"""Decode attention on a CPU by a few hundred lines of C, where the machine has a C compiler.

At the sizes a CPU decodes, a step in torch is mostly the calling of operations and the writing of unpacked codes. This
is one call a layer that reads the format (:mod:`kvmm.kernels.attention.format`) in place. The library is compiled once
a machine, with ``cc``, ``gcc`` or ``clang``, and kept in the user's cache folder; without a compiler nothing is lost
but speed. Results agree with the reference to float32 rounding.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from kvmm.kernels import build
from kvmm.kernels.angle.format import AngleFormat
from kvmm.kernels.attention.backends.cpu.structs import (
    CALL,
    FORMAT,
    HEADER,
    KINDS,
    MAX_CHANNELS,
    MAX_ROWS,
    SEGMENT,
    Unsupported,
    array,
    describe,
    header_text,
)
from kvmm.kernels.attention.call import AttentionCall, KVSegment
from kvmm.kernels.attention.format import FLOATS, DenseFormat, PackedFormat, mismatch
from kvmm.kernels.attention.merge import AttentionState
from kvmm.kernels.threads import in_parts

SOURCE = build.Source(
    "decode", Path(__file__).with_name("attention.c"), lambda: {HEADER: header_text(), **build.vectors_header()}
)
_SHARED_WORK = 1 << 22  # codes of a layer from which on several threads share its heads


# -- the library -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled library's function, or None where there is no compiler or it fails."""
    found = build.first_loaded(SOURCE)
    if found is None:
        return None
    function = found.kvmm_attend
    function.argtypes = (ctypes.POINTER(CALL.ctype), ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int
    return function


def available() -> bool:
    """Whether this machine can compile the kernel, or has."""
    return library() is not None


# -- stores ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SegmentDescription:
    """The structures that describe a segment."""

    packed: tuple[weakref.ref, weakref.ref]  # the packed keys and values that it describes
    key: ctypes.Structure | None  # FORMAT
    value: ctypes.Structure
    keep_alive: list  # tensors that the structures point to


# by the identity of the packed keys, which live as long as their tensors do
_descriptions: dict[int, _SegmentDescription] = {}


def _rows_follow(x: torch.Tensor) -> bool:
    """Whether the tokens of a head ``[B, H, n, D]`` follow each other."""
    return not x.numel() or ((x.stride(3) == 1 or x.shape[3] == 1) and (x.stride(2) == x.shape[3] or x.shape[2] == 1))


def readable(store: PackedFormat | DenseFormat, key: bool, batch: int, heads: int, dim: int) -> bool:
    """Whether all that the library reads of a store lies inside its tensors, and it knows what to do with it; a store
    that is not is read by the reference, which raises an error where C would read what is not there.

    Args as of :func:`kvmm.kernels.attention.format.mismatch`.
    """
    if mismatch(store, key, batch, heads, dim) is not None:
        return False
    if isinstance(store, DenseFormat):
        return True
    if not store.plain_codes:
        return False
    if not store.by_token:
        return key or store.groups_per_page <= 1
    plain = store.lane_channel is None and store.plane_weight is None
    return len(store.planes) == 1 and plain and (key or store.mean is None)


def _describe(segment: KVSegment, call: AttentionCall) -> _SegmentDescription:
    """The description of one segment, for calls of these sizes. Without a format of the keys it has none of them: their
    logits come from the codec.

    Raises:
        Unsupported: the library does not read the segment.
    """
    batch, heads = call.query.shape[0], call.num_kv_heads
    packed, values = segment.key.packed, segment.value.packed
    description = _descriptions.get(id(packed))
    if description is not None and description.packed[0]() is packed and description.packed[1]() is values:
        return description
    keep_alive: list = []
    store = segment.value.format
    if store is None or not readable(store, False, batch, heads, call.residual_value.shape[-1]):
        raise Unsupported
    value = describe(store, False, keep_alive)
    store = segment.key.format
    if isinstance(store, AngleFormat) or (isinstance(store, PackedFormat) and not store.plain_codes):
        store = None
    if store is not None and not readable(store, True, batch, heads, call.query.shape[-1]):
        raise Unsupported
    key = None if store is None else describe(store, True, keep_alive)
    name = id(packed)
    pair = weakref.ref(packed, lambda _: _descriptions.pop(name, None)), weakref.ref(values)
    _descriptions[name] = description = _SegmentDescription(pair, key, value, keep_alive)
    return description


# -- the backend -------------------------------------------------------------------------------------------------------


def takes(call: AttentionCall) -> bool:
    """Whether the library takes a call: few rows of queries, no autograd, a compiler."""
    query, key, value = call.query, call.residual_key, call.residual_value
    batch, query_heads, length, dim = query.shape
    if query_heads % call.num_kv_heads or call.rows > MAX_ROWS or dim > MAX_CHANNELS:
        return False
    if any(x.dtype not in FLOATS or not _rows_follow(x) for x in (key, value)) or query.dtype not in FLOATS:
        return False
    if key.shape != (batch, call.num_kv_heads, value.shape[2], dim) or value.shape[:2] != key.shape[:2]:
        return False
    if (torch.is_grad_enabled() and query.requires_grad) or torch.compiler.is_compiling():
        return False
    if call.residual_length is not None and call.residual_length.dtype != torch.int32:
        return False
    bias = call.bias
    if bias is not None:
        if bias.shape[:3] not in ((b, 1, q) for b in (1, batch) for q in (1, length)):
            return False
        if bias.stride(-1) != 1 or bias.dtype != torch.float32:
            return False
    return library() is not None


def supports(segment: KVSegment, call: AttentionCall) -> bool:
    """Whether the library reads a segment: at least its values, for whose keys the codec may make the logits."""
    if segment.key.observes:
        return False
    try:
        description = _describe(segment, call)
    except Unsupported:
        return False
    used = segment.key.pages_in_use
    if used is None:
        return True
    # logits made or calibrated by a codec cover the whole capacity
    return used.dtype == torch.int32 and description.key is not None and not description.key.calibrates


def attend(call: AttentionCall, segments: Sequence[KVSegment]) -> torch.Tensor:
    """The whole call ``[B, H_q, q, D]``, of segments that :func:`supports` accepts."""
    out = _attend(call, segments, None)
    return out.view(*call.query.shape[:3], -1).to(call.query.dtype)


def partial(call: AttentionCall, segments: Sequence[KVSegment]) -> AttentionState:
    """The segments and the residual tokens, to be merged with the results of other backends."""
    lse = torch.empty(call.query.shape[0], call.num_kv_heads, call.rows)
    return AttentionState(_attend(call, segments, lse), lse)


def _attend(call: AttentionCall, segments: Sequence[KVSegment], lse: torch.Tensor | None) -> torch.Tensor:
    """float32 ``[B, H_kv, rows, D_v]``; ``lse`` gets the log-sum-exp."""
    function, query, bias = library(), call.query, call.bias
    batch, query_heads, length, dim = query.shape
    heads, rows, value_dim = call.num_kv_heads, call.rows, call.residual_value.shape[-1]
    grouped = query.float().reshape(batch, heads, rows, dim).contiguous()
    keep_alive: list = [grouped]
    described = (SEGMENT.ctype * max(1, len(segments)))()
    slots = work = 0
    for number, segment in enumerate(segments):
        description = _describe(segment, call)
        key, c_segment = segment.key, described[number]
        c_segment.value = description.value
        c_segment.slots = count = description.value.pages * description.value.page_size
        if description.key is not None:
            c_segment.key = description.key
        else:
            scores = key.scores(key.transform_query(grouped * call.scaling))
            if key.calibrates_logits:
                segment_bias = None if bias is None else bias[..., slots : slots + count]
                if segment_bias is not None and segment_bias.shape[2] > 1:
                    segment_bias = segment_bias.repeat(1, 1, query_heads // heads, 1)
                scores = key.calibrate_logits(scores, segment_bias)
            keep_alive.append(scores.contiguous())
            value = description.value
            c_segment.key = FORMAT.ctype(KINDS["LOGITS"], pages=value.pages, page_size=value.page_size)
            c_segment.key.values.data = keep_alive[-1].data_ptr()
        if key.pages_in_use is not None:
            c_segment.used = key.pages_in_use.data_ptr()
        slots += count
        work += count * heads * batch * (dim + value_dim)
    out = torch.empty(batch, heads, rows, value_dim)
    dense = call.residual_key.shape[2]
    c_call = CALL.ctype(batch, heads, rows, length, dim, value_dim, len(segments), slots, dense, call.scaling)
    c_call.query, c_call.out = grouped.data_ptr(), out.data_ptr()
    c_call.lse = None if lse is None else lse.data_ptr()
    if bias is not None:
        if bias.shape[-1] != slots + dense:
            raise ValueError(f"a bias of {bias.shape[-1]} slots for {slots + dense}")
        c_call.bias = bias.data_ptr()
        c_call.bias_batch = bias.stride(0) if bias.shape[0] > 1 else 0
        c_call.bias_row = bias.stride(2) if bias.shape[2] > 1 else 0
    c_call.residual_key = array(call.residual_key, 2, keep_alive)
    c_call.residual_value = array(call.residual_value, 2, keep_alive)
    c_call.segments = ctypes.addressof(described)
    if call.residual_length is not None:
        c_call.residual_length = call.residual_length.data_ptr()
    pairs = batch * heads
    if in_parts(function, c_call, pairs, None if work >= _SHARED_WORK else pairs):
        raise MemoryError("not enough memory for a decode step")
    return out
