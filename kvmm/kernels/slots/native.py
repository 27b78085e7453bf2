"""Slots on a CPU in C, where the machine has a compiler: writing tokens, and attention of a few new ones a sequence."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from kvmm.kernels import build
from kvmm.kernels.attention.backends.cpu.structs import DTYPES, dtypes_text
from kvmm.kernels.attention.structs import FLOAT, INT64, Member, Struct, header, pointer
from kvmm.kernels.slots.format import SlotFormat, SlotSide
from kvmm.kernels.threads import in_parts

HEADER = "slots.h"
MAX_NEW = 8  # new tokens of a sequence; for more, matrix products over unpacked codes are faster
_SHARED_WORK = 1 << 20  # values read from which on several threads share the heads
_FLOATS = ("forward", "inverse", "inverse_turned", "offset", "zero_point", "steps")

SIDE = Struct(
    "side_t",
    (
        *(Member(name, pointer("const float")) for name in _FLOATS),
        Member("widths", pointer("const int32_t"), "[C]"),
        *(Member(name, INT64) for name in ("coded", "paired", "code_bytes", "has_norm")),
    ),
    "kvmm.kernels.slots.format.SlotSide; forward is transposed, and inverse_turned is inverse transposed.",
)
CACHE = Struct(
    "slot_cache_t",
    (
        Member("key", SIDE),
        Member("value", SIDE),
        *(
            Member(name, INT64)
            for name in ("heads", "dim", "block_size", "dtype", "itemsize", "num_blocks", "value_start")
        ),
        *(Member(name, INT64, "in bytes") for name in ("block_stride", "head_stride", "slot_stride")),
        Member("data", pointer("uint8_t")),
    ),
    "A layer's cache, and what its bytes mean.",
)
WRITE = Struct(
    "slot_write_t",
    (
        Member("cache", pointer("const slot_cache_t")),
        *(Member(name, pointer("const void"), "[T, H, D]") for name in ("key", "value")),
        Member("slots", pointer("const int64_t"), "[T], negative ones of which are not written"),
    ),
    "New tokens and where they go.",
)
CALL = Struct(
    "slot_call_t",
    (
        Member("cache", pointer("const slot_cache_t")),
        *(Member(name, pointer("const int32_t"), "[rows]") for name in ("sequence", "token", "first", "past")),
        Member("blocks", pointer("const int32_t"), "[sequences, m]"),
        Member("blocks_stride", INT64),
        Member("query_heads", INT64),
        Member("scaling", FLOAT),
        Member("query", pointer("const void"), "[T, H_q, D]"),
        Member("key", pointer("const void"), "[T, H, D]"),
        Member("value", pointer("const void"), "[T, H, D]"),
        Member("out", pointer("float"), "[rows, H_q, D]"),
    ),
    "Attention of some new tokens, one a row.",
)


def headers() -> dict[str, str]:
    """What the C file includes."""
    text = "\n".join(("#include <stddef.h>", "#include <stdint.h>", dtypes_text(), header(CACHE, WRITE, CALL)))
    return {HEADER: text, **build.vectors_header()}


SOURCE = build.Source("slots", Path(__file__).with_name("slots.c"), headers)


@dataclass(frozen=True)
class _Library:
    write: Any
    attend: Any


@lru_cache(maxsize=1)
def library() -> _Library | None:
    """The compiled functions, or None where there is no compiler or it fails."""
    found = build.first_loaded(SOURCE)
    return None if found is None else functions(found)


def functions(found: ctypes.CDLL) -> _Library:
    """The functions of a loaded library."""
    write, attend, number, address = found.kvmm_write_slots, found.kvmm_attend_slots, ctypes.c_int64, ctypes.c_void_p
    write.argtypes = attend.argtypes = (address, number, number)
    write.restype = attend.restype = ctypes.c_int
    return _Library(write, attend)


@dataclass
class Rows:
    """New tokens whose attention is asked for, int32 ``[rows]`` each: the ``sequence`` (a row of the block table), the
    ``token`` of the call, the ``first`` new token of its sequence, and how many tokens the sequence has in slots."""

    sequence: torch.Tensor
    token: torch.Tensor
    first: torch.Tensor
    past: torch.Tensor
    read: int  # tokens in slots, of all rows

    @classmethod
    def of(cls, starts: list[int], lengths: list[int]) -> Rows | None:
        """Those of all sequences with at most ``MAX_NEW`` new tokens, or None.

        Args:
            starts: the first new token of each sequence and, at the end, their number.
            lengths: tokens of each sequence, the new ones included.
        """
        found = []
        for sequence, length in enumerate(lengths):
            start, stop = starts[sequence], starts[sequence + 1]
            if 0 < stop - start <= MAX_NEW:
                found += [(sequence, token, start, length - (stop - start)) for token in range(start, stop)]
        if not found:
            return None
        columns = torch.tensor(found, dtype=torch.int32).T.contiguous()
        return cls(*columns, read=int(columns[3].sum()))


class NativeSlots:
    """A layer's slots in C.

    Args:
        form: of the slots, on a CPU.
    """

    def __init__(self, form: SlotFormat):
        self.form = form
        self._tensors: list[torch.Tensor] = []
        self._cache = CACHE.ctype(self._side(form.key), self._side(form.value))
        cache = self._cache
        cache.heads, cache.dim, cache.block_size = form.key.heads, form.key.dim, form.block_size
        cache.dtype, cache.itemsize, cache.value_start = DTYPES[form.dtype], form.dtype.itemsize, form.starts[1]

    def _side(self, side: SlotSide) -> Any:
        given = {"forward": side.forward.mT, "inverse": side.inverse, "inverse_turned": side.inverse.mT}
        given |= {name: getattr(side, name) for name in ("offset", "zero_point", "steps")}
        tensors = {name: x.float().contiguous() for name, x in given.items()} | {"widths": side.widths.int()}
        self._tensors += tensors.values()
        pointers = {name: x.data_ptr() for name, x in tensors.items()}
        numbers = {"coded": side.coded, "paired": side.paired, "code_bytes": side.code_bytes, "has_norm": side.norm}
        return SIDE.ctype(**pointers, **numbers)

    def takes(self, cache: torch.Tensor, *vectors: torch.Tensor) -> bool:
        """Whether C can read a cache uint8 ``[blocks, H, block_size, nbytes]`` and vectors ``[T, heads, D]``."""
        form = self.form
        shape = (form.key.heads, form.block_size, form.nbytes)
        if cache.device.type != "cpu" or cache.shape[1:] != shape or library() is None:
            return False
        if cache.stride()[2:] != (form.nbytes, 1):
            return False
        return all(x.dtype == form.dtype and x.shape[-1] == form.key.dim for x in vectors)

    def _described(self, cache: torch.Tensor) -> Any:
        found = CACHE.ctype.from_buffer_copy(self._cache)
        found.num_blocks, found.data = cache.shape[0], cache.data_ptr()
        found.block_stride, found.head_stride = cache.stride()[:2]
        found.slot_stride = self.form.stride
        return found

    def write(self, cache: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """As :func:`kvmm.kernels.slots.reference.write`.

        Raises:
            IndexError: the cache has no such slot.
        """
        key, value, slots = key.contiguous(), value.contiguous(), slots.long().contiguous()
        described = self._described(cache)
        call = WRITE.ctype(ctypes.addressof(described), key.data_ptr(), value.data_ptr(), slots.data_ptr())
        _shared(library().write, call, len(slots), key.numel() * self.form.key.dim)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        blocks: torch.Tensor,
        rows: Rows,
        scaling: float,
    ) -> torch.Tensor:
        """Causal attention of new tokens over their sequences' slots and new tokens.

        Args:
            query: ``[T, H_q, D]`` of all tokens of the call.
            key, value: ``[T, H, D]``.
            cache: uint8 ``[blocks, H, block_size, nbytes]``.
            blocks: int32 ``[sequences, m]``, those of each sequence in order.
            rows: the tokens that are wanted.
            scaling: of scores.

        Returns:
            float32 ``[rows, H_q, D]``.

        Raises:
            IndexError: the cache has no such block.
        """
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        blocks = blocks.int().contiguous()
        out = torch.empty(len(rows.token), *query.shape[1:])
        call = CALL.ctype(None, *(x.data_ptr() for x in (rows.sequence, rows.token, rows.first, rows.past)))
        call.blocks, call.blocks_stride = blocks.data_ptr(), blocks.stride(0)
        call.query_heads, call.scaling = query.shape[1], scaling
        call.query, call.key, call.value, call.out = (x.data_ptr() for x in (query, key, value, out))
        described = self._described(cache)
        call.cache = ctypes.addressof(described)
        work = rows.read * query.shape[1] * query.shape[2]
        _shared(library().attend, call, len(rows.token) * self.form.key.heads, work)
        return out


def _shared(function: Any, call: ctypes.Structure, count: int, work: int) -> None:
    """Have threads call a function of the library, if there is enough work for them."""
    failed = in_parts(function, call, count, None if work >= _SHARED_WORK else count)
    if failed == 1:
        raise MemoryError("not enough memory for attention over slots")
    if failed:
        raise IndexError("the cache has no such block")


__all__ = ["MAX_NEW", "SOURCE", "NativeSlots", "Rows", "library"]
