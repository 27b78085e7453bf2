"""What a phone's camera and a desk do to a page, on the accelerator: perspective, curved paper, shadow, folds, stains.

Tensors are batches of pages, `ink [n, 1, H, W]` (coverage) or `x [n, 3, H, W]` (colours), both in 0..1. Each page
draws its own strengths on the device; nothing is read back.
"""

from __future__ import annotations

import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor


def uniform(count: int, low: float, high: float, device: torch.device) -> Tensor:
    """`[count, 1, 1, 1]` float32."""
    return torch.rand(count, 1, 1, 1, device=device) * (high - low) + low


def axes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows `[1, 1, H, 1]` and columns `[1, 1, 1, W]` of a batch, -1 to 1."""
    height, width = x.shape[2:]
    rows = torch.linspace(-1, 1, height, device=x.device).view(1, 1, height, 1)
    return rows, torch.linspace(-1, 1, width, device=x.device).view(1, 1, 1, width)


def photograph(ink: Tensor, degrees: float = 6.0) -> tuple[Tensor, Tensor]:
    """A page seen from the side, turned and slightly curved.

    Returns:
        `ink` as seen, and `[n, 1, H, W]` in 0..1: where the page lies on the desk.
    """
    n, _, height, width = ink.shape
    device, aspect = ink.device, width / height
    draw = lambda scale: (torch.rand(n, 1, 1, device=device) * 2 - 1) * scale  # noqa: E731
    angle, grow = draw(math.radians(degrees)), 1.03 + 0.14 * torch.rand(n, 1, 1, device=device)
    y = torch.linspace(-1, 1, height, device=device).view(1, height, 1)
    x = torch.linspace(-1, 1, width, device=device).view(1, 1, width)
    cos, sin = angle.cos() * grow, angle.sin() * grow
    depth = 1 + draw(0.07) * x + draw(0.07) * y
    u = (cos * x - sin / aspect * y + draw(0.03)) / depth
    v = (sin * aspect * x + cos * y + draw(0.03)) / depth
    bend, phase, waves = draw(0.012), draw(math.pi), 0.6 + torch.rand(n, 1, 1, device=device)
    v = v + bend * torch.sin(math.pi * waves * u + phase)  # the sheet does not lie flat
    grid = torch.stack([u, v], -1)
    edge = ((1 - u.abs()) * width / 2).clamp(0, 1) * ((1 - v.abs()) * height / 2).clamp(0, 1)
    seen = F.grid_sample(ink.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=True)
    return seen.to(ink.dtype), edge[:, None].to(ink.dtype)


def on_desk(x: Tensor, page: Tensor) -> Tensor:
    """Pages `x` lying on desks of one grained colour each; ``page [n, 1, H, W]`` as of :func:`photograph`."""
    n, _, height, width = x.shape
    colour = (uniform(n, 0.1, 0.75, x.device) + 0.12 * torch.randn(n, 3, 1, 1, device=x.device)).clamp(0.02, 0.98)
    grain = F.interpolate(torch.randn(n, 1, height // 28, 8, device=x.device), size=(height, width), mode="bilinear")
    desk = (colour * (1 + 0.08 * grain)).to(x.dtype)
    return desk + (x - desk) * page


def shadow(x: Tensor) -> Tensor:
    """The shadow of a hand or a phone over part of each page, with a soft edge."""
    n = len(x)
    rows, columns = axes(x)
    angle, shift = uniform(n, 0, 2 * math.pi, x.device), uniform(n, -0.4, 0.9, x.device)
    bow = uniform(n, -0.5, 0.5, x.device) * rows * columns
    distance = angle.cos() * columns + angle.sin() * rows + bow - shift
    dark = torch.sigmoid(distance / uniform(n, 0.01, 0.25, x.device)) * uniform(n, 0.15, 0.5, x.device)
    return x * (1 - dark).to(x.dtype)


def folds(x: Tensor) -> Tensor:
    """One or two creases across each page: a bright or dark line, and the halves lit differently."""
    n = len(x)
    light = torch.ones(1, device=x.device)
    for axis in axes(x):
        here = (uniform(n, 0, 1, x.device) < 0.7).float()
        distance = axis + uniform(n, -0.02, 0.02, x.device) - uniform(n, -0.5, 0.5, x.device)
        line = uniform(n, -0.35, 0.2, x.device) * torch.exp(-((distance / uniform(n, 0.002, 0.008, x.device)) ** 2))
        step = uniform(n, -0.07, 0.07, x.device) * torch.tanh(distance / 0.05)
        light = light * (1 + here * (line + step))
    return x * light.to(x.dtype)


def coffee(x: Tensor) -> Tensor:
    """The brown ring of a cup on each page, with a fainter filling."""
    n, _, height, width = x.shape
    rows, columns = axes(x)
    dy = (rows - uniform(n, -1, 1, x.device)) * (height / width)
    dx = columns - uniform(n, -1, 1, x.device)
    distance, radius = (dx**2 + dy**2).sqrt(), uniform(n, 0.12, 0.4, x.device)
    ring = torch.exp(-(((distance - radius) / uniform(n, 0.006, 0.03, x.device)) ** 2))
    wet = torch.sigmoid((radius - distance) / 0.01) * uniform(n, 0, 0.35, x.device)
    strength = (ring + wet).clamp(0, 1) * uniform(n, 0.15, 0.6, x.device)
    tint = 0.25 + 0.2 * torch.arange(1, 4, device=x.device).view(1, 3, 1, 1)  # blue is absorbed most
    return x * (1 - strength * tint).to(x.dtype)


def shake(x: Tensor) -> Tensor:
    """Camera shake: the mean of five shifted copies along one direction for the batch, up to two pixels either way."""
    dy, dx = random.choice(((0, 1), (1, 0), (1, 1), (1, -1)))
    taps = [x] + [torch.roll(x, (k * dy, k * dx), (2, 3)) for k in (-2, -1, 1, 2)]
    weight = uniform(len(x), 0.4, 1.0, x.device).to(x.dtype)  # of the shifted copies
    return x * (1 - 0.8 * weight) + 0.2 * weight * sum(taps[1:])


def fade(x: Tensor) -> Tensor:
    """Low contrast: a worn print or a dim screen."""
    n = len(x)
    middle = uniform(n, 0.35, 0.75, x.device).to(x.dtype)
    return middle + (x - middle) * uniform(n, 0.25, 0.75, x.device).to(x.dtype)


def show_through(ink: Tensor) -> Tensor:
    """The back of the sheet, mirrored and faint; every page lends its print to the next of the batch."""
    back = torch.roll(ink, 1, 0).flip(3)
    return torch.maximum(ink, back * uniform(len(ink), 0.03, 0.14, ink.device).to(ink.dtype))


def fax(x: Tensor) -> Tensor:
    """Black and white with ragged edges, as faxes and cheap scans have."""
    grey = x.mean(1, keepdim=True)
    low, high = grey.amin((2, 3), keepdim=True), grey.amax((2, 3), keepdim=True)
    at = low + (high - low) * uniform(len(x), 0.45, 0.65, x.device).to(x.dtype)
    noise = 0.08 * torch.randn_like(grey) * (high - low)
    return ((grey + noise > at).to(x.dtype)).expand_as(x)
