"""Lines, bars, dots and slices of a chart, drawn large and reduced; by hand they tremble."""

from __future__ import annotations

import itertools
import math

import numpy as np
from PIL import Image, ImageDraw

from training.pages.blocks import Box, Setter

SCALE = 2  # shapes are drawn so much larger and then reduced


class Sketch:
    """Shapes of one chart, drawn large; by hand they tremble."""

    def __init__(self, s: Setter, area: Box, rough: bool) -> None:
        self.r, self.rough, self.x, self.y = s.r, rough, int(area.x0), int(area.y)
        self.size = max(int(area.width) + 2, 4), max(int(area.bottom - area.y) + 2, 4)
        self.image = Image.new("L", (self.size[0] * SCALE, self.size[1] * SCALE), 0)
        self.draw = ImageDraw.Draw(self.image)

    def at(self, x: float, y: float) -> tuple[float, float]:
        return (int(x) - self.x) * SCALE, (int(y) - self.y) * SCALE

    def line(self, x0: float, y0: float, x1: float, y1: float, level: int, width: float = 1, dash: int = 0) -> None:
        n = max(int(math.hypot(x1 - x0, y1 - y0) / (14 if self.rough else 1e9)), 1)
        if dash:
            n = max(int(math.hypot(x1 - x0, y1 - y0) / dash), 1)
        wave = 1.1 if self.rough else 0.0
        points = [
            (x0 + (x1 - x0) * k / n + self.r.uniform(-wave, wave), y0 + (y1 - y0) * k / n + self.r.uniform(-wave, wave))
            for k in range(n + 1)
        ]
        points = [((x - self.x) * SCALE, (y - self.y) * SCALE) for x, y in points]
        if not self.rough and (int(x0) == int(x1) or int(y0) == int(y1)):
            points = [(round(x / SCALE) * SCALE, round(y / SCALE) * SCALE) for x, y in points]
        for k, (a, b) in enumerate(itertools.pairwise(points)):
            if not dash or k % 2 == 0:
                self.draw.line((*a, *b), fill=level, width=max(int(width * SCALE), 1))

    def rect(self, x0: float, y0: float, x1: float, y1: float, level: int, edge: int | None, hatched: int = 0) -> None:
        (x0, x1), (y0, y1) = sorted((x0, x1)), sorted((y0, y1))
        (left, top), (right, bottom) = self.at(x0, y0), self.at(x1, y1)
        right, bottom = max(right, left + 1), max(bottom, top + 1)
        if hatched:
            self.draw.rectangle((left, top, right, bottom), fill=0)
            box = (int(left), int(top), int(right), int(bottom))
            y, x = np.mgrid[box[1] : box[3], box[0] : box[2]]
            stripes = {1: (x + y) % 12 < 4, 2: (x - y) % 12 < 4, 3: (x % 8 < 3) & (y % 8 < 3), 4: y % 10 < 3}[hatched]
            self.image.paste(Image.fromarray((stripes * np.uint8(level)).astype(np.uint8)), box[:2])
        else:
            self.draw.rectangle((left, top, right, bottom), fill=level)
        if edge is not None:
            for a, b in (((x0, y0), (x1, y0)), ((x1, y0), (x1, y1)), ((x1, y1), (x0, y1)), ((x0, y1), (x0, y0))):
                self.line(*a, *b, edge)

    def dot(self, x: float, y: float, radius: float, level: int, shape: int = 0) -> None:
        x, y, k = (x - self.x) * SCALE, (y - self.y) * SCALE, radius * SCALE
        if shape == 0:
            self.draw.ellipse((x - k, y - k, x + k, y + k), fill=level, outline=255)
        elif shape == 1:
            self.draw.rectangle((x - k, y - k, x + k, y + k), fill=level, outline=255)
        else:
            self.draw.polygon([(x, y - k - 1), (x + k + 1, y + k), (x - k - 1, y + k)], fill=level, outline=255)

    def area(self, points: list[tuple[float, float]], level: int) -> None:
        self.draw.polygon([((x - self.x) * SCALE, (y - self.y) * SCALE) for x, y in points], fill=level)

    def slice(self, x: float, y: float, radius: float, start: float, end: float, level: int) -> None:
        """A slice between two shares of the turn, clockwise from the top."""
        x, y, k = (x - self.x) * SCALE, (y - self.y) * SCALE, radius * SCALE
        self.draw.pieslice(
            (x - k, y - k, x + k, y + k), 360 * start - 90, 360 * end - 90, fill=level, outline=0, width=2
        )

    def press(self, ink: np.ndarray) -> None:
        """Lays the shapes on the page's ink, uint8 ``[height, width]``."""
        small = np.asarray(self.image.reduce(SCALE))
        region = ink[self.y : self.y + small.shape[0], self.x : self.x + small.shape[1]]
        np.maximum(region, small[: region.shape[0], : region.shape[1]], out=region)
