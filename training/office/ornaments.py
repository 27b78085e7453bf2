"""What stands on pages beside their text: bar codes, QR codes, logos and pictures, in places that are empty."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from training.pages.values import Rng

ORNAMENT_SHARE = 0.3  # of pages
CLEAR = 6  # pixels around an ornament
TRIES = 12  # places that are looked at for each
FINDER = np.array([[1] * 7, [1, 0, 0, 0, 0, 0, 1], *[[1, 0, 1, 1, 1, 0, 1]] * 3, [1, 0, 0, 0, 0, 0, 1], [1] * 7], bool)


def bar_code(r: Rng, page: tuple[int, int]) -> np.ndarray:
    """Bars of one to four units, lying or standing."""
    unit, height = r.randint(1, 3), r.randint(18, max(20, page[0] // 8))
    widths = [r.randint(1, 4) * unit for _ in range(2 * r.randint(12, 36) + 1)]
    row = np.repeat(np.arange(len(widths)) % 2 == 0, widths)
    bars = np.tile(np.where(row, 255, 0).astype(np.uint8), (height, 1))
    return bars.T if r.chance(0.12) else bars


def qr_code(r: Rng, page: tuple[int, int]) -> np.ndarray:
    """Modules at random, with the three finder patterns."""
    modules = 17 + 4 * r.randint(1, 4)
    bits = np.random.default_rng(r.getrandbits(32)).random((modules, modules)) < 0.5
    for rows, columns in ((slice(0, 8), slice(0, 8)), (slice(0, 8), slice(-8, None)), (slice(-8, None), slice(0, 8))):
        bits[rows, columns] = False
    bits[:7, :7] = bits[:7, -7:] = bits[-7:, :7] = FINDER
    scale = r.randint(2, max(2, min(page) // (4 * modules)))
    return np.kron(bits, np.ones((scale, scale), bool)).astype(np.uint8) * r.randint(190, 255)


def logo(r: Rng, page: tuple[int, int]) -> np.ndarray:
    """Two or three plain shapes over one another."""
    side = r.randint(24, max(28, min(page) // 5))
    image = Image.new("L", (side, r.randint(side // 2, side)))
    draw, (width, height) = ImageDraw.Draw(image), image.size
    for number in range(r.randint(2, 3)):
        x0, x1 = sorted(r.sample(range(width), 2))
        y0, y1 = sorted(r.sample(range(height), 2))
        level, shape = r.choice((90, 140, 200, 255, 0)[: 5 if number else 4]), r.randint(0, 3)
        if shape == 0:
            draw.ellipse((x0, y0, x1, y1), fill=level)
        elif shape == 1:
            draw.ellipse((x0, y0, x1, y1), outline=255, width=r.randint(2, 6))
        elif shape == 2:
            draw.rectangle((x0, y0, x1, y1), fill=level)
        else:
            draw.polygon([(r.randint(0, width), r.randint(0, height)) for _ in range(r.randint(3, 6))], fill=level)
    return np.array(image)


def picture(r: Rng, page: tuple[int, int]) -> np.ndarray:
    """Light and dark areas that run into each other, as in a photograph, with an edge or none."""
    size = r.randint(40, max(44, page[1] // 3)), r.randint(40, max(44, page[0] // 4))
    noise = np.random.default_rng(r.getrandbits(32))
    image = Image.new("L", size)
    for cells, weight in ((3, 0.6), (9, 0.3), (40, 0.1)):
        levels = Image.fromarray(noise.integers(0, 255, (cells, cells), dtype=np.uint8)).resize(size, Image.BICUBIC)
        image = Image.fromarray((np.array(image) + weight * np.array(levels)).clip(0, 255).astype(np.uint8))
    if r.chance(0.4):
        ImageDraw.Draw(image).rectangle((0, 0, size[0] - 1, size[1] - 1), outline=255, width=r.randint(1, 3))
    return np.array(image)


KINDS: tuple[Callable[[Rng, tuple[int, int]], np.ndarray], ...] = (bar_code, qr_code, logo, logo, picture)


def ornament(r: Rng, ink: np.ndarray) -> int:
    """Draws one to three ornaments where a page is empty; returns how many had a place.

    Args:
        ink: uint8 ``[height, width]``, changed in place; what is there stays as it is.
    """
    height, width = ink.shape
    filled = np.zeros((height + 1, width + 1), np.int32)  # pixels with ink above and left of a point
    drawn = 0
    for _ in range(r.choices((1, 2, 3), (5, 3, 1))[0]):
        shape = r.pick(KINDS)(r, (height, width))
        h, w = shape.shape
        if h + 2 * CLEAR >= height or w + 2 * CLEAR >= width:
            continue
        np.cumsum(np.cumsum(ink > 0, 0, dtype=np.int32), 1, out=filled[1:, 1:])
        for _ in range(TRIES):
            y, x = r.randint(CLEAR, height - h - CLEAR), r.randint(CLEAR, width - w - CLEAR)
            y0, y1, x0, x1 = y - CLEAR, y + h + CLEAR, x - CLEAR, x + w + CLEAR
            if filled[y1, x1] - filled[y0, x1] - filled[y1, x0] + filled[y0, x0] == 0:
                ink[y : y + h, x : x + w] = shape
                drawn += 1
                break
    return drawn
