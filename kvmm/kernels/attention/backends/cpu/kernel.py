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
from kvmm.kernels.attention.backends.cpu.checks import readable
from kvmm.kernels.attention.format import Dense, Digits

MAX_ROWS = 16  # rows of queries; for more, matrix products over unpacked codes are faster
_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_NOTHING, _DIGITS, _DENSE, _LOGITS = range(4)
_MAX_CHANNELS = 512  # or digits of a plane, that the kernel has room for
_SHARED_WORK = 1 << 22  # codes of a layer from which on several threads share its heads

_lock = threading.Lock()


class _Array(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), *((n, ctypes.c_int64) for n in ("batch", "head", "dtype")))


class _Plane(ctypes.Structure):
    _fields_ = (
        ("codes", ctypes.c_void_p),
        *((n, ctypes.c_int64) for n in ("batch", "head", "bits", "width", "stored")),
    )


class _Side(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_int64) for n in ("kind", "planes", "pages", "page_size", "dim")),
        ("plane", _Plane * 2),
        *(
            (n, ctypes.c_int64)
            for n in (
                *("by_token", "inside", "groups", "channels", "chunks", "boosted", "matrix_width", "columns"),
                "adjusts",
            )
        ),
        ("tau1", ctypes.c_double),
        ("tau2", ctypes.c_double),
        *(
            (n, _Array)
            for n in (
                *("scale", "zero", "norm", "mean", "group_index", "offset", "extra_scale", "extra_zero", "matrix"),
                "values",
            )
        ),
        ("page_group", ctypes.c_void_p),
        ("index", ctypes.c_void_p),
        ("place", ctypes.c_void_p),
    )


class _Part(ctypes.Structure):
    _fields_ = (("key", _Side), ("value", _Side), ("slots", ctypes.c_int64), ("used", ctypes.c_void_p))


