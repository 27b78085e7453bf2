"""Hadamard rotation, the reference.

A head dimension of 64 to 256 makes the plain matrix product as fast as a butterfly in torch, and it also serves the
orders that are no power of two (80 and 96 are the head dimensions of real models).
"""

from __future__ import annotations

from functools import lru_cache

import torch

from kvmm.errors import KVMMError


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def _jacobsthal(q: int) -> torch.Tensor:
    """``Q[i, j] = chi(i - j)`` over the field of a prime ``q``, with chi the quadratic character."""
    chi = torch.full((q,), -1.0, dtype=torch.float64)
    chi[torch.arange(1, q) ** 2 % q] = 1.0
    chi[0] = 0.0
    index = torch.arange(q)
    return chi[(index[:, None] - index[None, :]) % q]


def _signs(n: int) -> torch.Tensor | None:
    """A Hadamard matrix of order ``n`` with entries +-1, or None if none is known to this construction."""
    if n == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if n % 2:
        return None
    half = _signs(n // 2)
    if half is not None:  # Sylvester
        return torch.cat((torch.cat((half, half), 1), torch.cat((half, -half), 1)), 0)
    if n % 4 == 0 and _is_prime(n - 1):  # Paley I: n - 1 = 3 mod 4
        skew = torch.zeros(n, n, dtype=torch.float64)
        skew[0, 1:], skew[1:, 0] = 1.0, -1.0
        skew[1:, 1:] = _jacobsthal(n - 1)
        return skew + torch.eye(n, dtype=torch.float64)
    if n % 4 == 0 and (n // 2 - 1) % 4 == 1 and _is_prime(n // 2 - 1):  # Paley II
        m = n // 2
        symmetric = torch.zeros(m, m, dtype=torch.float64)
        symmetric[0, 1:] = symmetric[1:, 0] = 1.0
        symmetric[1:, 1:] = _jacobsthal(m - 1)
        eye = torch.eye(m, dtype=torch.float64)
        return torch.kron(symmetric, torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)) + torch.kron(
            eye, torch.tensor([[1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
        )
    return None


@lru_cache(maxsize=32)
def hadamard_matrix(n: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """The orthonormal Hadamard matrix ``H_n / sqrt(n)``.

    Sylvester's matrix for powers of two (what the methods' authors use), Paley's for orders such as 12 and 20, and
    their products: 80 = 4 * 20, 96 = 8 * 12.

    Args:
        n: the order, a head dimension.
        device: where the matrix shall live.

    Returns:
        float32 ``[n, n]``; do not modify, it is shared.

    Raises:
        KVMMError: if no construction of this order is known here.
    """
    signs = _signs(n)
    if signs is None:
        raise KVMMError(
            f"No Hadamard matrix of order {n}: use a policy without rotation (such as kivi2) on this model."
        )
    return (signs / n**0.5).to(device=device, dtype=torch.float32)


def rotate(x: torch.Tensor) -> torch.Tensor:
    """``H x / sqrt(D)`` for every vector of the last dimension: ``[..., D]`` in, float32 ``[..., D]`` out."""
    return x.float() @ hadamard_matrix(x.shape[-1], x.device).T


def unrotate(x: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`rotate`: ``[..., D]`` in, float32 ``[..., D]`` out."""
    return x.float() @ hadamard_matrix(x.shape[-1], x.device)


def vector_norm(x: torch.Tensor, norm: str, dim: int | tuple[int, ...] = -1, keepdim: bool = False) -> torch.Tensor:
    """``l2`` norm, ``max`` (largest), ``mean`` or ``sum`` of magnitudes over ``dim``."""
    if norm == "max":
        return x.abs().amax(dim, keepdim=keepdim)
    if norm == "mean":
        return x.abs().mean(dim, keepdim=keepdim)
    if norm == "sum":
        return x.abs().sum(dim, keepdim=keepdim)
    return torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim)
