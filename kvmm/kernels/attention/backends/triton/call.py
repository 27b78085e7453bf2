"""What the kernels of one decode call share: its queries, the results of its splits, and strides of tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from triton import next_power_of_2

LOG2E = math.log2(math.e)
INT8_ROWS = 16  # query rows up to which queries are quantised to int8; more rows use half precision
FEW_ROWS = 128  # query rows of all heads up to which the reduction uses separate programs per row


@dataclass
class Partial:
    """The results of all splits of one segment; see ``reduce_kernel``."""

    m: torch.Tensor  # [BH, splits, rows]
    l: torch.Tensor
    acc: torch.Tensor  # [BH, splits, rows, Q]
    zero: torch.Tensor | None = None  # [BH, splits, rows, VDZ], the part of the zero points
    scaled: bool = False  # whether the sums include scales and zero points
    by_channel: bool = False  # whether the sums are per channel of the transformed values, plane weights applied
    residual: Partial | None = None  # splits of the residual tokens, if the same kernel read them
    launch_dependents: bool = False  # whether the writing kernel starts its dependent early (PDL)
    kept: bool = False  # whether `residual` has the tokens that the segment keeps in full precision


@dataclass
class ResidualTokens:
    """Residual tokens ``[B, H, n, D]`` in any dtype, their bias ``[B or 1, 1, 1 or q, n]``, and int32 ``[1]``, how many
    of the ``n`` are in use."""

    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor | None
    length: torch.Tensor | None


class DecodeCall:
    """The queries of one attention call, grouped by KV head, and the launch parameters that follow from them.

    Args:
        query: ``[B * H, rows, D]``, contiguous, in the model's dtype.
        num_kv_heads: ``H``.
        query_length: query tokens per sequence.
        scaling: the softmax scale times ``log2(e)``: logits are in units of log 2.
        bias: float32 ``[B or 1, 1, 1 or query_length, slots]``, of all segments and the residual tokens, or None.
    """

    def __init__(
        self, query: torch.Tensor, num_kv_heads: int, query_length: int, scaling: float, bias: torch.Tensor | None
    ):
        self.query = query
        self.num_kv_heads = num_kv_heads
        self.query_length = query_length
        self.scaling = scaling
        self.bias = bias
        self.bh, self.rows, self.dim = query.shape
        self.few_rows = self.bh * self.rows <= FEW_ROWS
        self.int8 = self.rows <= INT8_ROWS
        # query rows per program: columns of the right operand, twice as many for int8
        block = next_power_of_2(self.rows)
        self.row_block = max(4, block) if self.int8 else min(64, max(16, block))
        self.num_row_blocks = -(-self.rows // self.row_block)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """An uninitialised tensor on the queries' device."""
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


def strides_of(x: torch.Tensor | None) -> tuple[int, int]:
    """The strides of sequences and heads in a tensor ``[B or 1, H or 1, ...]``."""
    return (0, 0) if x is None else tuple(0 if x.shape[i] == 1 else x.stride(i) for i in (0, 1))


def head_stride(x: torch.Tensor | None) -> int:
    """The stride of heads in a matrix ``[H or 1, ...]``."""
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)
