"""The smallest of many numbers, in one launch, in Triton.

Numbers that are not negative are ordered as their bits are. A program finds the largest bit pattern that fewer than
``count`` of its row lie below, a bit at a time; that is the last of the smallest. Of those equal to it, it takes the
first ones.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_HELD = 1 << 15  # numbers that a program keeps
_CHUNK = 4096  # that it orders at a time


@triton.jit
def _bits(x, valid, slot, tokens):
    """The bits of the numbers in ``slot``, those of infinity where ``valid`` (uint8, or None) is 0, above those of any
    number behind the last one: int32."""
    inside = slot < tokens
    bits = tl.load(x + slot, mask=inside, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    if valid is not None:
        bits = tl.where(tl.load(valid + slot, mask=inside, other=0) != 0, bits, 0x7F800000)
    return tl.where(inside, bits, 0x7FFFFFFF)


@triton.jit
def _number_below(x, valid, tokens, bound, CHUNK: tl.constexpr):
    """How many numbers have bits below ``bound``."""
    number = tl.zeros([CHUNK], tl.int32)
    for first in range(0, tokens, CHUNK):
        number += (_bits(x, valid, first + tl.arange(0, CHUNK), tokens) < bound).to(tl.int32)
    return tl.sum(number, 0)


@triton.jit(do_not_specialize=["tokens", "count"])
def smallest_kernel(x, valid, out, tokens, count, heads, HELD: tl.constexpr, CHUNK: tl.constexpr):
    """``out`` int64 ``[B * H, count]`` of ``x`` ``[B * H, tokens]``; with ``HELD`` a row is at most so many numbers, 0
    for rows of any length."""
    sequence = tl.program_id(0).to(tl.int64)
    x += sequence * tokens
    if valid is not None:
        valid += sequence // heads * tokens
    bound = tl.program_id(0) * 0
    if HELD:
        held = _bits(x, valid, tl.arange(0, HELD), tokens)
        for i in range(31):
            higher = bound | (1 << (30 - i))
            bound = tl.where(tl.sum((held < higher).to(tl.int32), 0) < count, higher, bound)
        below = tl.sum((held < bound).to(tl.int32), 0)
    else:
        for i in range(31):
            higher = bound | (1 << (30 - i))
            bound = tl.where(_number_below(x, valid, tokens, higher, CHUNK) < count, higher, bound)
        below = _number_below(x, valid, tokens, bound, CHUNK)
    equal, found = below, tl.program_id(0) * 0  # ranks among those that are equal go on from those below
    for first in range(0, tokens, CHUNK):
        slot = first + tl.arange(0, CHUNK)
        bits = _bits(x, valid, slot, tokens)
        same = ((bits == bound) & (slot < tokens)).to(tl.int32)
        taken = (bits < bound) | ((same != 0) & (equal + tl.cumsum(same, 0) <= count))
        rank = found + tl.cumsum(taken.to(tl.int32), 0) - 1
        tl.store(out + sequence * count + rank, slot.to(tl.int64), mask=taken)
        equal += tl.sum(same, 0)
        found += tl.sum(taken.to(tl.int32), 0)


def smallest_slots(x: torch.Tensor, count: int, valid: torch.Tensor | None = None) -> torch.Tensor:
    """See :func:`kvmm.kernels.smallest.smallest_slots`."""
    batch, heads, tokens = x.shape
    out = torch.empty(batch, heads, count, dtype=torch.int64, device=x.device)
    if out.numel():
        held = max(1024, triton.next_power_of_2(tokens)) if tokens <= _HELD else 0
        valid = None if valid is None else valid.to(x.device).contiguous().view(torch.uint8)
        smallest_kernel[(batch * heads,)](
            x.contiguous(),
            valid,
            out,
            tokens,
            count,
            heads,
            HELD=held,
            CHUNK=_CHUNK if held == 0 else min(held, _CHUNK),
            num_warps=32 if held in (0, _HELD) else max(4, held // 1024),
        )
    return out
