"""Affine quantisation and the packing of codes into pages: Triton on a GPU, C and torch elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kvmm.kernels.quantize import reference
from kvmm.kernels.quantize.books import ScalarBook
from kvmm.kernels.quantize.dense import DensePages, paged, slot_weight
from kvmm.kernels.quantize.groups import TokenGroups
from kvmm.kernels.quantize.native import NativePages, compiled, readable
from kvmm.kernels.quantize.reference import (
    BITS,
    GAUSSIAN_HALF_STEP,
    affine_codes,
    fit_levels,
    pack_planes,
    uniform_codes,
    unpack_planes,
)
from kvmm.kernels.quantize.unpack import code_center, unpack_keys, unpack_values

if TYPE_CHECKING:
    from kvmm.kernels.quantize.tiles import TilePages

    Pages = DensePages | TilePages
else:
    Pages = DensePages

__all__ = [
    "BITS",
    "GAUSSIAN_HALF_STEP",
    "DensePages",
    "Pages",
    "ScalarBook",
    "TokenGroups",
    "affine_codes",
    "affine_parameters",
    "code_center",
    "cut_pages",
    "fit_levels",
    "pack_planes",
    "paged",
    "slot_weight",
    "uniform_codes",
    "unpack_keys",
    "unpack_planes",
    "unpack_values",
]

_MAX_DIM = 256  # channels that a kernel holds at once
_MAX_PAGE = 128  # tokens, likewise


def affine_parameters(
    low: torch.Tensor,
    high: torch.Tensor,
    bits: int | torch.Tensor,
    *,
    dtype: torch.dtype,
    integer_zero: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`kvmm.kernels.quantize.reference.affine_parameters`, in one launch on a GPU."""
    alike = isinstance(bits, int) or (bits.shape == low.shape and bits.dtype == torch.float32)
    if low.is_cuda and low.dtype == high.dtype == torch.float32 and high.shape == low.shape and alike:
        from kvmm.kernels.quantize.triton_parameters import launch

        return launch(low, high, bits, dtype, integer_zero)
    return reference.affine_parameters(low, high, bits, dtype=dtype, integer_zero=integer_zero)


def cut_pages(x: torch.Tensor, page_size: int, valid: torch.Tensor | None = None) -> Pages:
    """Cut vectors into pages, to be coded.

    Args:
        x: ``[B, H, T, D]``, any strides. What does not fill the last page is filled with copies of the last token.
        page_size: tokens a page.
        valid: bool ``[B, T]``, False at slots that hold no token, or None if all do.

    Returns:
        what a codec builds its chain on: pages that never exist in full precision on a GPU, float32 ones elsewhere.
    """
    if x.is_cuda and x.shape[-1] <= _MAX_DIM and page_size <= _MAX_PAGE and x.dtype != torch.float64:
        from kvmm.kernels.quantize.tiles import TilePages

        return TilePages(x, page_size, valid)
    return (NativePages if readable(x) and compiled() else DensePages).cut(x, page_size, valid)
