"""Slots on a GPU in Triton: writing tokens, attention of a few new ones a sequence, and decoding for prompts.

Nothing is read by the host and grids depend on shapes alone, so all of it can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from triton import next_power_of_2
from triton.runtime.interpreter import InterpretedFunction

from kvmm.errors import KVMMError
from kvmm.kernels.slots.attend_kernels import attend_kernel, expand_kernel, merge_kernel, output_kernel
from kvmm.kernels.slots.bits import SideBits
from kvmm.kernels.slots.format import SlotFormat, SlotSide
from kvmm.kernels.slots.write_kernels import decode_kernel, write_kernel

MAX_ROWS = 32  # new tokens of a sequence times query heads of a KV head
_LOG2E = math.log2(math.e)
_COLUMN_BLOCK = 64  # columns of a program that expands queries, and of a step of the output
_FEW_SPLITS = 8  # which the output's kernel merges itself
_MAX_SPLITS = 128
_SMALL_WRITE = 1024  # tokens that are written in smaller tiles


class Tuning(NamedTuple):
    """Of the kernel that reads slots.

    Attributes:
        tile: tokens that a program reads at once, a power of two from 16 on.
        programs: per multiprocessor that splits are made for.
        registers: a thread may have, or None: as many as it takes.
        stages: of the pipeline of loads.
    """

    tile: int = 64
    programs: int = 8
    registers: int | None = None
    stages: int = 2


def interpreted() -> bool:
    """Whether the kernels run under Triton's interpreter."""
    return isinstance(attend_kernel, InterpretedFunction)


@lru_cache(maxsize=16)
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@dataclass
class _Memory:
    """A cache as kernels see it: one memory in three dtypes, and the strides of blocks and heads in each."""

    data: torch.Tensor
    words: torch.Tensor
    exact: torch.Tensor

    @property
    def word_strides(self) -> tuple[int, int]:
        return self.words.stride()[:2]

    @property
    def exact_strides(self) -> tuple[int, int]:
        return self.exact.stride()[:2]


def _levels(side: SlotSide) -> tuple[torch.Tensor, torch.Tensor]:
    """``LEVELS`` and ``BITS`` of ``write_kernel``: channels without codes have one level, their zero point."""
    missing = (0, side.dim - side.coded)
    steps = torch.nn.functional.pad(side.steps.float(), missing, value=1.0)
    most = torch.nn.functional.pad(2.0**side.widths - 1, missing).expand(side.heads, -1)
    levels = torch.stack([side.offset.float(), side.zero_point.float(), steps, most], 1)
    odd, pairs = side.widths % 2, side.widths // 2 * 2
    rows = (pairs, pairs.cumsum(0) - pairs, side.paired + odd.cumsum(0) - odd)
    return levels.contiguous(), torch.stack([torch.nn.functional.pad(x, missing) for x in rows]).int().contiguous()


