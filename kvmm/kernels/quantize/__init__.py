"""Affine quantisation and the packing of codes into bytes."""

from kvmm.kernels.quantize.reference import (
    BITS,
    GAUSSIAN_HALF_STEP,
    affine_codes,
    affine_parameters,
    fit_levels,
    pack_planes,
    uniform_codes,
    unpack_planes,
)

__all__ = [
    "BITS",
    "GAUSSIAN_HALF_STEP",
    "affine_codes",
    "affine_parameters",
    "fit_levels",
    "pack_planes",
    "uniform_codes",
    "unpack_planes",
]
