"""Attention of a prompt by C: of bfloat16 for processors with dot products of its pairs (AVX512_BF16), of float32 for
those with vectors of 256 bits (AVX2 with FMA).

torch's own attention multiplies bfloat16 fast only where a processor has a matrix unit (AMX), and where a causal prompt
goes on it reads all keys, those after a query too. The library is compiled once a machine (:mod:`kvmm.kernels.build`).
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from kvmm.kernels import build
from kvmm.kernels.threads import in_parts

_FOLDER = Path(__file__).parent
_ALGORITHM = "flash.h"
_NUMBERS = {torch.float32: 0, torch.bfloat16: 2}  # as attention.c counts dtypes


def _headers() -> dict[str, str]:
    return build.vectors_header() | {_ALGORITHM: (_FOLDER / _ALGORITHM).read_text(encoding="utf-8")}


SOURCE = build.Source("prompt", _FOLDER / "attention.c", _headers)
DIMS = (32, 64, 80, 96, 128)
FEWEST = 64  # queries: for fewer, bringing keys into order is not worth it
_Steps = ctypes.c_int64 * 3


class _Call(ctypes.Structure):
    """``Call`` of ``attention.c``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "out", "keys", "values")),
        *((name, ctypes.c_int64) for name in ("dtype", "batch", "heads", "kv_heads", "queries", "tokens", "dim")),
        *((name, _Steps) for name in ("query_steps", "key_steps", "value_steps")),
        ("causal", ctypes.c_int64),
        ("scale", ctypes.c_double),
    ]


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled library, or None where there is no compiler, or nothing to gain from one."""
    if _has_matrix_unit():
        return None
    found = build.first_loaded(SOURCE)
    return None if found is None else functions(found)


def functions(found: ctypes.CDLL) -> Any:
    """A loaded library that knows what its functions take, or None if it multiplies nothing on this processor."""
    for function in (found.kvmm_prompt_order, found.kvmm_prompt_attend):
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64), ctypes.c_int
    found.kvmm_prompt_parts.argtypes, found.kvmm_prompt_parts.restype = (ctypes.c_void_p,), ctypes.c_int64
    found.kvmm_prompt_takes.argtypes = (ctypes.c_int64,)
    found.kvmm_prompt_block.restype = ctypes.c_int64
    return found if any(map(found.kvmm_prompt_takes, _NUMBERS.values())) else None


def dtypes() -> tuple[torch.dtype, ...]:
    """What the library multiplies on this processor; nothing where there is none."""
    found = library()
    return () if found is None else tuple(dtype for dtype, n in _NUMBERS.items() if found.kvmm_prompt_takes(n))


def _has_matrix_unit() -> bool:
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())


def takes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool) -> bool:
    """Whether the library takes a call; arguments as of :func:`kvmm.kernels.prompt_attention.prompt_attention`."""
    if any(x.device.type != "cpu" or x.dtype != query.dtype or x.dim() != 4 for x in (query, key, value)):
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        return False
    if torch.is_autocast_enabled("cpu"):  # SDPA would answer in autocast's dtype
        return False
    if query.shape[2] < FEWEST or query.shape[3] not in DIMS or any(x.stride(3) != 1 for x in (query, key, value)):
        return False
    same = key.shape == value.shape and key.shape[0] == query.shape[0] and key.shape[3] == query.shape[3]
    if not same or query.shape[1] % key.shape[1] or key.shape[2] < (query.shape[2] if causal else 1):
        return False
    return not torch.compiler.is_compiling() and query.dtype in dtypes()


def prompt_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, causal: bool
) -> torch.Tensor:
    """See :func:`kvmm.kernels.prompt_attention.prompt_attention`; for what :func:`takes` accepts."""
    kernels, (batch, heads, queries, dim) = library(), query.shape
    kv_heads, tokens = key.shape[1:3]
    block = kernels.kvmm_prompt_block()
    room = batch * kv_heads * (-(-tokens // block) * block) * dim
    keys, values = (torch.empty(room, dtype=query.dtype) for _ in range(2))
    out = torch.empty(batch, queries, heads, dim, dtype=query.dtype)
    call = _Call(
        *(x.data_ptr() for x in (query, key, value, out, keys, values)),
        *(_NUMBERS[query.dtype], batch, heads, kv_heads, queries, tokens, dim),
        *(_Steps(*x.stride()[:3]) for x in (query, key, value)),
        int(causal),
        scaling,
    )
    in_parts(kernels.kvmm_prompt_order, call, batch * kv_heads, 1)
    # one block of queries after the other: later ones of a causal prompt take longer
    in_parts(kernels.kvmm_prompt_attend, call, kernels.kvmm_prompt_parts(ctypes.byref(call)), 1)
    return out
