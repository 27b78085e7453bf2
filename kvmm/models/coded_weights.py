"""Model weights as entropy-coded levels: a step for each row, Huffman codes as long as a level is rare.

A row of a matrix has a bfloat16 step, a share of the root mean square of its values; the values are `round(w / step)`.
Most weights lie near zero, so levels of equal distance in codes of their own lengths take fewer bits than any other
levels of the same error (at high rates a quarter of a bit above the bound for every source; Gish and Pierce, 1968,
"Asymptotically efficient quantizing"), and a row's largest value does not make its steps longer. The codes are
DEFLATE's without its matches (RFC 1951) in a container with a checksum (RFC 1950), which Python reads everywhere.
Levels beyond eight bits are rare: their upper bytes, mostly zeros, are in a plane of their own, with matches.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

CODED = ".coded"
STEPS, COLUMNS, _UPPER = ".steps", ".columns", ".upper"
CODED_SIDE = (STEPS, COLUMNS, _UPPER)  # beside the codes of a matrix
_TOP = 2**15 - 1  # largest level; a row with a larger one gets a longer step
_LEAST_STEP = 2.0**-100  # of rows of zeros
_MOST_COLUMNS = 2**24


def quantize_rows(weight: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Levels of a matrix, with steps of `share` of the root mean square of a row.

    Args:
        weight: `[rows, columns]`, any float dtype. share: above 0, such as 0.08.

    Returns:
        levels float32 `[rows, columns]`, whole numbers within 32767; steps bfloat16 `[rows, 1]`.

    Raises:
        ValueError: `share` is not above 0, or `weight` is no matrix.
    """
    if not 0 < share < math.inf or weight.ndim != 2:
        raise ValueError(f"{tuple(weight.shape)} cannot be coded in steps of {share} of a row's root mean square")
    w = weight.float()
    wanted = share * w.square().mean(1, keepdim=True).sqrt()
    steps = torch.maximum(wanted, w.abs().amax(1, keepdim=True) / (0.99 * _TOP)).clamp_min(_LEAST_STEP).bfloat16()
    return (w / steps.float()).round(), steps


def dequantize_rows(levels: Tensor, steps: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """`[rows, columns]` of :func:`quantize_rows`' result; `levels` in any dtype."""
    return (levels * steps.float()).to(dtype)


def code_matrix(weight: Tensor, share: float) -> dict[str, Tensor]:
    """The tensors of one matrix `[rows, columns]` by the suffix of their names.

    Raises:
        ValueError: a weight is not finite, or see :func:`quantize_rows`.
    """
    levels, steps = quantize_rows(weight, share)
    if not (weight.isfinite().all() and steps.isfinite().all()):
        raise ValueError("a weight is not finite, or too large")
    levels = levels.to(torch.int32)
    folded = torch.where(levels < 0, -2 * levels - 1, 2 * levels)  # 0, -1, 1, -2 ...: 0, 1, 2, 3 ...
    upper = folded >> 8
    parts = {
        CODED: _deflated(folded & 255, zlib.Z_HUFFMAN_ONLY),
        STEPS: steps.squeeze(1),
        COLUMNS: torch.tensor(weight.shape[1]),
    }
    return parts | ({_UPPER: _deflated(upper, zlib.Z_DEFAULT_STRATEGY)} if upper.any() else {})


def decode_matrix(parts: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
    """`[rows, columns]` of :func:`code_matrix`' tensors.

    Raises:
        KeyError: a part is missing.
        ValueError: a part is damaged, or of another number of values.
    """
    codes, steps, columns = parts[CODED], parts[STEPS], parts[COLUMNS]
    if (steps.dtype, steps.ndim, columns.dtype, columns.ndim) != (torch.bfloat16, 1, torch.int64, 0):
        raise ValueError("steps or columns are of another type")
    count = len(steps) * int(columns)
    # a code has a bit at least
    if not (0 <= columns <= _MOST_COLUMNS and count <= 8 * codes.numel()):
        raise ValueError(f"{count} values in {codes.numel()} bytes")
    folded = _inflated(codes, count)
    if _UPPER in parts:
        folded = folded.to(torch.int32) | _inflated(parts[_UPPER], count).to(torch.int32) << 8
        levels = (folded >> 1) ^ -(folded & 1)
    else:
        levels = ((folded >> 1) ^ -(folded & 1)).view(torch.int8)
    return dequantize_rows(levels.view(len(steps), -1), steps[:, None], dtype)


def _deflated(values: Tensor, strategy: int) -> Tensor:
    coder = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, strategy)
    codes = coder.compress(values.to(torch.uint8).contiguous().numpy()) + coder.flush()
    return torch.frombuffer(bytearray(codes), dtype=torch.uint8)


def _inflated(codes: Tensor, count: int) -> Tensor:
    """uint8 `[count]` of :func:`_deflated`'s result."""
    if codes.dtype != torch.uint8:
        raise ValueError("codes are of another type")
    reader = zlib.decompressobj()
    try:
        values = reader.decompress(codes.numpy(), count + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(values) != count or not reader.eof or reader.unused_data:
        raise ValueError(f"not {count} values and their checksum")
    return torch.frombuffer(bytearray(values), dtype=torch.uint8) if count else torch.zeros(0, dtype=torch.uint8)


__all__ = [
    "CODED", "CODED_SIDE", "COLUMNS", "STEPS", "code_matrix", "decode_matrix", "dequantize_rows", "quantize_rows",
]  # fmt: skip
