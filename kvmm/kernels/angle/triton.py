"""Logits of codeword keys in Triton: gathers from the query's table, summed in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TOKENS = 64  # that a program takes
_ROWS = 16  # query rows a program takes at most


@triton.jit
def scores_lut_kernel(
    INDEX, RADIUS, TABLE, SETS, OUT, tokens, rows,
    J: tl.constexpr, K: tl.constexpr, TN: tl.constexpr, RP: tl.constexpr,
    HAS_RADIUS: tl.constexpr, HAS_SETS: tl.constexpr,
):  # fmt: skip
    """``OUT [E, rows, tokens]``: the sum over ``J`` sub-vectors of ``RADIUS [E, tokens, J]`` times the row of ``TABLE
    [S, J, K, rows]`` that ``INDEX [E, tokens, J]`` names, ``SETS [E]`` saying which set a run belongs to.
    """
    run = tl.program_id(0).to(tl.int64)
    t, r = tl.program_id(1) * TN + tl.arange(0, TN), tl.program_id(2) * RP + tl.arange(0, RP)
    owner = run
    if HAS_SETS:
        owner = tl.load(SETS + run).to(tl.int64)
    total = tl.zeros((TN, RP), tl.float32)
    for j in range(0, J):
        at = (run * tokens + t) * J + j
        word = tl.load(INDEX + at, mask=t < tokens, other=0).to(tl.int64)
        row = ((owner * J + j) * K + word) * rows
        part = tl.load(TABLE + row[:, None] + r[None, :], mask=(t < tokens)[:, None] & (r < rows)[None, :], other=0.0)
        if HAS_RADIUS:
            part *= tl.load(RADIUS + at, mask=t < tokens, other=0.0).to(tl.float32)[:, None]
        total += part
    to = OUT + (run * rows + r[None, :]) * tokens + t[:, None]
    tl.store(to, total, mask=(t < tokens)[:, None] & (r < rows)[None, :])


def scores_lut(
    query: torch.Tensor,
    index: torch.Tensor,
    codebook: torch.Tensor,
    radius: torch.Tensor | None = None,
    sets: torch.Tensor | None = None,
) -> torch.Tensor:
    """:func:`kvmm.kernels.angle.reference.scores_lut` by a kernel; the arguments are its."""
    runs, tokens, groups = index.shape
    words, size = codebook.shape[2:]
    split = query.float().unflatten(-1, (groups, size)).transpose(1, 2)  # [S, J, Q, g]
    table = (codebook.float() @ split.transpose(-1, -2)).contiguous()  # [S, J, K, Q]
    rows = query.shape[1]
    out = torch.empty(runs, rows, tokens, device=query.device)
    block = min(_ROWS, triton.next_power_of_2(rows))
    scores_lut_kernel[runs, triton.cdiv(tokens, _TOKENS), triton.cdiv(rows, block)](
        index.contiguous(), None if radius is None else radius.contiguous(), table, sets, out, tokens, rows,
        J=groups, K=words, TN=_TOKENS, RP=block, HAS_RADIUS=radius is not None, HAS_SETS=sets is not None,
    )  # fmt: skip
    return out
