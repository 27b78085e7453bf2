"""Decode attention on a CPU by a few hundred lines of C, where the machine has a C compiler.

At the sizes a CPU decodes, a step in torch is mostly the calling of operations and the writing of unpacked codes. This
is one call a layer that reads the format (:mod:`kvmm.kernels.attention.format`) in place. The library is compiled once
a machine, with ``cc``, ``gcc`` or ``clang``, and kept in the user's cache folder; without a compiler nothing is lost
but speed. Results agree with the reference to float32 rounding.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from kvmm.kernels.attention.backends.cpu import build
from kvmm.kernels.attention.backends.cpu.structs import (
    CALL,
    FORMAT,
    KINDS,
    MAX_CHANNELS,
    MAX_ROWS,
    SEGMENT,
    Unsupported,
    array,
    describe,
)
from kvmm.kernels.attention.format import FLOATS, DenseFormat, PackedFormat, mismatch

_SHARED_WORK = 1 << 22  # codes of a layer from which on several threads share its heads

_lock = threading.Lock()


# -- the library -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled library's function, or None where there is no compiler or it fails."""
    with _lock:
        for name in ("cc", "gcc", "clang"):
            compiler = shutil.which(name)
            if compiler is None:
                continue
            for tuned in (("-march=native",), ()):
                try:
                    function = build.load(compiler, tuned).kvmm_attend
                except (OSError, subprocess.SubprocessError):
                    continue
                function.argtypes = (ctypes.POINTER(CALL.ctype), ctypes.c_int64, ctypes.c_int64)
                function.restype = ctypes.c_int
                return function
    return None


def available() -> bool:
    """Whether this machine can compile the kernel, or has."""
    return library() is not None


# -- stores ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Known:
    """What was found out about a part."""

    packed: tuple[weakref.ref, weakref.ref]  # the packed keys and values it was found with
    key: ctypes.Structure | None  # FORMAT
    value: ctypes.Structure
    held: list  # tensors that are pointed to


_known: dict[int, _Known] = {}  # by the identity of the packed keys, which live as long as their tensors do


def _length(x: torch.Tensor) -> int:
    """Where a length is, int32 ``[1]``: the kernel reads it."""
    if x.dtype != torch.int32:
        raise Unsupported
    return x.data_ptr()


def readable(store: PackedFormat | DenseFormat, key: bool, batch: int, heads: int, dim: int) -> bool:
    """Whether all that the library reads of a store lies inside its tensors, and it knows what to do with it; a store
    that is not is read by the reference, which raises an error where C would read what is not there.

    Args as of :func:`kvmm.kernels.attention.format.mismatch`.
    """
    if mismatch(store, key, batch, heads, dim) is not None:
        return False
    if isinstance(store, DenseFormat):
        return True
    if not store.by_token:
        return key or store.groups_per_page <= 1
    plain = store.lane_channel is None and store.plane_weight is None
    return len(store.planes) == 1 and plain and (key or store.mean is None)


def _describe(part: Any, batch: int, heads: int, dim: int, value_dim: int) -> _Known:
    """The description of one part, for a step of these sizes. Without keys' digits it has none of keys: their logits
    come from the codec.
    """
    packed, values = part.key.packed, part.value.packed
    known = _known.get(id(packed))
    if known is not None and known.packed[0]() is packed and known.packed[1]() is values:
        return known
    held: list = []
    store = part.value.codec.packed_format(values)
    if store is None or not readable(store, False, batch, heads, value_dim):
        raise Unsupported
    value = describe(store, False, held)
    store = part.key.codec.packed_format(packed)
    if store is not None and not readable(store, True, batch, heads, dim):
        raise Unsupported
    key = None if store is None else describe(store, True, held)
    name = id(packed)
    pair = weakref.ref(packed, lambda _: _known.pop(name, None)), weakref.ref(values)
    _known[name] = known = _Known(pair, key, value, held)
    return known


