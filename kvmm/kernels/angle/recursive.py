"""Vectors as one length and recursive angles: the coordinates of Spherical KV's Algorithm 1, and the product with them.

A vector ``x`` of ``d`` channels has a length ``r = ||x||`` and ``d - 1`` angles. The first is that between the vector
and its first axis, and what is left over, of length ``r sin t_1``, is a vector of one channel less, whose angles do not
depend on that length; so

    t_i = atan2(||x_{i+1:}||, x_i) in [0, pi],   t_{d-1} = atan2(x_d, x_{d-1}) in (-pi, pi],
    x_i = r sin t_1 ... sin t_{i-1} cos t_i,     x_d = r sin t_1 ... sin t_{d-1}.

The product with a query follows the same recursion backwards and needs two tables, of the cosines and the sines of the
levels, and no vector: ``p_{d-1} = q_{d-1} cos t_{d-1} + q_d sin t_{d-1}``, then
``p_i = q_i cos t_i + sin t_i p_{i+1}``, and ``q . x = r p_1``.

All floats are float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache

import torch

_QUADRATURE = 4096  # points at which densities of angles are summed


def angles_of(x: torch.Tensor) -> torch.Tensor:
    """The ``d - 1`` angles ``[..., d - 1]`` of vectors ``[..., d]``, ``d`` at least 2."""
    tail = x.square().flip(-1).cumsum(-1).flip(-1).sqrt()  # of what begins at each channel
    return torch.cat((torch.atan2(tail[..., 1:-1], x[..., :-2]), torch.atan2(x[..., -1:], x[..., -2:-1])), -1)


def vectors_of(cos: torch.Tensor, sin: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    """Vectors ``[..., d]`` of cosines and sines ``[..., d - 1]`` and a length ``[...]``."""
    before = torch.cat((radius.unsqueeze(-1), sin), -1).cumprod(-1)
    return torch.cat((before[..., :-1] * cos, before[..., -1:]), -1)


def scores_recursive(
    query: torch.Tensor, angles: Iterable[tuple[torch.Tensor, torch.Tensor]], radius: torch.Tensor
) -> torch.Tensor:
    """``q . x`` by the recursion, without a vector.

    Args:
        query: ``[..., Q, d]``.
        angles: the ``d - 1`` angles of ``n`` vectors, the last one first: cosine and sine ``[..., n]`` of each.
        radius: ``[..., n]``, their lengths.

    Returns:
        ``[..., Q, n]``.
    """
    channel = query.shape[-1] - 1
    product = query[..., channel:]
    for cos, sin in angles:
        channel -= 1
        product = query[..., channel : channel + 1] * cos.unsqueeze(-2) + sin.unsqueeze(-2) * product
    return product * radius.unsqueeze(-2)


def uniform_levels(dim: int, bits: int) -> torch.Tensor:
    """float32 ``[d - 1, 2 ** bits]``: the middles of equal cells of ``[0, pi]``, of the last angle of ``(-pi, pi]``."""
    middles = (torch.arange(2**bits, dtype=torch.float64) + 0.5) / 2**bits
    levels = (middles * math.pi).repeat(dim - 1, 1)
    levels[-1] = middles * 2 * math.pi - math.pi
    return levels.float()


@lru_cache(maxsize=32)
def density_levels(dim: int, bits: int) -> torch.Tensor:
    """float32 ``[d - 1, 2 ** bits]``: the best levels for directions without a preference; do not modify.

    The angle ``t_i`` of such a direction has a density in proportion to ``sin(t) ** (d - 1 - i)``, so all but the last
    crowd around a right angle, the more the more channels are left. These are the levels of Lloyd and Max for that
    density. The last angle is uniform.
    """
    count = 2**bits
    levels = uniform_levels(dim, bits).double()
    grid = (torch.arange(_QUADRATURE, dtype=torch.float64) + 0.5) * math.pi / _QUADRATURE
    for i in range(dim - 2):
        weight = grid.sin().log().mul(dim - 2 - i).exp()
        share = weight.cumsum(0) / weight.sum()
        own = grid[torch.searchsorted(share, (torch.arange(count, dtype=torch.float64) + 0.5) / count)]
        for _ in range(60):
            cell = torch.searchsorted((own[1:] + own[:-1]) / 2, grid)
            mass = torch.zeros(count, dtype=torch.float64).index_add_(0, cell, weight)
            total = torch.zeros(count, dtype=torch.float64).index_add_(0, cell, weight * grid)
            own = torch.where(mass > 0, total / mass.clamp_min(1e-300), own)
        levels[i] = own
    return levels.float()


def quantize_angles(angles: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Codes uint8 ``[..., d - 1]`` of angles, the nearest of ascending ``levels`` ``[d - 1, K]``."""
    edges = (levels[:, 1:] + levels[:, :-1]) / 2
    codes = torch.searchsorted(edges, angles.movedim(-1, 0).flatten(1).contiguous())
    codes = codes.to(torch.uint8).unflatten(1, angles.shape[:-1]).movedim(0, -1)
    return codes.contiguous()


def steps_of(codes: torch.Tensor, levels: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Cosine and sine ``[...]`` of the angles of codes ``[..., d - 1]``, the last one first, one at a time."""
    cos, sin = levels.cos(), levels.sin()
    for i in range(codes.shape[-1] - 1, -1, -1):
        level = codes[..., i].long()
        yield cos[i][level], sin[i][level]


def read_angles(codes: torch.Tensor, levels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines ``[..., d - 1]`` of codes."""
    channel = torch.arange(codes.shape[-1], device=codes.device) * levels.shape[1]
    rows = (codes.long() + channel).flatten()
    return tuple(table.flatten()[rows].view(codes.shape) for table in (levels.cos(), levels.sin()))


__all__ = [
    "angles_of",
    "density_levels",
    "quantize_angles",
    "read_angles",
    "scores_recursive",
    "steps_of",
    "uniform_levels",
    "vectors_of",
]
