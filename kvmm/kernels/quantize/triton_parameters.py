"""Scales and zero points of ranges that lie in memory, in one launch, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvmm.kernels.quantize.triton import range_parameters

_BLOCK = 1024


@triton.jit(do_not_specialize=["count"])
def parameters_kernel(
    low, high, bits, scale, zero_point, count, limit, highest, INTEGER: tl.constexpr, BLOCK: tl.constexpr
):
    """Of ``count`` ranges, for codes of 0 to ``highest``, or of ``bits`` float32 each (None: all alike)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    if bits is not None:
        width = tl.load(bits + at, mask=inside, other=1.0)
        levels = tl.floor(tl.exp2(width) + 0.5) - 1.0
    else:
        levels = highest
    smallest = tl.load(low + at, mask=inside, other=0.0)
    largest = tl.load(high + at, mask=inside, other=0.0)
    step, start = range_parameters(smallest, largest, limit, levels, scale, zero_point, INTEGER)
    tl.store(scale + at, step, mask=inside)
    tl.store(zero_point + at, start, mask=inside)


def launch(
    low: torch.Tensor,
    high: torch.Tensor,
    bits: int | torch.Tensor,
    dtype: torch.dtype,
    integer_zero: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`kvmm.kernels.quantize.reference.affine_parameters` of float32 ranges ``[..., n]``; ``bits`` float32 of
    their shape, or a number."""
    scale, zero_point = (torch.empty(low.shape, dtype=dtype, device=low.device) for _ in range(2))
    of_each = isinstance(bits, torch.Tensor)
    if count := low.numel():
        parameters_kernel[(-(-count // _BLOCK),)](
            low.contiguous(),
            high.contiguous(),
            bits.contiguous() if of_each else None,
            scale,
            zero_point,
            count,
            torch.finfo(dtype).max,
            0.0 if of_each else 2.0**bits - 1.0,
            INTEGER=integer_zero,
            BLOCK=_BLOCK,
        )
    return scale, zero_point
