"""Model weights as entropy-coded levels: a step for each row, Huffman codes as long as a level is rare.

A row of a matrix has a float16 step, a share of the root mean square of its values; the values are `round(w / step)`.
Most weights lie near zero, so levels of equal distance in codes of their own lengths take fewer bits than any other
levels of the same error (at high rates a quarter of a bit above the bound for every source; Gish and Pierce, 1968,
"Asymptotically efficient quantizing"), and no range has to hold a row's largest value. The codes are DEFLATE's without
its matches (RFC 1951), which Python reads everywhere.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

CODED = ".coded"
STEPS, COLUMNS = ".steps", ".columns"
CODED_SIDE = (STEPS, COLUMNS)  # beside the codes of a matrix
_TOP = 127  # largest level; a row with a larger one gets a coarser step
_LEAST_STEP = 2.0**-24  # of float16


def quantize_rows(weight: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Levels of a matrix, with steps of `share` of the root mean square of a row.

    Args:
        weight: `[rows, columns]`, any float dtype. share: above 0, such as 0.08.

    Returns:
        levels float32 `[rows, columns]`, whole numbers from -127 to 127; steps float16 `[rows, 1]`.

    Raises:
        ValueError: `share` is not above 0, or `weight` is no matrix.
    """
    if share <= 0 or weight.ndim != 2:
        raise ValueError(f"{tuple(weight.shape)} cannot be coded in steps of {share} of a row's root mean square")
    w = weight.float()
    wanted = share * w.square().mean(1, keepdim=True).sqrt()
    # float16 rounds the step, by 2**-11 at most, which must not take the largest value beyond the last level
    steps = torch.maximum(wanted, w.abs().amax(1, keepdim=True) / (_TOP + 0.4)).clamp_min(_LEAST_STEP).half()
    return (w / steps.float()).round().clamp(-_TOP, _TOP), steps


def dequantize_rows(levels: Tensor, steps: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """`[rows, columns]` of :func:`quantize_rows`' result; `levels` in any dtype."""
    return levels.float().mul_(steps.float()).to(dtype)


def code_matrix(weight: Tensor, share: float) -> dict[str, Tensor]:
    """The tensors of one matrix `[rows, columns]` by the suffix of their names: codes, steps, and its columns."""
    levels, steps = quantize_rows(weight, share)
    coder = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    codes = coder.compress(levels.to(torch.int8).numpy()) + coder.flush()
    return {
        CODED: torch.frombuffer(bytearray(codes), dtype=torch.uint8),
        STEPS: steps.squeeze(1),
        COLUMNS: torch.tensor(weight.shape[1]),
    }


def decode_matrix(codes: Tensor, steps: Tensor, columns: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """`[rows, columns]` of :func:`code_matrix`' tensors.

    Raises:
        ValueError: the codes are damaged, or of another number of values.
    """
    wanted = len(steps) * int(columns)
    reader = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        values = reader.decompress(codes.numpy(), wanted + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(values) != wanted:
        raise ValueError(f"{len(values)} values instead of {wanted}")
    levels = torch.frombuffer(bytearray(values), dtype=torch.int8).view(len(steps), -1)
    return dequantize_rows(levels, steps[:, None], dtype)


__all__ = [
    "CODED", "CODED_SIDE", "COLUMNS", "STEPS", "code_matrix", "decode_matrix", "dequantize_rows", "quantize_rows",
]  # fmt: skip
