"""What the kernels of one decode step share: its queries, what splits found, and how tensors are walked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from triton import next_power_of_2

LOG2E = math.log2(math.e)
INT8_ROWS = 16  # rows of queries up to which they are quantised; more pay for half precision
FEW_ROWS = 128  # rows of all heads up to which each is joined by programs of its own


@dataclass
class Partial:
    """What the splits of one store found; see ``combine_kernel``."""

    m: torch.Tensor  # [BH, splits, rows]
    l: torch.Tensor
    acc: torch.Tensor  # [BH, splits, rows, Q]
    zero: torch.Tensor | None = None  # [BH, splits, rows, VDZ]
    scaled: bool = False  # whether scales and zero points are in these sums
    by_channel: bool = False  # whether the sums are by channel of the values' basis, the digits' places in them
    dense: Partial | None = None  # what the same kernel found in the dense columns
    early: bool = False  # whether the kernel that writes this lets the next one start


@dataclass
class Columns:
    """The dense columns ``[B, H, n, D]`` in any dtype, their bias ``[B or 1, 1, 1 or q, n]``, how many are used."""

    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor | None
    used: torch.Tensor | None


class Step:
    """One call: the queries and what all stores need of them.

    Args:
        query: ``[B * H, rows, D]``, contiguous, in the model's dtype.
        heads: ``H``, KV heads.
        length: query tokens.
        scaling: what takes products to logits in units of log 2.
        bias: float32 ``[B or 1, 1, 1 or length, slots]``, of all parts and the dense columns, or None.
    """

    def __init__(self, query: torch.Tensor, heads: int, length: int, scaling: float, bias: torch.Tensor | None):
        self.query = query
        self.heads = heads
        self.length = length
        self.scaling = scaling
        self.bias = bias
        self.bh, self.rows, self.dim = query.shape
        self.few = self.bh * self.rows <= FEW_ROWS
        self.int8 = self.rows <= INT8_ROWS
        # rows a program takes: columns of the right operand, twice as many for int8
        self.block = max(4, next_power_of_2(self.rows)) if self.int8 else min(64, max(16, next_power_of_2(self.rows)))
        self.blocks = -(-self.rows // self.block)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Room on the queries' device."""
        return torch.empty(shape, device=self.query.device, dtype=dtype)


def pair_stride(x: torch.Tensor | None) -> int:
    """The stride of a (sequence, head) pair in a tensor ``[B, H, ...]``, which must be one."""
    return 0 if x is None else x.stride(1)


def paired(x: torch.Tensor) -> torch.Tensor:
    """``x`` ``[B, H, n, ...]`` such that one stride walks sequences and heads, and what follows ``n`` is contiguous."""
    inner = 1
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if size != 1 and stride != inner:
            return x.contiguous()
        inner *= size
    if x.shape[0] > 1 and x.stride(0) != x.shape[1] * x.stride(1):
        return x.contiguous()
    return x


def head_stride(x: torch.Tensor | None) -> int:
    """The stride of heads in a matrix ``[H or 1, ...]``."""
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)
