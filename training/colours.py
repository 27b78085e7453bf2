"""Colours of printed and drawn pages, on the accelerator: banners, filled areas, coloured lines of text.

The generators draw ink coverage in one channel. Here areas of even coverage (bars and slices of charts, table heads,
banners) get a colour by their level, so that what had equal levels has equal colours, as in a legend.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from training.camera import uniform

WINDOW = 5  # pixels a side within which coverage must be even for an area to count as filled
EVEN = 0.04  # largest difference there
LEVELS = 16
LUMA = (0.299, 0.587, 0.114)


def chroma(shape: tuple[int, ...], strength: float, device: torch.device) -> Tensor:
    """Random offsets in RGB that leave the brightness as it is, `[*shape, 3]`, up to `strength` a channel."""
    rgb = torch.rand(*shape, 3, device=device) * 2 - 1
    grey = (rgb * rgb.new_tensor(LUMA)).sum(-1, keepdim=True)
    return (rgb - grey) * strength * torch.rand(*shape, 1, device=device).sqrt()


def rows_between(n: int, height: int, start: tuple[float, float], size: tuple[float, float], device) -> Tensor:
    """A band of rows a page, bool `[n, 1, H, 1]`, from within `start` on and of `size`, as parts of its height."""
    y = torch.linspace(0, 1, height, device=device).view(1, 1, height, 1)
    top = uniform(n, *start, device)
    return (y >= top) & (y < top + uniform(n, *size, device))


def banner(ink: Tensor) -> Tensor:
    """Light text on a dark band across the top of the page: `ink [n, 1, H, W]` -> the same shape."""
    band = rows_between(len(ink), ink.shape[2], (-0.03, 0.08), (0.05, 0.2), ink.device)
    return torch.where(band, uniform(len(ink), 0.55, 1.0, ink.device).to(ink.dtype) * (1 - ink), ink)


def filled(x: Tensor, ink: Tensor) -> Tensor:
    """Colours areas of even coverage in `x [n, 3, H, W]` by the level of `ink [n, 1, H, W]`."""
    n, pad = len(ink), WINDOW // 2
    spread = F.max_pool2d(ink, WINDOW, 1, pad) + F.max_pool2d(-ink, WINDOW, 1, pad)
    even = (spread < EVEN) & (ink > 0.05)
    area = F.max_pool2d(even.to(ink.dtype), WINDOW, 1, pad) > 0  # up to the edges again
    level = (ink.clamp(0, 1) * LEVELS).round().long().flatten(1)
    palette = chroma((n, LEVELS + 1), 0.8, ink.device).to(x.dtype)
    colour = palette.gather(1, level[..., None].expand(-1, -1, 3)).transpose(1, 2).view_as(x)
    return torch.where(area & (ink > 0.02), (x + colour).clamp(0, 1), x)


def lines(x: Tensor, ink: Tensor) -> Tensor:
    """Colours the ink in one band of rows: a heading, a line of print in another colour."""
    band = rows_between(len(ink), ink.shape[2], (-0.02, 0.95), (0.02, 0.3), ink.device)
    colour = chroma((len(ink),), 1.0, ink.device).to(x.dtype).view(-1, 3, 1, 1)
    return torch.where(band, (x + colour * ink).clamp(0, 1), x)
