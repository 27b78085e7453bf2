"""Orthonormal Hadamard rotation of the head dimension."""

from kvmm.kernels.hadamard.reference import hadamard_matrix, rotate, unrotate

__all__ = ["hadamard_matrix", "rotate", "unrotate"]
