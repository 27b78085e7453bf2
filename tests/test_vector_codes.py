"""Codes that ``benchmarks.vector_codes`` compares: what they may give back, and that they are what they say."""

from __future__ import annotations

import pytest
import torch

from benchmarks.vector_codes import gaussian_levels, nearest, rounding, trellis


def gaussian(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("width, known", [(1, 0.3634), (2, 0.1175), (4, 0.0095)])
def test_scalar_levels_are_those_of_the_literature(width, known):
    """Max, Quantizing for minimum distortion, 1960, table I."""
    x = gaussian(1, 4000, 32)
    error = float((x - rounding("lloyd", {})(x, width)).square().mean())
    assert error == pytest.approx(known, rel=0.03)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_path_takes_the_bits_that_it_says(width):
    """Of a state there are as many values as a code of the width has, and the path is the nearest."""
    x = gaussian(1, 60, 256)
    coded = trellis(x, width)[0]
    levels = gaussian_levels(2 ** (width + 1))
    subset = (coded[..., None] - levels).abs().argmin(-1) % 4
    branch = [[0, 2], [1, 3], [2, 0], [3, 1], [2, 0], [3, 1], [0, 2], [1, 3]]
    for row in subset.tolist():
        state = 0
        for one in row:
            assert one in branch[state]
            state = (2 * state + branch[state].index(one)) % 8
    error, scalar = ((x - y).square().mean() for y in (coded, rounding("lloyd", {})(x, width)))
    assert error < 0.92 * scalar


def test_short_paths_are_the_best_of_all():
    x, levels = gaussian(1, 50, 3), gaussian_levels(4)
    branch = [[0, 2], [1, 3], [2, 0], [3, 1], [2, 0], [3, 1], [0, 2], [1, 3]]
    paths = []
    for number in range(8):
        state, path = 0, []
        for bit in (number >> 2 & 1, number >> 1 & 1, number & 1):
            path.append(levels[branch[state][bit]])
            state = (2 * state + bit) % 8
        paths.append(torch.stack(path))
    torch.testing.assert_close(trellis(x, 1), nearest(x, torch.stack(paths)))
