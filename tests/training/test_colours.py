"""Colours by level, which leave text readable and brightness as it was."""

from __future__ import annotations

import torch

from training import colours


def page() -> torch.Tensor:
    """Two bars of one level, one of another, and a hair line: ink `[1, 1, 60, 60]`."""
    ink = torch.zeros(1, 1, 60, 60)
    ink[..., 10:30, 5:15] = ink[..., 10:30, 20:30] = 0.6
    ink[..., 10:30, 40:50] = 0.3
    ink[..., 50, :] = 1.0
    return ink


def test_equal_levels_get_equal_colours_and_thin_lines_none():
    torch.manual_seed(3)
    ink = page()
    x = (1 - ink).expand(-1, 3, -1, -1).clone()
    out = colours.filled(x, ink)
    first, second, third = (
        out[0, :, 10:30, columns].flatten(1) for columns in (slice(5, 15), slice(20, 30), slice(40, 50))
    )
    assert torch.equal(first[:, :1].expand_as(first), first)  # up to its edges
    assert torch.equal(first, second)
    assert not torch.allclose(first[:, 0], third[:, 0], atol=0.02)
    assert first[:, 0].std() > 0.02
    assert torch.equal(out[..., 50, :], x[..., 50, :])
    assert torch.equal(out[..., 35:48, :], x[..., 35:48, :])  # paper


def test_offsets_leave_the_brightness():
    offsets = colours.chroma((500,), 1.0, torch.device("cpu"))
    brightness = (offsets * torch.tensor(colours.LUMA)).sum(-1)
    assert brightness.abs().max() < 1e-6
    assert offsets.abs().mean() > 0.1


def test_a_banner_turns_rows_at_the_top_around():
    torch.manual_seed(1)
    ink = page().repeat(20, 1, 1, 1)
    out = colours.banner(ink)
    changed = (out != ink).any(-1)[:, 0]
    assert changed.any(-1).float().mean() > 0.8
    assert not changed[:, 18:].any()  # (0.08 + 0.2) of sixty rows
    blank = changed & (ink.amax(-1)[:, 0] == 0)
    assert (out.amin(-1)[:, 0][blank] >= 0.55).all()


def test_coloured_lines_keep_the_paper():
    torch.manual_seed(2)
    ink = page().repeat(30, 1, 1, 1)
    x = (1 - ink).expand(-1, 3, -1, -1).clone()
    out = colours.lines(x, ink)
    paper = (ink == 0).expand_as(x)
    assert torch.equal(out[paper], x[paper])
    assert (out != x).any()
