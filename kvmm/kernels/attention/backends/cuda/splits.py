"""How the CUDA split kernel's work is split: as many blocks as end first on a GPU of so many multiprocessors."""

from __future__ import annotations

from functools import lru_cache

import torch

from kvmm.kernels.attention.backends.cuda.inputs import Query, ResidualInputs, ResidualSplits, device_of, rows_of
from kvmm.kernels.attention.backends.cuda.variant import Variant


def num_splits(query: torch.Tensor | Query, keys, residual: ResidualInputs | None = None, *, variant: Variant) -> int:
    """The number of splits that fills the GPU best at the capacity of ``keys``.

    Args:
        query, keys, residual: as in :func:`kvmm.kernels.attention.backends.cuda.kernel.choose`.
        variant: what it returned.
    """
    pages, residual_tokens = keys.planes[0][0].shape[2], 0 if residual is None else residual.columns
    return best_splits(_units(query, keys, variant), pages, _slots(query, variant), variant.warps, residual_tokens)


def num_residual_splits(
    query: torch.Tensor | Query, keys, residual: ResidualInputs, splits: int, *, variant: Variant
) -> tuple[int, bool]:
    """Splits of the residual tokens and :attr:`ResidualSplits.apart`, next to ``splits`` of the pages."""
    return best_residual_splits(
        _units(query, keys, variant), residual.columns, _slots(query, variant), variant.warps, splits
    )


def grid_of(
    query: torch.Tensor | Query, keys, variant: Variant, splits: int, residual_out: ResidualSplits | None = None
) -> tuple[int, int, int]:
    """Blocks of a launch with ``splits`` of the pages: splits, heads times what a block takes of a head's rows,
    sequences."""
    batch, heads = keys.planes[0][0].shape[:2]
    heads *= keys.heads_together
    splits += residual_out.m.shape[1] if residual_out is not None and residual_out.apart else 0
    return splits, heads * -(-rows_of(query) // (4 * variant.row_tiles)), batch


def _units(query: torch.Tensor | Query, keys, variant: Variant) -> int:
    """Blocks of one split."""
    splits, heads, batch = grid_of(query, keys, variant, 1)
    return splits * heads * batch


def _slots(query: torch.Tensor | Query, variant: Variant) -> int:
    """Blocks that the GPU runs at once."""
    return torch.cuda.get_device_properties(device_of(query)).multi_processor_count * variant.blocks


def best_residual_splits(units: int, residual_tokens: int, slots: int, warps: int, splits: int) -> tuple[int, bool]:
    """Splits of residual tokens, each warp taking 16 at a time, and whether multiprocessors have room for them that
    blocks with pages leave; these otherwise have some of them while they wait for the transformed query.
    """
    wanted = -(-residual_tokens // (16 * warps))
    left = slots // units - splits
    return (min(wanted, left), True) if left > 0 else (min(wanted, splits), False)


@lru_cache(maxsize=1024)  # a call of a long cache compares a hundred numbers of splits
def best_splits(units: int, pages: int, slots: int, warps: int, residual_tokens: int = 0) -> int:
    """Splits that end first: ``units`` of ``pages`` pages, and ``residual_tokens`` each, on ``slots`` blocks of
    ``warps`` warps at once."""
    most = max(1, min(-(-pages // warps), -(-4 * slots // units)))
    start_cost, residual_cost = (
        2,
        2,
    )  # what a block costs beside its pages, and with residual tokens besides, in pages of a warp

    def cost(splits: int) -> float:
        rounds = -(-units * splits // slots)
        share = -(-pages // splits)  # pages of the largest split
        shares_blocks = (
            residual_tokens > 0 and not best_residual_splits(units, residual_tokens, slots, warps, splits)[1]
        )
        return rounds * (start_cost + (share / warps + -(-share // warps)) / 2) + residual_cost * shares_blocks

    return min(range(1, most + 1), key=cost)
