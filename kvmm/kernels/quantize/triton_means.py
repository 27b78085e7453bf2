"""What the means of units say of a span, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_UNITS, _CHANNELS = 64, 32  # that a program holds at once


@triton.jit(do_not_specialize=["units"])
def means_kernel(
    count, mean, out, units, D: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr
):
    """The mean over all tokens, ``[B * H, D]``, from the tokens ``[B * H, units]`` and means ``[B * H, units, D]`` of
    units; with ``EACH`` that of every unit instead, ``[B * H, units, D]``, and the former where it has no tokens."""
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = channel < D
    number = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK, BLOCK_D], tl.float32)
    for first in range(0, units, BLOCK):
        unit = first + tl.arange(0, BLOCK)
        tokens = tl.load(count + sequence * units + unit, mask=unit < units, other=0.0)
        at = mean + ((sequence * units + unit) * D)[:, None] + channel[None, :]
        number += tokens
        total += tl.load(at, mask=(unit < units)[:, None] & inside[None, :], other=0.0) * tokens[:, None]
    whole = tl.div_rn(tl.sum(total, 0), tl.maximum(tl.sum(number, 0), 1.0))
    if EACH:
        for first in range(0, units, BLOCK):
            unit = first + tl.arange(0, BLOCK)
            tokens = tl.load(count + sequence * units + unit, mask=unit < units, other=0.0)
            at = ((sequence * units + unit) * D)[:, None] + channel[None, :]
            mask = (unit < units)[:, None] & inside[None, :]
            own = tl.load(mean + at, mask=mask, other=0.0)
            tl.store(out + at, tl.where((tokens > 0.0)[:, None], own, whole[None, :]), mask=mask)
    else:
        tl.store(out + sequence * D + channel, whole, mask=inside)


def means_of_units(count: torch.Tensor, mean: torch.Tensor, each: bool) -> torch.Tensor:
    """Of units ``[B, H, U, D]`` with ``count`` ``[B, H, U, 1]`` tokens, float32: the mean of all tokens ``[B, H, D]``;
    with ``each`` those of the units ``[B, H, U, D]``, that of all in place of units without tokens."""
    batch, heads, units, dim = mean.shape
    out = torch.empty_like(mean) if each else mean.new_empty(batch, heads, dim)
    channels = min(_CHANNELS, triton.next_power_of_2(dim))
    means_kernel[batch * heads, -(-dim // channels)](
        count, mean, out, units, D=dim, EACH=each, BLOCK=_UNITS, BLOCK_D=channels
    )
    return out
