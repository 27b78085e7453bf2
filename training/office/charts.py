"""Bar, column, line and pie charts on the ink canvas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from training.office.document import Block
from training.pages.blocks import Box, Setter
from training.pages.canvas import Canvas

SHADES = (255, 200, 150, 110, 75, 225, 130, 55)


def draw_chart(s: Setter, box: Box, block: Block) -> bool:
    """Draws a chart over the width of ``box``; False, and nothing drawn, if there is no room for its labels.

    Options of the block: ``form``, ``values``, ``printed`` (texts shown at the marks, or None), ``ticks`` (values and
    texts of the axis, or None), ``name`` (of the axis, may be empty), ``value_texts`` (the values as texts, one
    list per series, entered in the character map where they are not printed).
    """
    o, r = block.options, s.r
    height = min(box.bottom - box.y - 6, box.width * r.uniform(0.45, 0.8), 330)
    if height < 110 or box.width < 170:
        return False
    area = Box(box.x0, box.x1, box.y, box.y + height)
    plan = {"bar": _bars, "column": _columns, "line": _line, "pie": _pie}[o["form"]](s, area, block)
    if plan is None and o["form"] == "column":  # labels too wide to stand side by side
        plan = _bars(s, area, block)
    if plan is None:
        return False
    box.y += height + r.randint(4, 12)
    return True


def segment(canvas: Canvas, x0: float, y0: float, x1: float, y1: float, fill: int, width: int = 1) -> None:
    """A straight line in any direction."""
    n = int(max(abs(x1 - x0), abs(y1 - y0))) + 1
    for x, y in zip(np.linspace(x0, x1, n), np.linspace(y0, y1, n), strict=True):
        canvas.rect(x, y, x + width - 1, y + width - 1, fill=fill)


def _texts(s: Setter, places) -> bool:
    """All of (x, baseline, text, align) in the small face if all fit on the page."""
    f = s.style.small
    for x, y, text, align in places:
        left = x - {"l": 0, "c": 0.5, "r": 1}[align] * f.width(text)
        if left < 2 or left + f.width(text) > s.canvas.width - 3 or y - f.ascent < 1 or y + 3 > s.canvas.height:
            return False
    return all([s.canvas.text(x, y, text, f, align) for x, y, text, align in places])


def hint_value(s: Setter, o: dict, n: int, i: int, x: float, y: float, align: str = "c") -> None:
    """Value ``i`` of series ``n``, where it is not printed, in the character map alone."""
    if not o["printed"] and o.get("value_texts"):
        s.canvas.hint(x, y, o["value_texts"][n][i], s.style.small, align)


def in_valley(values: Sequence[float], i: int) -> bool:
    """Whether a line rises on both sides of its point ``i``, so that a number above would be crossed by it."""
    sides = [*values[max(i - 1, 0) : i], *values[i + 1 : i + 2]]
    return bool(sides) and min(sides) > values[i]


def _scale(o: dict) -> float:
    return max([*o["values"], *(value for value, _ in o["ticks"] or ())]) or 1.0


def _bars(s: Setter, box: Box, block: Block) -> bool | None:
    o, f, top = block.options, s.style.small, _scale(block.options)
    left = box.x0 + max(map(f.width, block.texts)) + 8
    right = box.x1 - max(map(f.width, o["printed"] or ["00"])) - 8
    step = (box.bottom - box.y - (f.height if o["ticks"] else 0)) / len(block.texts)
    if right - left < 60 or step < f.height:
        return None
    at = lambda value: left + (right - left) * value / top  # noqa: E731
    places = []
    for i, (label, value) in enumerate(zip(block.texts, o["values"], strict=True)):
        y = box.y + step * (i + 0.5) + f.cap_height / 2
        places.append((left - 6, y, label, "r"))
        if o["printed"]:
            places.append((at(value) + 4, y, o["printed"][i], "l"))
    places += [(at(value), box.bottom - 2, text, "c") for value, text in o["ticks"] or ()]
    if not _texts(s, places):
        return None
    for value, _ in o["ticks"] or ():
        s.canvas.line(at(value), box.y, at(value), box.bottom - f.height - 2, 70)
    thick = step * s.r.uniform(0.4, 0.8)
    for i, value in enumerate(o["values"]):
        y = box.y + step * (i + 0.5) - thick / 2
        s.canvas.rect(left, y, at(value), y + thick, fill=o.get("shade", 150), outline=255)
        hint_value(s, o, 0, i, at(value) + 4, y + (thick + f.cap_height) / 2, "l")
    s.canvas.line(left, box.y, left, box.bottom - (f.height if o["ticks"] else 0), 255)
    return True


def _axes(s: Setter, box: Box, block: Block):
    """Places of the labels and ticks of an upright chart: (left, right, base, y of a value, x of a label, texts)."""
    o, f, top = block.options, s.style.small, _scale(block.options)
    left = box.x0 + (max(f.width(text) for _, text in o["ticks"]) + 8 if o["ticks"] else 6)
    base, high = box.bottom - f.height - 4, box.y + f.height + 4
    step = (box.x1 - left) / len(block.texts)
    if step < max(map(f.width, block.texts)) + 3 or base - high < 50:
        return None
    y_of = lambda value: base - (base - high) * value / top  # noqa: E731
    x_of = lambda i: left + step * (i + 0.5)  # noqa: E731
    places = [(x_of(i), box.bottom - 4, text, "c") for i, text in enumerate(block.texts)]
    places += [(left - 5, y_of(value) + f.cap_height / 2, text, "r") for value, text in o["ticks"] or ()]
    if o["printed"]:
        if step < max(map(f.width, o["printed"])) + 2:
            return None
        for i, v in enumerate(o["values"]):
            below = o["form"] == "line" and in_valley(o["values"], i) and y_of(v) + f.cap_height + 12 < base
            places.append((x_of(i), y_of(v) + (f.cap_height + 6 if below else -4), o["printed"][i], "c"))
    return left, base, y_of, x_of, step, places


def _columns(s: Setter, box: Box, block: Block) -> bool | None:
    plan = _axes(s, box, block)
    if plan is None or not _texts(s, plan[-1]):
        return None
    left, base, y_of, x_of, step, _ = plan
    for value, _ in block.options["ticks"] or ():
        s.canvas.line(left, y_of(value), box.x1, y_of(value), 60)
    half, several = step * s.r.uniform(0.22, 0.42), s.r.chance(0.3)
    for i, value in enumerate(block.options["values"]):
        shade = SHADES[i % len(SHADES)] if several else block.options.get("shade", 150)
        s.canvas.rect(x_of(i) - half, y_of(value), x_of(i) + half, base, fill=shade, outline=255)
        hint_value(s, block.options, 0, i, x_of(i), y_of(value) - 4)
    s.canvas.line(left, base, box.x1, base, 255)
    return True


def _line(s: Setter, box: Box, block: Block) -> bool | None:
    plan = _axes(s, box, block)
    if plan is None or not _texts(s, plan[-1]):
        return None
    left, base, y_of, x_of, _, _ = plan
    for value, _ in block.options["ticks"] or ():
        s.canvas.line(left, y_of(value), box.x1, y_of(value), 60)
    points = [(x_of(i), y_of(value)) for i, value in enumerate(block.options["values"])]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        segment(s.canvas, x0, y0, x1, y1, 220, s.r.pick((1, 2)))
    for i, (x, y) in enumerate(points):
        s.canvas.rect(x - 2, y - 2, x + 2, y + 2, fill=255)
        hint_value(s, block.options, 0, i, x, y - 4)
    s.canvas.line(left, base, box.x1, base, 255)
    s.canvas.line(left, box.y, left, base, 255)
    return True


def _pie(s: Setter, box: Box, block: Block) -> bool | None:
    """Labels stand in a legend with the shade of their slice, or at the slices."""
    o, f, total = block.options, s.style.small, sum(block.options["values"])
    texts = [f"{a} {b}" for a, b in zip(block.texts, o["printed"], strict=True)] if o["printed"] else list(block.texts)
    wide = max(map(f.width, texts))
    radius = min((box.bottom - box.y) / 2 - 6, (box.width - 2 * wide) / 2 - 14)
    legend = s.r.chance(0.4) or radius < 40
    if legend:
        radius = min((box.bottom - box.y) / 2 - 6, (box.width - wide - 40) / 2)
    if radius < 34 or (legend and len(texts) > 5):  # more shades than the eye can match with a legend
        return None
    cx, cy = (box.x0 + radius + 6 if legend else (box.x0 + box.x1) / 2), (box.y + box.bottom) / 2
    ends = np.cumsum([0.0, *o["values"]]) / total
    y, x = np.mgrid[: s.canvas.height, : s.canvas.width]
    angle = (np.arctan2(x - cx, cy - y) / (2 * math.pi)) % 1.0
    inside = (x - cx) ** 2 + (y - cy) ** 2 <= radius**2
    places, ink = [], s.canvas.ink()
    for i, text in enumerate(texts):
        middle = 2 * math.pi * (ends[i] + ends[i + 1]) / 2
        if legend:
            places.append((cx + radius + 30, box.y + (i + 1) * (f.height + 4), text, "l"))
        else:
            px, py = cx + (radius + 8) * math.sin(middle), cy - (radius + 8) * math.cos(middle)
            places.append((px, py + f.cap_height / 2, text, "l" if math.sin(middle) >= 0 else "r"))
    baselines = sorted((y, align) for _, y, _, align in places)
    crowded = any(b[1] == a[1] and b[0] - a[0] < f.height - 2 for a, b in itertools.pairwise(baselines))
    if crowded or len(texts) > len(SHADES) or not _texts(s, places):
        return None
    for i in range(len(texts)):
        ink[inside & (angle >= ends[i]) & (angle < ends[i + 1])] = SHADES[i]
        if legend:
            top = box.y + (i + 1) * (f.height + 4) - f.cap_height
            s.canvas.rect(cx + radius + 14, top, cx + radius + 24, top + 9, fill=SHADES[i], outline=255)
    for end in ends[:-1]:
        segment(
            s.canvas, cx, cy, cx + radius * math.sin(2 * math.pi * end), cy - radius * math.cos(2 * math.pi * end), 0
        )
    return True
