"""Affine quantisation and the packing of codes into bytes."""

from kvmm.kernels.quantize.reference import (
    BITS,
    affine_codes,
    affine_parameters,
    pack_planes,
    unpack_planes,
)

__all__ = ["BITS", "affine_codes", "affine_parameters", "pack_planes", "unpack_planes"]
