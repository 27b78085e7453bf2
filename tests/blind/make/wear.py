"""What happens to a page of paper: a stamp, a crooked scan, a photograph on a desk, faded print."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

STAMP_FONT = "/usr/share/fonts/opentype/courier-prime/Courier Prime Bold.otf"


def worn(page: Image.Image, how: list[str], seed: int) -> Image.Image:
    """The page after each treatment, in order.

    Args:
        page: RGB.
        how: names of :data:`TREATMENTS`; "stamp:TEXT@x,y" puts TEXT in a frame around the point at these fractions of
            width and height.
        seed: of everything random.
    """
    rng = np.random.default_rng(seed)
    for name in how:
        name, _, argument = name.partition(":")
        page = stamped(page, argument, rng) if name == "stamp" else TREATMENTS[name](page, rng)
    return page


def stamped(page: Image.Image, argument: str, rng: np.random.Generator) -> Image.Image:
    """A framed word in red or blue ink, turned a little."""
    text, _, place = argument.partition("@")
    x, y = (float(part) for part in place.split(","))
    font = ImageFont.truetype(STAMP_FONT, round(page.width / 22))
    left, top, right, bottom = font.getbbox(text)
    pad = font.size // 2
    ink = Image.new("RGBA", (right - left + 2 * pad, bottom - top + 2 * pad), (0, 0, 0, 0))
    draw = ImageDraw.Draw(ink)
    colour = [(176, 30, 40, 200), (30, 50, 150, 200)][int(rng.integers(2))]
    draw.rounded_rectangle((2, 2, ink.width - 3, ink.height - 3), pad // 2, outline=colour, width=max(3, pad // 5))
    draw.text((pad - left, pad - top), text, font=font, fill=colour)
    ink = ink.rotate(float(rng.uniform(4, 14)), expand=True, resample=Image.Resampling.BICUBIC)
    page = page.copy()
    page.paste(ink, (round(x * page.width - ink.width / 2), round(y * page.height - ink.height / 2)), ink)
    return page


def scanned(page: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Turned by one or two degrees, grey paper, noise, a soft lens."""
    angle = float(rng.uniform(0.6, 1.8) * rng.choice([-1, 1]))
    page = page.rotate(angle, resample=Image.Resampling.BICUBIC, fillcolor=(238, 237, 233))
    pixels = np.asarray(page.filter(ImageFilter.GaussianBlur(0.6)), np.float32)
    pixels = 18 + pixels * 0.88 + rng.normal(0, 3.0, pixels.shape[:2])[..., None]
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def photographed(page: Image.Image, rng: np.random.Generator) -> Image.Image:
    """On a desk, seen from an angle, with the shadow of whoever holds the telephone."""
    width, height = round(page.width * 1.12), round(page.height * 1.1)
    desk = np.array(((112, 82, 58), (88, 92, 96), (140, 116, 88))[int(rng.integers(3))], np.float32)
    grain = rng.normal(0, 1, (height, 1, 1)) * 5 + rng.normal(0, 3, (height, width, 1))
    background = Image.fromarray((desk + grain).clip(0, 255).astype(np.uint8))
    margin = np.array([width - page.width, height - page.height]) / 2
    corners = np.array([(0, 0), (page.width, 0), (page.width, page.height), (0, page.height)], float)
    shift = rng.uniform(-0.7, 0.7, (4, 2)) * margin
    seen = corners + margin + shift
    coefficients = _perspective(seen, corners)
    flat = page.transform((width, height), Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BICUBIC)
    mask = Image.new("L", page.size, 255).transform((width, height), Image.Transform.PERSPECTIVE, coefficients)
    background.paste(flat, (0, 0), mask)
    pixels = np.asarray(background.filter(ImageFilter.GaussianBlur(0.5)), np.float32)
    x, y = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
    turn = rng.uniform(0, 2 * np.pi)
    shadow = 1 / (1 + np.exp(-9 * (np.cos(turn) * x + np.sin(turn) * y + 0.35)))
    light = (0.66 + 0.34 * shadow) * (1 - 0.10 * (x**2 + y**2) / 2)
    tint = np.array([1.0, 0.985, 0.94], np.float32)
    pixels = pixels * light[..., None] * tint + rng.normal(0, 2.5, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _perspective(seen: np.ndarray, flat: np.ndarray) -> list[float]:
    """The eight coefficients that take a point of the picture to one of the page."""
    rows, values = [], []
    for (x, y), (u, v) in zip(seen, flat, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    return np.linalg.solve(np.array(rows), np.array(values)).tolist()


def faded(page: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Thermal print that has lain in the sun: little contrast, less in the middle."""
    pixels = np.asarray(page, np.float32)
    y = np.linspace(-1, 1, page.height)[:, None, None]
    strength = 0.42 + 0.2 * y**2
    pixels = 236 - (255 - pixels) * strength + rng.normal(0, 2.0, pixels.shape[:2])[..., None]
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def turned(page: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Photographed or scanned crookedly: three to six degrees."""
    angle = float(rng.uniform(3, 6) * rng.choice([-1, 1]))
    return page.rotate(angle, resample=Image.Resampling.BICUBIC, expand=True, fillcolor=(205, 204, 200))


def copied(page: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A copy of a copy: almost black and white, specks, a dark edge."""
    pixels = np.asarray(page.convert("L").filter(ImageFilter.GaussianBlur(0.9)), np.float32)
    pixels = 255 / (1 + np.exp(-(pixels - 150 + rng.normal(0, 10, pixels.shape)) / 14))
    pixels[rng.random(pixels.shape) < 0.0006] = 0
    pixels[:, : max(3, page.width // 90)] *= 0.25
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGB")


TREATMENTS = {"scan": scanned, "photo": photographed, "faded": faded, "turned": turned, "copy": copied}
