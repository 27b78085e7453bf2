"""Scalar code books of the coordinates of random unit vectors (TurboQuant, arXiv 2504.19874, section 3.1)."""

from __future__ import annotations

from functools import lru_cache

import torch

_GRID = 20001
_ITERATIONS = 5000


@lru_cache(maxsize=32)
def lloyd_max(dim: int, bits: int) -> torch.Tensor:
    """The best ``2 ** bits`` levels for one coordinate of a random unit vector.

    Its density in ``dim`` dimensions is proportional to ``(1 - x ** 2) ** ((dim - 3) / 2)``, nearly a Gaussian of
    variance ``1 / dim``.

    Returns:
        float64 ``[2 ** bits]``, ascending and symmetric; do not modify, it is shared.
    """
    edge = min(1.0, 8 / dim**0.5)
    x = torch.linspace(-edge, edge, _GRID, dtype=torch.float64)
    density = (1 - x * x).clamp_min(0) ** ((dim - 3) / 2)
    # mass and first moment from the left edge to each point of the grid
    integrals = torch.stack([torch.cumulative_trapezoid(y, x) for y in (density, density * x)])
    integrals = torch.nn.functional.pad(integrals, (1, 0))
    count = 2**bits
    levels = (torch.arange(count, dtype=torch.float64) - (count - 1) / 2) * (4 / count / dim**0.5)
    for _ in range(_ITERATIONS):
        borders = (levels[1:] + levels[:-1]) / 2 + edge  # the best borders for the levels
        place = borders / (2 * edge / (_GRID - 1))
        left = place.long()
        between = torch.lerp(integrals[:, left], integrals[:, left + 1], place - left)
        cells = torch.cat((integrals[:, :1], between, integrals[:, -1:]), 1).diff(dim=1)
        moved = cells[1] / cells[0]  # the best levels for the borders
        done = float((moved - levels).abs().max()) < 1e-9
        levels = moved
        if done:
            break
    return (levels - levels.flip(0)) / 2


@lru_cache(maxsize=32)
def _polynomial(dim: int, bits: int) -> tuple[float, ...]:
    """Coefficients ``a`` with ``level = x * (a_0 + a_1 x^2 + ...)`` for ``x = 2 * code / (2 ** bits - 1) - 1``."""
    levels = lloyd_max(dim, bits)[2 ** (bits - 1) :]
    x = torch.arange(1, 2**bits, 2, dtype=torch.float64) / (2**bits - 1)
    powers = x[:, None] ** (2 * torch.arange(len(x), dtype=torch.float64))
    return tuple(torch.linalg.solve(powers, levels / x).tolist())


def code_levels(codes: torch.Tensor, dim: int, bits: int) -> torch.Tensor:
    """The levels of uint8 codes ``[...]``, float32.

    A symmetric code book is an odd polynomial of the code; up to eight levels that is exact in float32, and several
    times faster than looking them up.
    """
    if bits > 3:
        table = lloyd_max(dim, bits).to(codes.device, torch.float32)
        return table.index_select(0, codes.flatten().int()).view(codes.shape)
    x = codes.float().mul_(2 / (2**bits - 1)).sub_(1)
    square = x * x
    *rest, highest = _polynomial(dim, bits)
    if not rest:
        return x.mul_(highest)
    factor = square * highest
    for coefficient in reversed(rest[1:]):
        factor.add_(coefficient).mul_(square)
    return x.mul_(factor.add_(rest[0]))


@lru_cache(maxsize=32)
def bit_weights(dim: int, bits: int) -> tuple[float, ...]:
    """What each bit of a code of two or three bits adds to the lowest level, and of three the parity of all.

    A symmetric code book changes its sign where all bits do, so it is a sum over products of an odd number of signs:
    those of the bits, and for three bits the product of all three.
    """
    codes = torch.arange(2**bits)
    terms = torch.stack([codes >> bit & 1 for bit in range(bits)])
    if bits == 3:
        terms = torch.cat((terms, terms.sum(0, keepdim=True) % 2))
    levels = lloyd_max(dim, bits)
    return tuple(torch.linalg.lstsq(terms.T.double(), (levels - levels[0])[:, None]).solution[:, 0].tolist())
