"""Charts that are pictures: rows of symbols, progress bars, thermometers, dials and time lines."""

from __future__ import annotations

import itertools
import math

from training.office.document import Block
from training.office.plots import Plot, draw_plot
from training.office.sketch import Sketch
from training.pages.blocks import Box, Setter

SYMBOLS = ("dot", "square", "triangle", "person", "house", "bottle")
PICTURED = ("pictogram", "progress", "thermometer", "dial", "timeline")  # forms


class Picture(Plot):
    """One picture. Options besides those of `training.office.plots`:

    pictogram: ``symbol`` of `SYMBOLS`, ``each`` (what one stands for), ``key`` (the text that says so).
    progress: ``most`` (the full length). thermometer, dial: one value, with ``ticks``; ``mark`` and ``mark_text``: a
    line at another value. timeline: labels are the dates, ``printed`` what happened.
    """

    def _body(self, box: Box, sketch: Sketch) -> bool:
        return getattr(self, f"_{self.form}")(box, sketch)

    def _symbol(self, sketch: Sketch, x: float, y: float, size: float, level: int, share: float = 1.0) -> None:
        """A symbol with its top left corner at ``x``, ``y``; the left half of it where ``share`` is less than 1."""
        kind, half = self.o["symbol"], size / 2
        if kind == "square":
            sketch.rect(x, y, x + size, y + size, level, None)
        elif kind == "triangle":
            sketch.area([(x, y + size), (x + half, y), (x + size, y + size)], level)
        elif kind == "person":
            sketch.dot(x + half, y + size * 0.2, size * 0.19, level)
            sketch.area([(x + half * 0.5, y + size), (x + half, y + size * 0.36), (x + half * 1.5, y + size)], level)
        elif kind == "house":
            sketch.area([(x, y + half), (x + half, y), (x + size, y + half)], level)
            sketch.rect(x + size * 0.15, y + half, x + size * 0.85, y + size, level, None)
        elif kind == "bottle":
            sketch.rect(x + size * 0.4, y, x + size * 0.6, y + size * 0.35, level, None)
            sketch.rect(x + size * 0.25, y + size * 0.35, x + size * 0.75, y + size, level, None)
        else:
            sketch.dot(x + half, y + half, half, level)
        if share < 1:
            sketch.area(
                [(x + half, y - 2), (x + size + 2, y - 2), (x + size + 2, y + size + 2), (x + half, y + size + 2)], 0
            )

    def _pictogram(self, box: Box, sketch: Sketch) -> bool:
        f, o = self.small, self.o
        left = box.x0 + max(map(f.width, self.labels)) + 10
        counts = [value / o["each"] for value in self.rows[0]]
        step = (box.bottom - f.height - 8 - box.y) / len(counts)
        size = min((box.x1 - left - 6) / (max(counts) * 1.2 + 0.5), step * 0.75, 26)
        if size < 8 or step < f.height:
            return False
        level = self.r.pick((255, 200, 150, 110))
        for i, count in enumerate(counts):
            y = box.y + step * (i + 0.5)
            self.put(left - 8, y + f.cap_height / 2, self.labels[i], "r")
            for k in range(math.ceil(count)):
                self._symbol(sketch, left + k * size * 1.2, y - size / 2, size, level, min(count - k, 1))
        y = box.bottom - 4
        self._symbol(sketch, box.x0 + 2, y - f.cap_height / 2 - min(size, 14) / 2, min(size, 14), level)
        self.put(box.x0 + 22, y, o["key"], "l")
        return True

    def _progress(self, box: Box, sketch: Sketch) -> bool:
        f, most = self.small, self.o["most"]
        above = self.r.chance(0.4)  # names above the bars
        left = box.x0 + (2 if above else max(map(f.width, self.labels)) + 10)
        right = box.x1 - max(map(f.width, self.printed[0])) - 8
        step = (box.bottom - box.y) / len(self.labels)
        thick = min(step * self.r.uniform(0.3, 0.6), 20) if not above else min(step - f.height - 8, 16)
        if right - left < 60 or thick < 5 or step < f.height + 3:
            return False
        level = self.r.pick((255, 190, 140))
        for i, value in enumerate(self.rows[0]):
            y = box.y + step * (i + 0.5) + (f.height / 2 if above else 0)
            end = left + (right - left) * min(value / most, 1)
            sketch.rect(left, y - thick / 2, right, y + thick / 2, self.r.pick((30, 45)), self.edge)
            if value > 0:
                sketch.rect(left, y - thick / 2, end, y + thick / 2, level, self.edge)
            place = (left, y - thick / 2 - 4, "l") if above else (left - 8, y + f.cap_height / 2, "r")
            self.put(place[0], place[1], self.labels[i], place[2])
            self.put(right + 6, y + f.cap_height / 2, self.printed[0][i], "l")
        return True

    def _thermometer(self, box: Box, sketch: Sketch) -> bool:
        f, o = self.small, self.o
        middle, bulb = (box.x0 + box.x1) / 2, self.r.randint(11, 16)
        half, top, base = bulb * 0.5, box.y + f.height, box.bottom - 2 * bulb - 4
        if base - top < 90:
            return False
        at = lambda value: base - (base - top) * (value - self.low) / (self.high - self.low)  # noqa: E731
        level = self.r.pick((255, 190, 140))
        sketch.rect(middle - half - 1, at(self.high) - 6, middle + half + 1, base + bulb, 25, 255)
        sketch.rect(middle - half, at(self.rows[0][0]), middle + half, base + bulb, level, None)
        sketch.dot(middle, base + bulb, bulb, level)
        for value, text in o["ticks"]:
            sketch.line(middle + half + 2, at(value), middle + half + 9, at(value), 255)
            self.put(middle + half + 13, at(value) + f.cap_height / 2, text, "l")
        if o.get("mark_text"):
            y = at(o["mark"])
            sketch.line(middle - half - 14, y, middle + half, y, 255, 2)
            self.put(middle - half - 18, y + f.cap_height / 2, o["mark_text"], "r")
        return True

    def _dial(self, box: Box, sketch: Sketch) -> bool:
        f, o = self.small, self.o
        wide = max(f.width(text) for _, text in o["ticks"])
        radius = min(box.width / 2 - wide - 10, box.bottom - box.y - 3 * f.height)
        if radius < 55:
            return False
        cx, cy = (box.x0 + box.x1) / 2, box.y + radius + 1.6 * f.height
        turn = lambda value: math.pi * (1 - (value - self.low) / (self.high - self.low))  # noqa: E731
        rim = [(cx + radius * math.cos(math.pi * k / 40), cy - radius * math.sin(math.pi * k / 40)) for k in range(41)]
        for a, b in itertools.pairwise(rim):
            sketch.line(*a, *b, 255, 2)
        sketch.line(cx - radius, cy, cx + radius, cy, 120, 1)
        for value, text in o["ticks"]:
            cos, sin = math.cos(turn(value)), math.sin(turn(value))
            sketch.line(
                cx + radius * cos, cy - radius * sin, cx + 0.88 * radius * cos, cy - 0.88 * radius * sin, 255, 2
            )
            align = "c" if abs(cos) < 0.25 else "l" if cos > 0 else "r"
            self.put(cx + (radius + 6) * cos, cy - (radius + 5) * sin + f.cap_height * (1 - sin) / 2, text, align)
        cos, sin = math.cos(turn(self.rows[0][0])), math.sin(turn(self.rows[0][0]))
        sketch.line(cx, cy, cx + 0.8 * radius * cos, cy - 0.8 * radius * sin, 255, 3)
        sketch.dot(cx, cy, 6, 255)
        if self.printed:
            self.put(cx, cy + f.height + 4, self.printed[0][0], "c", self.bold)
        return True

    def _timeline(self, box: Box, sketch: Sketch) -> bool:
        f, count = self.small, len(self.labels)
        step = (box.bottom - box.y) / count
        sides = self.r.chance(0.25)  # events in turn on both sides of the line
        middle = (box.x0 + box.x1) / 2 if sides else box.x0 + max(map(self.bold.width, self.labels)) + 18
        if step < f.height + 4:
            return False
        sketch.line(middle, box.y + step * 0.3, middle, box.y + step * (count - 0.3), 200, self.r.pick((1, 2, 3)))
        level = self.r.pick((255, 0, 140))
        for i, (date, text) in enumerate(zip(self.labels, self.printed[0], strict=True)):
            y = box.y + step * (i + 0.5)
            sketch.dot(middle, y, 5, level)
            baseline = y + f.cap_height / 2
            if sides:
                sign, align = (1, "l") if i % 2 else (-1, "r")
                self.put(middle + 12 * sign, baseline - f.height / 2, date, align, self.bold)
                self.put(middle + 12 * sign, baseline + f.height / 2, text, align)
            else:
                self.put(middle - 12, baseline, date, "r", self.bold)
                self.put(middle + 14, baseline, text, "l")
        return True


def draw_picture(s: Setter, box: Box, block: Block) -> bool:
    """Draws a chart of the forms :data:`PICTURED`; False, and nothing drawn, if its texts do not fit."""
    return draw_plot(s, box, block, Picture)
