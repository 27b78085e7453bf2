"""How the CUDA split kernel's work is split: as many blocks as end first on a GPU of so many multiprocessors."""

from __future__ import annotations

import torch

from kvmm.kernels.attention.backends.cuda.inputs import DenseColumns, DenseSplits, Query, device_of, rows_of
from kvmm.kernels.attention.backends.cuda.variant import Variant


def num_splits(query: torch.Tensor | Query, keys, dense: DenseColumns | None = None, *, variant: Variant) -> int:
    """How many splits fill the GPU best for the pages that ``keys`` has room for.

    Args:
        query, keys, dense: as in :func:`kvmm.kernels.attention.backends.cuda.kernel.choose`.
        variant: what it returned.
    """
    pages, columns = keys.planes[0][0].shape[2], 0 if dense is None else dense.key.shape[2]
    return best_splits(_units(query, keys, variant), pages, _slots(query, variant), variant.warps, columns)


def num_dense_splits(
    query: torch.Tensor | Query, keys, dense: DenseColumns, splits: int, *, variant: Variant
) -> tuple[int, bool]:
    """Splits of the dense columns and :attr:`DenseSplits.apart`, next to ``splits`` of the pages."""
    return best_dense_splits(
        _units(query, keys, variant), dense.key.shape[2], _slots(query, variant), variant.warps, splits
    )


def grid_of(
    query: torch.Tensor | Query, keys, variant: Variant, splits: int, dense_out: DenseSplits | None = None
) -> tuple[int, int, int]:
    """Blocks of a launch with ``splits`` of the pages: splits, heads times what a block takes of a head's rows,
    sequences."""
    batch, heads = keys.planes[0][0].shape[:2]
    splits += dense_out.m.shape[1] if dense_out is not None and dense_out.apart else 0
    return splits, heads * -(-rows_of(query) // (4 * variant.row_tiles)), batch


def _units(query: torch.Tensor | Query, keys, variant: Variant) -> int:
    """Blocks of one split."""
    splits, heads, batch = grid_of(query, keys, variant, 1)
    return splits * heads * batch


def _slots(query: torch.Tensor | Query, variant: Variant) -> int:
    """Blocks that the GPU runs at once."""
    return torch.cuda.get_device_properties(device_of(query)).multi_processor_count * variant.blocks


def best_dense_splits(units: int, columns: int, slots: int, warps: int, splits: int) -> tuple[int, bool]:
    """Splits of dense columns, each warp taking 16 at a time, and whether multiprocessors have room for them that
    blocks with pages leave; these otherwise have some of them while they wait for the transformed query.
    """
    wanted = -(-columns // (16 * warps))
    left = slots // units - splits
    return (min(wanted, left), True) if left > 0 else (min(wanted, splits), False)


def best_splits(units: int, pages: int, slots: int, warps: int, columns: int = 0) -> int:
    """Splits that end first: ``units`` of ``pages`` pages, and ``columns`` dense columns each, on ``slots`` blocks of
    ``warps`` warps at once."""
    most = max(1, min(-(-pages // warps), -(-4 * slots // units)))
    start, dense = 2, 2  # what a block costs beside its pages, and with dense columns besides, in pages of a warp

    def cost(splits: int) -> float:
        rounds = -(-units * splits // slots)
        share = -(-pages // splits)  # pages of the largest split
        inside = columns > 0 and not best_dense_splits(units, columns, slots, warps, splits)[1]
        return rounds * (start + (share / warps + -(-share // warps)) / 2) + dense * inside

    return min(range(1, most + 1), key=cost)