class _Call(ctypes.Structure):
    _fields_ = (
        *(
            (n, ctypes.c_int64)
            for n in ("batch", "heads", "rows", "length", "dim", "value_dim", "num_parts", "slots", "dense")
        ),
        ("scaling", ctypes.c_float),
        ("query", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("bias_batch", ctypes.c_int64),
        ("bias_row", ctypes.c_int64),
        ("dense_key", _Array),
        ("dense_value", _Array),
        ("out", ctypes.c_void_p),
        ("dense_used", ctypes.c_void_p),
        ("parts", ctypes.POINTER(_Part)),
    )


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
                function.argtypes = (ctypes.POINTER(_Call), ctypes.c_int64, ctypes.c_int64)
                function.restype = ctypes.c_int
                return function
    return None


def available() -> bool:
    """Whether this machine can compile the kernel, or has."""
    return library() is not None


# -- stores ------------------------------------------------------------------------------------------------------------


class _Unsupported(Exception):
    """The kernel does not take this case."""


@dataclass(frozen=True)
class _Known:
    """What was found out about a part."""

    packed: tuple[weakref.ref, weakref.ref]  # the packed keys and values it was found with
    key: _Side | None
    value: _Side
    held: list  # tensors that are pointed to


_known: dict[int, _Known] = {}  # by the identity of the packed keys, which live as long as their tensors do


def _array(x: torch.Tensor | None, inner: int, held: list) -> _Array:
    """``x`` ``[B, H, ...]`` whose last ``inner`` dimensions follow each other; ``held`` keeps what is pointed to."""
    if x is None or not x.numel():
        return _Array()
    size = 1
    for n, stride in zip(reversed(x.shape[-inner:]), reversed(x.stride()[-inner:]), strict=True):
        if n != 1 and stride != size:
            raise _Unsupported
        size *= n
    held.append(x)
    batch = x.stride(0) if x.dim() == inner + 2 and x.shape[0] > 1 else 0
    head = x.stride(-inner - 1) if x.shape[-inner - 1] > 1 else 0
    return _Array(x.data_ptr(), batch, head, _DTYPES.get(x.dtype, 0))


def _side(store: Digits | Dense, key: bool, held: list) -> _Side:
    if isinstance(store, Dense):
        values = _array(store.values, 3, held)
        return _Side(kind=_DENSE, pages=store.pages, page_size=store.page_size, values=values)
    if not key and store.inside > 1:
        raise _Unsupported
    made = _Side(kind=_DIGITS, pages=store.pages, page_size=store.page_size, planes=len(store.planes))
    for number, plane in enumerate(store.planes):
        codes = _array(plane.codes, 3, held)
        made.plane[number] = _Plane(
            codes.data, codes.batch, codes.head, plane.bits, plane.width, plane.codes.shape[-1 if key else -2]
        )
    made.columns = store.columns
    made.by_token, made.inside = store.by_token, store.inside
    made.scale = _array(store.scale, 3 if store.by_token else 2, held)
    made.zero = _array(store.zero_point, 3 if store.by_token else 2, held)
    made.norm = _array(store.norm, 2, held)
    made.mean = _array(store.mean, 2, held)
    made.group_index = _array(store.group_index, 2, held)
    made.offset = _array(store.offset, 1, held)
    made.matrix = _array(store.matrix, 2, held)
    if store.by_token:
        made.chunks = store.scale.shape[3]
        made.groups = 1 if store.mean is None else store.mean.shape[2]
        made.dim = made.matrix_width if store.mean is None else store.mean.shape[3]
        if not key:
            made.dim = store.planes[0].width
    else:
        made.groups, made.channels = store.zero_point.shape[2], store.scale.shape[3]
        made.dim = store.zero_point.shape[3]
    if store.group_index is not None:
        made.boosted = store.group_index.shape[3]
    if store.matrix is not None:
        made.matrix_width = store.matrix.shape[-1]
    if store.extra is not None:
        made.extra_scale, made.extra_zero = (_array(x[0], 2, held) for x in store.extra)
    for name in ("page_group", "index", "place"):
        x = getattr(store, name)
        if x is not None:
            if x.dtype not in (torch.int32, torch.float32):
                raise _Unsupported
            held.append(x.contiguous())
            setattr(made, name, held[-1].data_ptr())
    if max(made.dim, made.channels, *(plane.width for plane in store.planes)) > _MAX_CHANNELS:
        raise _Unsupported
    return made


def _length(x: torch.Tensor) -> int:
    """Where a length is, int32 ``[1]``: the kernel reads it."""
    if x.dtype != torch.int32:
        raise _Unsupported
    return x.data_ptr()


def _describe(part: Any, batch: int, heads: int, dim: int, value_dim: int) -> _Known:
    """The description of one part, for a step of these sizes. Without keys' digits it has none of keys: their logits
    come from the codec.
    """
    packed, values = part.key.packed, part.value.packed
    known = _known.get(id(packed))
    if known is not None and known.packed[0]() is packed and known.packed[1]() is values:
        return known
    codec, held = part.key.codec, []
    digits = part.value.codec.digits(values)
    if digits is None or not readable(digits, False, batch, heads, value_dim):
        raise _Unsupported
    value = _side(digits, False, held)
    digits = codec.digits(packed)
    if digits is not None and not readable(digits, True, batch, heads, dim):
        raise _Unsupported
    key = None if digits is None else _side(digits, True, held)
    if key is not None and codec.adjusts_scores:
        key.adjusts, key.tau1, key.tau2 = 1, *codec.tau
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
    if rows > MAX_ROWS or dim > _MAX_CHANNELS or query.dtype not in _DTYPES:
        return None
    if dense_key.dtype not in _DTYPES or dense_value.dtype not in _DTYPES or query_heads % dense_key.shape[1]:
        return None
    if (torch.is_grad_enabled() and query.requires_grad) or torch.compiler.is_compiling():
        return None
    function = library()
    if function is None:
        return None
    try:
        return _attend(function, query, parts, dense_key, dense_value, bias, scaling, dense_length)
    except _Unsupported:
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
        raise _Unsupported
    grouped = query.float().reshape(batch, heads, rows, dim).contiguous()
    kept: list = [grouped]
    described = (_Part * max(1, len(parts)))()
    slots = work = 0
    for number, part in enumerate(parts):
        if part.key.observes:
            raise _Unsupported
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
            own.key = _Side(kind=_LOGITS, pages=known.value.pages, page_size=known.value.page_size)
            own.key.values.data = kept[-1].data_ptr()
        if packed.num_pages is not None:
            if known.key is None or codec.adjusts_scores:
                raise _Unsupported
            own.used = _length(packed.num_pages)
        slots += count
        work += count * heads * batch * (dim + value_dim)
    out = torch.empty(batch, heads, rows, value_dim)
    call = _Call(batch, heads, rows, length, dim, value_dim, len(parts), slots, dense_key.shape[2], scaling)
    call.query, call.out = grouped.data_ptr(), out.data_ptr()
    if bias is not None:
        if bias.shape[:3] not in ((b, 1, q) for b in (1, batch) for q in (1, length)):
            raise _Unsupported
        if bias.stride(-1) != 1 or bias.dtype != torch.float32 or bias.shape[-1] != slots + dense_key.shape[2]:
            raise _Unsupported
        call.bias = bias.data_ptr()
        call.bias_batch = bias.stride(0) if bias.shape[0] > 1 else 0
        call.bias_row = bias.stride(2) if bias.shape[2] > 1 else 0
    call.dense_key, call.dense_value = _array(dense_key, 2, kept), _array(dense_value, 2, kept)
    call.parts = described
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
