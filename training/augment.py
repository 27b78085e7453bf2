"""Page and recording augmentation on the accelerator, training only.

The generator draws ink coverage; here each page gets its colours and, for about two pages in three, the marks of a
camera or a scanner. Every effect draws its own random subset of pages with its own strengths. Nothing waits for the
device: subset sizes are drawn on the host, members on the device.
"""

from __future__ import annotations

import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor

from training import camera, colours
from training.camera import uniform

IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)  # of Qwen2VLImageProcessor
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)
CLEAN_SHARE = 0.35  # of pages left as drawn
MARKED_SHARE = 0.8  # of the others: with marks of a camera or a scanner
COLOUR_SHARE = 0.5  # of the others whose filled areas, and of those where some lines, get colours
BANNER_SHARE = 0.07
PHOTO_SHARE = 0.25  # of the marked: photographed on a desk
TILTED_SHARE, TILT = 0.1, 9.0  # of the marked that lie flat: fed askew, by up to so many degrees

JPEG_LUMA = (
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51,
    87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101,
    72, 92, 95, 98, 112, 100, 103, 99,
)  # fmt: skip
JPEG_CHROMA = (
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99,
    99, 99, 99, *[99] * 32,
)  # fmt: skip
RGB_TO_YCC = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
YCC_TO_RGB = ((1.0, 0.0, 1.402), (1.0, -0.344136, -0.714136), (1.0, 1.772, 0.0))

_constants: dict[tuple, Tensor] = {}


def constant(name: str, values, device: torch.device) -> Tensor:
    """A float32 tensor kept on the device, so that using it copies nothing."""
    if (name, device) not in _constants:
        _constants[name, device] = torch.tensor(values, dtype=torch.float32, device=device)
    return _constants[name, device]


def subset(members: Tensor, share: float) -> Tensor | None:
    """A random `share` of `members` (int64 `[n]`), rounded at random to a whole number; None when that is zero."""
    count = math.floor(share * len(members) + random.random())
    return members[torch.randperm(len(members), device=members.device)[:count]] if count else None