def attend(
    query: torch.Tensor,
    parts: Sequence,
    dense_key: torch.Tensor,
    dense_value: torch.Tensor,
    bias: torch.Tensor | None,
    scaling: float,
    dense_length: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """``attend`` of :mod:`kvmm.kernels.attention` on the CPU, or None where the reference has to do it: many rows of
    queries, a codec that is not digits, autograd, or no compiler.
    """
    _, query_heads, length, dim = query.shape
    rows = query_heads // dense_key.shape[1] * length
    if rows > MAX_ROWS or dim > MAX_CHANNELS or query.dtype not in FLOATS:
        return None
    if dense_key.dtype not in FLOATS or dense_value.dtype not in FLOATS or query_heads % dense_key.shape[1]:
        return None
    if (torch.is_grad_enabled() and query.requires_grad) or torch.compiler.is_compiling():
        return None
    function = library()
    if function is None:
        return None
    try:
        return _attend(function, query, parts, dense_key, dense_value, bias, scaling, dense_length)
    except Unsupported:
        return None


def _attend(
    function: Any,
    query: torch.Tensor,
    parts: Sequence,
    dense_key: torch.Tensor,
    dense_value: torch.Tensor,
    bias: torch.Tensor | None,
    scaling: float,
    dense_length: torch.Tensor | None,
) -> torch.Tensor:
    batch, query_heads, length, dim = query.shape
    heads, value_dim = dense_key.shape[1], dense_value.shape[-1]
    rows = query_heads // heads * length
    if dense_key.shape != (batch, heads, dense_value.shape[2], dim) or dense_value.shape[:2] != (batch, heads):
        raise Unsupported
    grouped = query.float().reshape(batch, heads, rows, dim).contiguous()
    kept: list = [grouped]
    described = (SEGMENT.ctype * max(1, len(parts)))()
    slots = work = 0
    for number, part in enumerate(parts):
        if part.key.observes:
            raise Unsupported
        known = _describe(part, batch, heads, dim, value_dim)
        packed, codec, own = part.key.packed, part.key.codec, described[number]
        own.value = known.value
        own.slots = count = known.value.pages * known.value.page_size
        if known.key is not None:
            own.key = known.key
        else:
            scores = codec.scores(codec.transform_query(grouped * scaling), packed)
            if codec.adjusts_scores:
                seen = None if bias is None else bias[..., slots : slots + count]
                seen = seen if seen is None or seen.shape[2] == 1 else seen.repeat(1, 1, query_heads // heads, 1)
                scores = codec.adjust_scores(scores, seen)
            kept.append(scores.contiguous())
            own.key = FORMAT.ctype(KINDS["LOGITS"], pages=known.value.pages, page_size=known.value.page_size)
            own.key.values.data = kept[-1].data_ptr()
        if packed.num_pages is not None:
            if known.key is None or codec.adjusts_scores:
                raise Unsupported
            own.used = _length(packed.num_pages)
        slots += count
        work += count * heads * batch * (dim + value_dim)
    out = torch.empty(batch, heads, rows, value_dim)
    call = CALL.ctype(batch, heads, rows, length, dim, value_dim, len(parts), slots, dense_key.shape[2], scaling)
    call.query, call.out = grouped.data_ptr(), out.data_ptr()
    if bias is not None:
        if bias.shape[:3] not in ((b, 1, q) for b in (1, batch) for q in (1, length)):
            raise Unsupported
        if bias.stride(-1) != 1 or bias.dtype != torch.float32 or bias.shape[-1] != slots + dense_key.shape[2]:
            raise Unsupported
        call.bias = bias.data_ptr()
        call.bias_batch = bias.stride(0) if bias.shape[0] > 1 else 0
        call.bias_row = bias.stride(2) if bias.shape[2] > 1 else 0
    call.dense_key, call.dense_value = array(dense_key, 2, kept), array(dense_value, 2, kept)
    call.segments = ctypes.addressof(described)
    if dense_length is not None:
        call.dense_used = _length(dense_length)
    pairs, threads = batch * heads, torch.get_num_threads()
    if threads == 1 or pairs == 1 or work < _SHARED_WORK:
        failed = function(ctypes.byref(call), 0, pairs)
    else:
        edges = [pairs * i // min(threads, pairs) for i in range(min(threads, pairs) + 1)]
        run = _pool(threads).map(lambda i: function(ctypes.byref(call), edges[i], edges[i + 1]), range(len(edges) - 1))
        failed = any(run)
    if failed:
        raise MemoryError("not enough memory for a decode step")
    return out.view(batch, query_heads, length, value_dim).to(query.dtype)


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kvmm-decode")