class TritonSlots:
    """A layer's slots in Triton. Makes matrices of its own, so make one a layer and keep it.

    Args:
        form: of the slots, on the device of the cache; blocks are a power of two and at least 16 tokens.
        tuning: of attention.

    Raises:
        ValueError: for blocks of another size.
    """

    def __init__(self, form: SlotFormat, tuning: Tuning | None = None):
        if form.block_size < 16 or form.block_size & (form.block_size - 1):
            raise ValueError(f"blocks of {form.block_size} tokens, not of a power of two from 16 on")
        self.form, self.tuning = form, tuning or Tuning()
        key, value = SideBits(form.key, 0), SideBits(form.value, form.starts[1])
        self._key, self._value = key.layout, value.layout
        self._forwards = [(side.forward.mT.float().contiguous(), *_levels(side)) for side in (form.key, form.value)]
        self._query = key.query_matrices()
        self._output = value.output_matrix(_COLUMN_BLOCK)
        self._vectors = (*key.vector_matrices(), *value.vector_matrices())
        start = form.block_size * form.stride
        self._layout = {
            "K": self._key,
            "V": self._value,
            "EXACT_START": start // form.dtype.itemsize,
            "BLOCK": form.block_size,
        }
        self._regions = dict(zip(("KP", "KS", "VP", "VS"), (*key.regions, *value.regions), strict=True))

    def takes(self, cache: torch.Tensor, *vectors: torch.Tensor) -> bool:
        """Whether the kernels can read what is laid out like this cache, uint8 ``[blocks, H, block_size, nbytes]``, and
        these vectors ``[T, heads, D]``, on a device that Triton has."""
        form = self.form
        shape = (form.key.heads, form.block_size, form.nbytes)
        if cache.dtype != torch.uint8 or cache.shape[1:] != shape or cache.stride()[2:] != (form.nbytes, 1):
            return False
        if any(x % 4 for x in cache.stride()[:2]):
            return False
        return all(x.dtype == form.dtype and x.shape[-1] == form.key.dim for x in vectors)

    def _memory(self, cache: torch.Tensor) -> _Memory:
        flat = cache.view(*cache.shape[:2], -1)
        return _Memory(flat, flat.view(torch.int16), flat.view(self.form.dtype))

    def write(self, cache: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put tokens into their slots.

        Args:
            cache: uint8 ``[blocks, H, block_size, nbytes]``.
            slots: int64 or int32 ``[T]``, ``block * block_size + place``; negative ones are not written.
            key, value: ``[T, H, D]`` in the format's dtype; rows after ``T`` are left alone.
        """
        tokens, heads = slots.shape[0], self.form.key.heads
        if not tokens:
            return
        memory, key, value = self._memory(cache), _rows(key), _rows(value)
        block = 16 if tokens <= _SMALL_WRITE or self._key.padded_dim > 128 else 32
        write_kernel[-(-tokens // block), heads, 2](
            memory.data, memory.exact, slots.contiguous(), key, value, *self._forwards[0], *self._forwards[1],
            tokens, *memory.data.stride()[:2], *memory.exact_strides, *key.stride()[:2], *value.stride()[:2],
            **self._layout, STRIDE=self.form.stride, T=block, B=64, num_warps=4,
        )  # fmt: skip

    def splits(self, batch: int, blocks: int, device: torch.device) -> int:
        """Splits of every sequence that give all multiprocessors work, for so many sequences and blocks of each."""
        wanted = _multiprocessors(device) * self.tuning.programs // max(1, batch * self.form.key.heads)
        return max(1, min(wanted, blocks, _MAX_SPLITS))

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        scaling: float,
        out: torch.Tensor,
        splits: int | None = None,
    ) -> torch.Tensor:
        """Causal attention of new tokens over their sequences' slots and themselves.

        Args:
            query: ``[B * n, H_q, D]``, ``n`` new tokens of every sequence one after the other.
            key, value: ``[B * n, H, D]`` of the new tokens, which are read exactly, whatever their slots hold.
            cache: uint8 ``[blocks, H, block_size, nbytes]``.
            block_table: int32 ``[B, m]``, the blocks of each sequence in order.
            seq_lens: int32 ``[B]``, tokens with the new ones; 0 for a row without a sequence, whose output is 0.
            scaling: of scores.
            out: ``[B * n, H_q, D]``, any floating dtype, written.
            splits: of every sequence; default :meth:`splits`.

        Raises:
            ValueError: more new tokens, or query heads of a KV head, than the kernels take.
        """
        form, batch = self.form, block_table.shape[0]
        heads, dim = form.key.heads, form.key.dim
        new, groups = query.shape[0] // batch, query.shape[1] // heads
        rows = new * groups
        if new > 16 or rows > MAX_ROWS:
            raise ValueError(f"{new} new tokens of {groups} query heads a KV head; {MAX_ROWS} rows at most")
        query, key, value, memory = _rows(query), _rows(key), _rows(value), self._memory(cache)
        splits = splits or self.splits(batch, block_table.shape[1], cache.device)
        columns, shape = self._value.columns, {"NEW": new, "R": groups}

        def empty(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(size, device=cache.device, dtype=dtype)

        weights = empty(batch, heads, self._key.columns, rows, dtype=torch.float16)
        line = empty(batch, heads, 2, rows)
        row_blocks = -(-batch * rows // 16)
        expand_kernel[heads, row_blocks, -(-self._key.columns // _COLUMN_BLOCK)](
            query, *self._query, weights, line, batch, heads, *query.stride()[:2], scaling * _LOG2E,
            COLUMNS=self._key.columns, D=dim, DP=self._key.padded_dim, CB=_COLUMN_BLOCK, **shape, num_warps=4,
        )  # fmt: skip
        state = [empty(batch, heads, splits, 2, rows) for _ in range(2)]
        state.append(empty(batch, heads, splits, columns + 1 + dim, rows))
        padded, tuning = max(8, next_power_of_2(rows)), self.tuning
        limit = {} if tuning.registers is None else {"maxnreg": tuning.registers}
        attend_kernel[splits, heads, batch](
            memory.words, memory.exact, weights, line, query, key, value, block_table, seq_lens, *state,
            *memory.word_strides, *memory.exact_strides, block_table.stride(0), *query.stride()[:2], *key.stride()[:2],
            *value.stride()[:2], heads, splits, scaling * _LOG2E, **self._layout, **self._regions,
            STRIDE=form.stride // 2,
            T=min(form.block_size, tuning.tile), RP=padded, ASM=not interpreted(), **shape,
            num_warps=self._warps(padded), num_stages=tuning.stages, **limit,
        )  # fmt: skip
        if splits > _FEW_SPLITS:
            merged = [empty(batch, heads, 2, rows) for _ in range(2)]
            merged.append(empty(batch, heads, columns + 1 + dim, rows))
            size = (columns + 1 + dim) * rows
            merge_kernel[batch * heads, -(-size // 128)](
                *state, *merged, splits, COLUMNS=columns, D=dim, NR=rows, F=128, num_warps=4
            )
            state, splits = merged, 1
        channels = min(64, self._key.padded_dim)
        output_kernel[heads, row_blocks, -(-dim // channels)](
            *state, self._output, out, batch, heads, splits, *out.stride()[:2],
            COLUMNS=columns, ROWS=self._output.shape[1], D=dim, CB=_COLUMN_BLOCK, DB=channels, **shape, num_warps=4,
        )  # fmt: skip
        return out

    def _warps(self, rows: int) -> int:
        """Warps of a program of attention; one has the sums of 16 words and 8 rows in its registers."""
        width = max(region.width for region in self._regions.values())
        return min(8, width // 16 * max(1, rows // 16))

    def decode(
        self,
        cache: torch.Tensor,
        block_table: torch.Tensor,
        lengths: torch.Tensor,
        starts: torch.Tensor,
        out_key: torch.Tensor,
        out_value: torch.Tensor,
        max_length: int,
    ) -> None:
        """Decode the first tokens of sequences, the first of each block exactly.

        Args:
            cache: uint8 ``[blocks, H, block_size, nbytes]``.
            block_table: int32 ``[B, m]``.
            lengths: int32 ``[B]``, tokens of each sequence.
            starts: int32 ``[B]``, rows of the output where each begins.
            out_key, out_value: ``[rows, H, D]``, any floating dtype, written.
            max_length: none of the lengths is larger.
        """
        tile = min(self.form.block_size, 64)
        if not max_length or not len(block_table):
            return
        memory = self._memory(cache)
        decode_kernel[-(-max_length // tile), self.form.key.heads, len(block_table)](
            memory.words, memory.exact, block_table, lengths, starts, out_key, out_value, *self._vectors,
            *memory.word_strides, *memory.exact_strides, block_table.stride(0), *out_key.stride()[:2],
            *out_value.stride()[:2], **self._layout, **self._regions, STRIDE=self.form.stride // 2, T=tile,
            ASM=not interpreted(), num_warps=4,
        )  # fmt: skip

    def warm_up(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        scaling: float,
        out: torch.Tensor,
    ) -> None:
        """Compile the kernels of one new token per sequence for tensors laid out as these; none of them changes.

        Triton compiles a kernel when it first meets dtypes, and strides that are or are not multiples of 16.

        Args:
            query, out: ``[T, H_q, D]``, one token at least.
            key, value: ``[T, H, D]``.
            cache: uint8 ``[blocks, H, block_size, nbytes]``.
            scaling: of scores.

        Raises:
            KVMMError: for a cache or vectors that the kernels cannot read.
        """
        if not self.takes(cache, query, key, value):
            raise KVMMError(
                f"A cache {cache.dtype} {tuple(cache.shape)} with strides {cache.stride()}, and vectors of "
                f"{query.dtype}, {key.dtype} and {value.dtype}, are not those of slots of {self.form.nbytes} bytes and "
                f"{self.form.dtype}."
            )
        device = cache.device
        for tokens in (1, _SMALL_WRITE + 1):
            self.write(cache, torch.full((tokens,), -1, device=device), key, value)  # -1: no row is read or written
        table = torch.zeros(1, 1, device=device, dtype=torch.int32)
        lengths, out = table[0], torch.empty_like(out[:1])
        for splits in (1, _FEW_SPLITS + 1):
            self.attend(query[:1], key[:1], value[:1], cache, table, lengths, scaling, out, splits)
        keys, values = (x.new_empty(1, *x.shape[1:]) for x in (key, value))
        self.decode(cache, table, lengths, lengths, keys, values, 1)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


__all__ = ["MAX_ROWS", "TritonSlots", "Tuning", "interpreted"]