def normalise(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds `[N, 3, H, W]` in 0..1 to 8 bits, as an image file would, and applies the processor's mean and std."""
    mean = constant("mean", IMAGE_MEAN, x.device).view(1, 3, 1, 1)
    std = constant("std", IMAGE_STD, x.device).view(1, 3, 1, 1)
    x = x.clamp(0, 1).mul(255).round_()
    return ((x.float() / 255 - mean) / std).to(dtype)


def warp(ink: Tensor, degrees: float = 2.0) -> Tensor:
    """Slight rotation, shear, shrinking, shift and perspective of `ink [n, 1, H, W]`; beyond the page lies no ink."""
    n, _, height, width = ink.shape
    device = ink.device
    draw = lambda scale: (torch.rand(n, device=device) * 2 - 1) * scale  # noqa: E731
    angle, aspect = draw(math.radians(degrees)), width / height
    grow = 1 + torch.rand(n, device=device) * 0.06  # the sampling grid grows, so the page shrinks and stays in view
    cos, sin = angle.cos() * grow, angle.sin() * grow
    matrix = torch.stack(
        [
            torch.stack([cos, -sin / aspect + draw(0.01), draw(0.015)], -1),
            torch.stack([sin * aspect + draw(0.01), cos, draw(0.015)], -1),
            torch.stack([draw(0.02), draw(0.02), torch.ones(n, device=device)], -1),
        ],
        1,
    )  # [n, 3, 3], in grid_sample's -1..1 coordinates
    y = torch.linspace(-1, 1, height, device=device).view(1, height, 1)
    x = torch.linspace(-1, 1, width, device=device).view(1, 1, width)
    u, v, w = (
        matrix[:, i, 0, None, None] * x + matrix[:, i, 1, None, None] * y + matrix[:, i, 2, None, None]
        for i in range(3)
    )
    grid = torch.stack([u / w, v / w], -1)
    return F.grid_sample(ink.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=True).to(ink.dtype)


def blur(ink: Tensor, low: float = 0.35, high: float = 1.1) -> Tensor:
    """Gaussian blur of `ink [n, 1, H, W]` with a sigma of its own for each page."""
    sigma = uniform(len(ink), low, high, ink.device)
    taps = [(-(k**2) / (2 * sigma**2)).exp() for k in range(3)]
    total = taps[0] + 2 * (taps[1] + taps[2])
    taps = [(t / total).to(ink.dtype) for t in taps]
    for dim in (2, 3):
        pad = (0, 0, 2, 2) if dim == 2 else (2, 2, 0, 0)
        padded, size = F.pad(ink, pad), ink.shape[dim]
        shift = lambda k, p=padded, d=dim, s=size: p.narrow(d, 2 + k, s)  # noqa: E731
        ink = taps[0] * shift(0) + taps[1] * (shift(1) + shift(-1)) + taps[2] * (shift(2) + shift(-2))
    return ink


def rescale(ink: Tensor) -> Tensor:
    """Shrinks `ink [n, 1, H, W]` to 55-90 % and enlarges it again: the detail of a low-resolution scan."""
    factor = random.uniform(0.55, 0.9)
    size = ink.shape[2:]
    small = F.interpolate(ink.float(), scale_factor=factor, mode="bilinear", antialias=True, align_corners=False)
    return (
        F.interpolate(small, size=size, mode=random.choice(("bilinear", "bicubic")), align_corners=False)
        .clamp(0, 1)
        .to(ink.dtype)
    )


def uneven_light(x: Tensor) -> Tensor:
    """Multiplies `x [n, 3, H, W]` by a linear and a radial fall-off, each up to about a third."""
    n, _, height, width = x.shape
    y = torch.linspace(-1, 1, height, device=x.device).view(1, 1, height, 1)
    z = torch.linspace(-1, 1, width, device=x.device).view(1, 1, 1, width)
    angle = uniform(n, 0, 2 * math.pi, x.device)
    linear = uniform(n, 0, 0.15, x.device) * (angle.cos() * z + angle.sin() * y)
    distance = (y - uniform(n, -0.7, 0.7, x.device)) ** 2 + (z - uniform(n, -0.7, 0.7, x.device)) ** 2
    light = 1 + linear - uniform(n, 0, 0.15, x.device) * distance
    return x * light.to(x.dtype)


def add_noise(x: Tensor) -> Tensor:
    """Gaussian noise on `x [n, 3, H, W]`: mostly faint, now and then strong (standard deviation up to 0.06)."""
    n, _, height, width = x.shape
    grey = torch.randn(n, 1, height, width, device=x.device, dtype=x.dtype)
    tint = 1 + 0.5 * torch.randn(n, 3, 1, 1, device=x.device, dtype=x.dtype)
    strength = 0.004 + 0.056 * uniform(n, 0, 1, x.device) ** 2.5
    return x + grey * tint * strength.to(x.dtype)


def jpeg(x: Tensor) -> Tensor:
    """JPEG-like loss on `x [n, 3, H, W]` in 0..1: 8 x 8 DCT of Y, Cb and Cr quantised at quality 25-90."""
    n, _, height, width = x.shape
    rows, columns = height // 8, width // 8  # a rest of fewer than 8 pixels stays as it is
    k = torch.arange(8, device=x.device).float()
    dct = torch.cos((2 * k[None] + 1) * k[:, None] * math.pi / 16) * 0.5
    dct = torch.where(k[:, None] == 0, math.sqrt(1 / 8), dct)
    quality = uniform(n, 25, 90, x.device)
    scale = torch.where(quality < 50, 50 / quality, 2 - quality / 50)  # libjpeg's rule
    tables = torch.stack(
        [constant("luma", JPEG_LUMA, x.device), *[constant("chroma", JPEG_CHROMA, x.device)] * 2]
    ).view(1, 3, 1, 1, 8, 8)
    step = (tables * scale[..., None, None]).clamp(min=1) / 255
    y = torch.einsum(
        "ij,njhw->nihw", constant("ycc", RGB_TO_YCC, x.device), x[:, :, : rows * 8, : columns * 8].float().clamp(0, 1)
    )
    y = y.view(n, 3, rows, 8, columns, 8).transpose(3, 4)
    y = dct.T @ (((dct @ y @ dct.T) / step).round() * step) @ dct
    y = torch.einsum(
        "ij,njhw->nihw", constant("rgb", YCC_TO_RGB, x.device), y.transpose(3, 4).reshape(n, 3, rows * 8, columns * 8)
    )
    x = x.clone()
    x[:, :, : rows * 8, : columns * 8] = y.to(x.dtype)
    return x


def page_colours(shade: Tensor, dirty: Tensor | None) -> tuple[Tensor, Tensor]:
    """Paper and ink `[N, 3, 1, 1]` in 0..1 from `shade uint8 [N, 6]`; `dirty` pages get tints and another contrast."""
    colour = shade.float().div(255).view(-1, 2, 3)
    if dirty is not None:
        n, device = len(dirty), shade.device
        tint = torch.randn(n, 2, 3, device=device) * constant("tint", (0.05, 0.1), device).view(1, 2, 1)
        tint *= torch.rand(n, 2, 1, device=device) < 0.5
        contrast = 0.6 + 0.45 * torch.rand(n, 1, 1, device=device).sqrt()
        brightness = 0.12 * (torch.rand(n, 1, 1, device=device) - 0.5)
        changed = ((colour[dirty] + tint).clamp(0, 1) - 0.5) * contrast + 0.5 + brightness
        # Tints must not make the text unreadable: keep at least 60 % of the drawn difference between paper and ink.
        drawn, now = (c[:, 1].mean(-1) - c[:, 0].mean(-1) for c in (colour[dirty], changed))
        readable = (now * drawn.sign() > 0.6 * drawn.abs()).view(-1, 1, 1)
        colour = colour.index_copy(0, dirty, torch.where(readable, changed, colour[dirty]))
    return colour[:, 0, :, None, None], colour[:, 1, :, None, None]


@torch.no_grad()
def render_media(batch: dict[str, Tensor], training: bool, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """A batch with its media as `OmniModel.forward` reads them: `pages`, `mel` and, if some were warped, `keep`."""
    inputs = {name: t for name, t in batch.items() if name != "shade"}
    if "pages" in batch:
        inputs["pages"], keep = render_pages(batch["pages"], batch["shade"], training, dtype)
        inputs |= {} if keep is None else {"keep": keep}
    if "mel" in batch:
        inputs["mel"] = render_mel(batch["mel"], training, dtype)
    return inputs


def render_pages(
    pages: Tensor, shade: Tensor, training: bool, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Colours, spoils (in training) and normalises pages.

    Args:
        pages: ink coverage uint8 `[N, H, W]`, 255 = full ink. shade: uint8 `[N, 6]`, background RGB then ink RGB.
        training: False renders the pages clean. dtype: of the result.

    Returns:
        Normalised `[N, 3, H, W]`, and bool `[N]`: whether glyphs are still where they were drawn (False after a warp).
    """
    device = pages.device
    work = torch.float16 if pages.is_cuda else torch.float32  # 11 bits suffice for 8-bit pixels and halve the traffic
    ink = pages.to(work).div_(255)[:, None]
    in_place = torch.ones(len(pages), dtype=torch.bool, device=device)
    changed = subset(torch.arange(len(pages), device=device), 1 - CLEAN_SHARE) if training else None
    dirty = None if changed is None else subset(changed, MARKED_SHARE)
    photos = pages_seen = None
    if changed is not None and (i := subset(changed, BANNER_SHARE)) is not None:
        ink[i] = colours.banner(ink[i])
    if dirty is not None:
        if (i := subset(dirty, 0.06)) is not None:
            ink[i] = camera.show_through(ink[i])
        count = math.floor(PHOTO_SHARE * len(dirty) + random.random())
        photos, flat = (dirty[:count] if count else None), dirty[count:]  # `subset` has shuffled them
        if photos is not None:
            ink[photos], pages_seen = camera.photograph(ink[photos])
            in_place[photos] = False
        if (i := subset(flat, 0.25)) is not None:
            ink[i] = warp(ink[i])
            in_place[i] = False
        if (i := subset(flat, TILTED_SHARE)) is not None:
            ink[i] = warp(ink[i], degrees=TILT)
            in_place[i] = False
        if (i := subset(dirty, 0.3)) is not None:  # heavier or lighter print
            ink[i] = ink[i].pow(torch.exp(uniform(len(i), -0.4, 0.4, device)).to(work))
        if (i := subset(dirty, 0.2)) is not None:
            ink[i] = rescale(ink[i])
        if (i := subset(dirty, 0.4)) is not None:
            ink[i] = blur(ink[i])
    paper, pen = page_colours(shade, dirty)
    x = torch.addcmul(paper.to(work), (pen - paper).to(work), ink)
    for effect in () if changed is None else (colours.filled, colours.lines):
        if (i := subset(changed, COLOUR_SHARE)) is not None:
            x[i] = effect(x[i], ink[i])
    if dirty is not None:
        for effect, share in ((camera.folds, 0.07), (camera.coffee, 0.05), (camera.fade, 0.12)):
            if (i := subset(dirty, share)) is not None:
                x[i] = effect(x[i])
        if photos is not None:
            x[photos] = camera.on_desk(x[photos], pages_seen)
            if (i := subset(photos, 0.5)) is not None:
                x[i] = camera.shadow(x[i])
            if (i := subset(photos, 0.3)) is not None:
                x[i] = camera.shake(x[i])
        if (i := subset(flat, 0.04)) is not None:
            x[i] = camera.fax(x[i])
        if (i := subset(dirty, 0.4)) is not None:
            x[i] = uneven_light(x[i])
        if (i := subset(dirty, 0.5)) is not None:
            x[i] = add_noise(x[i])
        if (i := subset(dirty, 0.25)) is not None:
            x[i] = jpeg(x[i])
    return normalise(x, dtype), in_place


@torch.no_grad()
def render_mel(mel: Tensor, training: bool, dtype: torch.dtype = torch.float32) -> Tensor:
    """Log-mel `[M, F, 128]`; in training half of the clips get a spectral tilt, noise and a masked band."""
    x = mel.float()
    if training and (i := subset(torch.arange(len(mel), device=mel.device), 0.5)) is not None:
        part, n, bins = x[i], len(i), mel.shape[-1]
        ramp = torch.linspace(-1, 1, bins, device=mel.device)
        draw = lambda: torch.rand(n, 1, 1, device=mel.device)  # noqa: E731
        part = part + (draw() - 0.5) * 0.3 * ramp + (draw() - 0.5) * 0.1
        part = part + torch.randn_like(part) * draw() * 0.03
        band = torch.arange(bins, device=mel.device)
        start = draw() * bins
        hidden = (band >= start) & (band < start + draw() * 14)
        x[i] = torch.where(hidden, part.mean((1, 2), keepdim=True), part)
    return x.to(dtype)
