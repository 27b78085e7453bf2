"""Tensors with more rows: several in one launch, in Triton."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import torch
import triton
import triton.language as tl

_TENSORS = 6  # of a launch
_BLOCK = 2048
_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))
_NUMBERS = ("used", "rows", "source_stride", "target_stride", "fill")


@triton.jit
def _grow(source, target, used, rows, source_stride, target_stride, fill, BLOCK: tl.constexpr):
    """The first ``used`` of ``rows`` words of a sequence and head from ``source``, ``fill`` behind them."""
    if target is not None:
        first = tl.program_id(0).to(tl.int64) * BLOCK
        if first < rows:
            sequence = tl.program_id(1).to(tl.int64)
            word = first + tl.arange(0, BLOCK)
            x = tl.full([BLOCK], 0, target.dtype.element_ty) + fill.to(target.dtype.element_ty)
            if source is not None:
                x = tl.where(
                    word < used, tl.load(source + sequence * source_stride + word, mask=word < used, other=0), x
                )
            tl.store(target + sequence * target_stride + word, x, mask=word < rows)


@triton.jit(do_not_specialize=[f"{name}{i}" for i in range(6) for name in _NUMBERS])
def grow_kernel(
    source0, target0, used0, rows0, source_stride0, target_stride0, fill0,
    source1, target1, used1, rows1, source_stride1, target_stride1, fill1,
    source2, target2, used2, rows2, source_stride2, target_stride2, fill2,
    source3, target3, used3, rows3, source_stride3, target_stride3, fill3,
    source4, target4, used4, rows4, source_stride4, target_stride4, fill4,
    source5, target5, used5, rows5, source_stride5, target_stride5, fill5,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Up to six tensors, those whose target is not None; a program has a block of words of one sequence and head."""
    _grow(source0, target0, used0, rows0, source_stride0, target_stride0, fill0, BLOCK)
    _grow(source1, target1, used1, rows1, source_stride1, target_stride1, fill1, BLOCK)
    _grow(source2, target2, used2, rows2, source_stride2, target_stride2, fill2, BLOCK)
    _grow(source3, target3, used3, rows3, source_stride3, target_stride3, fill3, BLOCK)
    _grow(source4, target4, used4, rows4, source_stride4, target_stride4, fill4, BLOCK)
    _grow(source5, target5, used5, rows5, source_stride5, target_stride5, fill5, BLOCK)


def _word(x: torch.Tensor, y: torch.Tensor, fill: int) -> torch.dtype:
    """The widest integer that both ``[B, H, n]`` are made of; that of one element where there is a ``fill``."""
    size = x.element_size()
    found = size if fill else 8
    for tensor in (x, y):
        for count in (tensor.shape[2], tensor.stride(0), tensor.stride(1), tensor.storage_offset()):
            found = gcd(found, count * size)
        found = gcd(found, tensor.untyped_storage().data_ptr())
    return next(dtype for width, dtype in _WORDS if found % width == 0)


def with_rows(tensors: Sequence[tuple[torch.Tensor, int, int]]) -> list[torch.Tensor]:
    """See :func:`kvmm.kernels.append.with_rows`."""
    grown, work = [], []
    for source, rows, fill in tensors:
        target = torch.empty(*source.shape[:2], rows, *source.shape[3:], dtype=source.dtype, device=source.device)
        grown.append(target)
        if not target.numel():
            continue
        flat, whole = source.flatten(2), target.flatten(2)
        if flat.stride(2) != 1 or (flat.shape[0] > 1 and flat.stride(0) != flat.shape[1] * flat.stride(1)):
            flat = flat.contiguous()
        word = _word(flat, whole, fill)
        flat, whole = flat.view(word), whole.view(word)
        sequences, words = whole.shape[0] * whole.shape[1], whole.shape[2]
        empty = not flat.numel()
        numbers = flat.shape[2], words, flat.stride(1), words, fill
        work.append((sequences, words, (None if empty else flat, whole, *numbers)))
    for sequences in {sequences for sequences, *_ in work}:
        alike = [each for each in work if each[0] == sequences]
        for first in range(0, len(alike), _TENSORS):
            some = alike[first : first + _TENSORS]
            arguments = [argument for _, _, each in some for argument in each]
            arguments += [None, None, 0, 0, 0, 0, 0] * (_TENSORS - len(some))
            blocks = -(-max(words for _, words, _ in some) // _BLOCK)
            grow_kernel[blocks, sequences](*arguments, BLOCK=_BLOCK)
    return grown
