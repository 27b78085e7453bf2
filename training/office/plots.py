"""Charts as programs and people draw them on the ink canvas: marks, legends, grids, axes, titles, dark or by hand.

`draw_plot` takes the blocks of `training.office.charts` and `training.office.series_charts` and more: the forms area,
step, dots, lollipop, donut, grouped_bar and stacked_bar, axes that do not begin at zero, a title and a note of its own.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from training.office.chart_looks import PALETTES
from training.office.charts import in_valley
from training.office.document import Block
from training.office.sketch import Sketch
from training.pages.blocks import Box, Setter
from training.pages.canvas import Face, face, font_files

LYING = ("bar", "grouped_bar", "stacked_bar", "dots")
ROUND = ("pie", "donut")
MOST_SHADES = 5  # of a pie with a legend
Place = tuple[float, float, str, Face, str, int]  # x, baseline, text, face, align, fill


class Plot:
    """One chart over the width of a box: first the places of all texts, then, if they fit, the drawing."""

    def __init__(self, s: Setter, box: Box, block: Block) -> None:
        o, r = block.options, s.r
        self.s, self.r, self.o, self.box, self.labels, self.form = s, r, o, box, block.texts, o["form"]
        many = "series" in o
        self.names: list[str] = list(o["series"]) if many else []
        self.rows: list[list[float]] = o["values"] if many else [o["values"]]
        self.printed = o["printed"] if many or o["printed"] is None else [o["printed"]]
        self.value_texts: list[list[str]] = [] if self.printed else o.get("value_texts", [])
        self.stacked, self.lying = self.form.startswith("stacked"), self.form in LYING
        look = o.get("look", {})
        self.rough = look.get("rough", r.chance(0.13))
        self.small, self.bold = s.style.small, s.style.bold
        if self.rough and (hands := font_files(False, latin=True, hand=True)) and r.chance(0.8):
            self.small = self.bold = face(r.pick(hands), max(14, self.small.size + 3))
        self.palette = look.get("palette", r.pick(PALETTES))
        self.dashes: tuple[int, ...] = look.get("dashes", ())  # of the lines in turn, 0 for a solid one
        self.key = 26 if self.dashes else max(self.small.cap_height, 7)  # how wide the sample of a legend is
        self.hatched = (not self.rough and r.chance(0.08)) or (self.rough and r.chance(0.5))
        shaded = self.form in (*ROUND, "line", "lines", "area", "step") or (self.stacked and self.printed)
        if shaded or "palette" in look:
            self.hatched = False
        self.edge = r.pick((255, None, None)) if not self.hatched else 255
        self.grid = r.pick((0, 40, 60, 60, 90)) if o["ticks"] else 0
        self.dash = r.pick((0, 0, 4))
        self.legend = r.pick(("top", "top", "bottom", "right", "right", "inside")) if many else ""
        self.inside = r.chance(0.3)  # values within the bars
        self.axis, self.framed, self.dark = r.pick((255, 255, 150, 0)), r.chance(0.12), r.chance(0.1)
        for name in ("edge", "grid", "dash", "legend", "axis", "framed", "dark"):
            if name in look:
                setattr(self, name, look[name])
        if not o["ticks"]:
            self.grid = 0
        if self.legend == "ends" and not self._far_apart():
            self.legend = "right"
        if not o["ticks"]:
            self.axis = self.axis or 255
        self.places: list[Place] = []
        self.hints: list[tuple[float, float, str, str]] = []
        sums = [sum(column) for column in zip(*self.rows, strict=True)]
        every = sums if self.stacked else list(itertools.chain(*self.rows))
        self.low = min([0.0, *every, *(value for value, _ in o["ticks"] or ())])
        self.high = max([*every, *(value for value, _ in o["ticks"] or ())])
        if o.get("floor") is not None:
            self.low = o["floor"]
        self.high = self.high if self.high > self.low else self.low + 1

    def _far_apart(self) -> bool:
        """Whether lines end so far from one another that their names can stand there."""
        last = sorted(row[-1] for row in self.rows)
        reach = max(map(max, self.rows)) - min(map(min, self.rows))
        return self.form == "lines" and all(b - a > 0.15 * reach for a, b in itertools.pairwise(last))

    def put(self, x: float, y: float, text: str, align: str, f: Face | None = None, fill: int = 255) -> None:
        self.places.append((x, y, text, f or self.small, align, fill))

    def say(self, n: int, i: int, x: float, y: float, align: str, fill: int = 255) -> None:
        """A value at its mark: in print, or in the character map alone, so that the eyes learn what marks stand for."""
        if self.printed:
            self.put(x, y, self.printed[n][i], align, fill=fill)
        else:
            self.hints.append((x, y, self.value_texts[n][i], align))

    def fitting(self) -> bool:
        """Whether no text leaves the page, and none of one line covers another."""
        spans = []
        for x, y, text, f, align, _ in self.places:
            left = x - {"l": 0, "c": 0.5, "r": 1}[align] * f.width(text)
            right = left + f.width(text)
            if left < 2 or right > self.s.canvas.width - 3 or y - f.ascent < 1 or y + 3 > self.s.canvas.height:
                return False
            if any(abs(y - v) < f.cap_height + 3 and left < b - 1 and a < right - 1 for a, b, v in spans):
                return False
            spans.append((left, right, y))
        return True

    def draw(self) -> bool:
        o, r, box, f = self.o, self.r, self.box, self.small
        room = box.bottom - box.y - 6
        ratio = r.uniform(0.45, 0.8) * (1.1 if len(self.labels) > 7 and self.lying else 1.0)
        height = min(room, box.width * ratio, 380)
        if "rich" in o and r.chance(0.35):  # a picture that fills the page
            height = min(room * r.uniform(0.6, 1.0), box.width * 1.15, 560)
        rows = len(self.labels) * (len(self.rows) if self.form == "grouped_bar" else 1)
        if self.lying or self.form in ("pictogram", "progress", "timeline"):
            height = min(room, max(height, rows * f.height * 1.15 + 4 * f.height))
        if self.form == "dial":
            height = min(height, box.width * 0.55 + 40)
        if height < 110 or box.width < 170:
            return False
        pad = r.randint(5, 10) if self.dark or self.framed else 0
        area = Box(box.x0, box.x1, box.y, box.y + height)
        inner = Box(area.x0 + pad, area.x1 - pad, area.y + pad, area.bottom - pad)
        self._titles(inner)
        sketch = Sketch(self.s, area, self.rough)
        self._legend(inner, sketch)
        if not self._body(inner, sketch) or not self.fitting():
            return False
        ink = self.s.canvas.ink()
        sketch.press(ink)
        for x, y, text, face_, align, fill in self.places:
            self.s.canvas.text(x, y, text, face_, align, fill)
        for x, y, text, align in self.hints:
            self.s.canvas.hint(x, y, text, f, align)
        if self.dark:
            self.s.canvas.panel(area.x0, area.y, area.x1, area.bottom, r.pick((255, 230, 205)), inverted=True)
        elif self.framed:
            self.s.canvas.rect(area.x0, area.y, area.x1, area.bottom, outline=r.pick((255, 120, 80)))
        box.y += height + r.randint(4, 12)
        return True

    def _body(self, box: Box, sketch: Sketch) -> bool:
        """All but titles and legend; False if it has no room."""
        return self._round(box, sketch) if self.form in ROUND else self._upright(box, sketch)

    def _titles(self, box: Box) -> None:
        """The chart's own title, subtitle and note above and below."""
        f = self.small
        for key, at in (("title", self.o.get("title_at", "top")), ("subtitle", "top"), ("note", "bottom")):
            text = self.o.get(key)
            if not text:
                continue
            g = self.bold if key == "title" else f
            if at == "top":
                align = self.o.get("align", "l")
                self.put({"l": box.x0, "c": (box.x0 + box.x1) / 2}[align], box.y + g.ascent, text, align, g)
                box.y += g.height + (6 if key == "title" else 4)
            else:
                self.put(box.x0, box.bottom - 4, text, "l", g)
                box.bottom -= g.height + 3

    def _swatch(self, sketch: Sketch, x: float, y: float, n: int) -> None:
        side = max(self.small.cap_height, 7)
        if self.form in ("lines", "line"):
            dash = self.dashes[n] if self.dashes else 0
            sketch.line(x - 3, y - side / 2, x + self.key + 3, y - side / 2, self.palette[n], 2, dash)
            if not self.dashes:
                sketch.dot(x + side / 2, y - side / 2, 3, self.palette[n], n % 3)
        else:
            sketch.rect(x, y - side, x + side, y, self.palette[n], self.edge, self._hatch(n))

    def _hatch(self, n: int) -> int:
        return n % 5 if self.hatched and (n or len(self.rows) == 1) else 0

    def _legend(self, box: Box, sketch: Sketch) -> None:
        """Names of the series above, under, beside or in the chart."""
        f, names = self.small, self.names
        if not names or self.legend == "ends":
            return
        widths = [f.width(name) + self.key + 18 for name in names]
        if sum(widths) > box.width and self.legend in ("top", "bottom"):
            self.legend = "right"
        if self.legend in ("top", "bottom"):
            x = box.x0 + self.r.pick((6, (box.width - sum(widths)) / 2))
            y = box.y + f.ascent if self.legend == "top" else box.bottom - 4
            for n, name in enumerate(names):
                self._swatch(sketch, x, y, n)
                self.put(x + self.key + 8, y, name, "l")
                x += widths[n]
            if self.legend == "top":
                box.y += f.height + 6
            else:
                box.bottom -= f.height + 6
            return
        high = max(max(row) for row in self.rows)
        need = (len(names) + 0.5) * (f.height + 4) / max(box.bottom - box.y - 2 * f.height - 8, 1)
        if self.legend == "inside" and self.form == "lines" and need < 0.4:
            self.high = max(self.high, self.low + (high - self.low) / (1 - need))
            left, top = box.x1 - max(widths) - 2, box.y + 4
        else:
            left, top = box.x1 - max(widths) + 4, box.y + (box.bottom - box.y) * self.r.uniform(0.05, 0.3)
            box.x1 = left - 8
        for n, name in enumerate(names):
            y = top + n * (f.height + 4) + f.ascent
            self._swatch(sketch, left, y, n)
            self.put(left + self.key + 8, y, name, "l")

    def _ends(self, box: Box) -> tuple[float, float, float, float] | None:
        """Left, right, top and base of the field between the axes; None if it is too small."""
        f, o = self.small, self.o
        ticks = [f.width(text) for _, text in o["ticks"] or ()]
        values = [f.width(text) for row in self.printed or () for text in row] or [0]
        if self.lying:
            left = box.x0 + max(map(f.width, self.labels)) + 8
            right = box.x1 - max([max(values) + 6, *(t / 2 + 2 for t in ticks)])
            top, base = box.y + 3, box.bottom - (f.height + 5 if ticks else 3)
        else:
            left, right = box.x0 + (max(ticks) + 9 if ticks else 4), box.x1 - 4
            if self.legend == "ends":
                right -= max(map(f.width, self.names)) + 4
            top = box.y + (f.height + 3 if self.printed else f.cap_height / 2 + 3)
            if o.get("axis"):
                top += f.height
            base = box.bottom - f.height - 6
        return (left, right, top, base) if right - left > 70 and base - top > 45 else None

    def _upright(self, box: Box, sketch: Sketch) -> bool:
        """Every chart with two axes, columns upright or bars lying."""
        o, f = self.o, self.small
        wrapped = self._wrap(box)
        if wrapped is None or (ends := self._ends(box)) is None:
            return False
        left, right, top, base = ends
        span = (right - left) if self.lying else (base - top)
        scale = lambda value: span * (value - self.low) / (self.high - self.low)  # noqa: E731
        self.at = lambda value: left + scale(value) if self.lying else base - scale(value)
        step = ((base - top) if self.lying else (right - left)) / len(self.labels)
        self.middle = lambda i: (top if self.lying else left) + step * (i + 0.5)
        if step < (f.height if self.lying else 8):
            return False
        for i, label in enumerate(wrapped):
            if self.lying:
                self.put(left - 6, self.middle(i) + f.cap_height / 2, label[0], "r")
            for k, text in enumerate(label if not self.lying else ()):
                self.put(self.middle(i), base + 4 + f.ascent + k * f.height, text, "c")
        for value, text in o["ticks"] or ():
            at = self.at(value)
            if self.lying:
                self.put(at, box.bottom - 3, text, "c")
                edge = (at, top, at, base)
            else:
                self.put(left - 6, at + f.cap_height / 2, text, "r")
                edge = (left, at, right, at)
            if self.grid:
                sketch.line(*edge, self.grid, 1, self.dash)
            elif self.axis:
                sketch.line(*((at, base, at, base + 3) if self.lying else (left - 3, at, left, at)), self.axis)
        if o.get("axis") and not self.lying:
            self.put(box.x0, box.y + f.ascent, o["axis"], "l")
        if not self._marks(sketch, step):
            return False
        zero = self.at(max(self.low, 0))
        if self.lying:
            sketch.line(zero, top, zero, base, self.axis or 120)
        else:
            sketch.line(left, zero, right, zero, self.axis or 120)
            if o["ticks"] and self.axis:
                sketch.line(left, top, left, base, self.axis)
        return True

    def _wrap(self, box: Box) -> list[list[str]] | None:
        """Labels in one line or two; None if they are too wide to stand side by side."""
        f, o = self.small, self.o
        if self.lying:
            return [[label] for label in self.labels]
        ticks = max((f.width(text) for _, text in o["ticks"] or ()), default=0)
        ends = max(map(f.width, self.names)) + 4 if self.legend == "ends" else 0
        step = (box.width - ticks - ends - 14) / len(self.labels)
        out = [[label] for label in self.labels]
        if max(map(f.width, self.labels)) + 4 > step:
            for i, label in enumerate(self.labels):
                words = label.split(" ")
                cut = (
                    min(range(1, len(words)), key=lambda k: abs(len(" ".join(words[:k])) - len(label) / 2))
                    if words[1:]
                    else 1
                )
                out[i] = [part for part in (" ".join(words[:cut]), " ".join(words[cut:])) if part]
            if max(f.width(text) for label in out for text in label) + 4 > step:
                return None
            box.bottom -= f.height
        return out

    def _marks(self, sketch: Sketch, step: float) -> bool:
        if self.form in ("line", "lines", "area", "step"):
            return self._curves(sketch, step)
        count = len(self.rows)
        wide = step * self.r.uniform(0.5, 0.85) / (1 if self.stacked else count)
        several = count == 1 and self.r.chance(0.12)
        first = self.r.randint(0, 4) if count == 1 else 0
        dotted = self.form in ("dots", "lollipop")
        for n, row in enumerate(self.rows):
            for i, value in enumerate(row):
                under = sum(self.rows[k][i] for k in range(n)) if self.stacked else max(self.low, 0)
                v1 = value + under if self.stacked else value
                centre = self.middle(i) + (0 if self.stacked else wide * (n - (count - 1) / 2))
                a, b = self.at(under), self.at(v1)
                level = self.palette[i % 8] if several else self.palette[first + n]
                if dotted:
                    end = (b, centre) if self.lying else (centre, b)
                    start = (a, centre) if self.lying else (centre, a)
                    sketch.line(*start, *end, 200 if self.form == "lollipop" else 70, 1)
                    sketch.dot(*end, 4, level)
                elif self.lying:
                    sketch.rect(a, centre - wide / 2, b, centre + wide / 2, level, self.edge, self._hatch(n))
                else:
                    sketch.rect(centre - wide / 2, a, centre + wide / 2, b, level, self.edge, self._hatch(n))
                if (self.printed or self.value_texts) and not self._value(n, i, centre, a, b, wide, level):
                    return False
        return True

    def _value(self, n: int, i: int, centre: float, a: float, b: float, wide: float, level: int) -> bool:
        """The value at or in a mark; False if there is no room."""
        f, text = self.small, (self.printed or self.value_texts)[n][i]
        size, room = f.width(text), abs(b - a)
        along = room > size + 3 if self.lying else (room > f.cap_height + 4 and wide > size + 2)
        solid = self.form not in ("dots", "lollipop") and not self._hatch(n)
        if self.stacked or (self.inside and solid and along and self.printed):
            if not along:
                return False
            middle = (a + b) / 2
            x, y = (middle, centre) if self.lying else (centre, middle)
            self.say(n, i, x, y + f.cap_height / 2, "c", fill=0 if level > 125 else 255)
            return True
        gap = 8 if self.form in ("dots", "lollipop") else 4
        if self.lying:
            a = a if solid else b  # a dot has its number beside it, below zero as well
            self.say(n, i, max(a, b) + gap + 1, centre + f.cap_height / 2, "l")
        elif b > a:  # below zero
            self.say(n, i, centre, b + f.cap_height + gap, "c")
        else:
            self.say(n, i, centre, b - gap, "c")
        return True

    def _curves(self, sketch: Sketch, step: float) -> bool:
        r, f = self.r, self.small
        width = r.pick((1, 1.5, 2, 2.5)) if not self.dashes else r.pick((2, 2.5))
        marked = self.form not in ("area", "step") and (len(self.rows) > 1 or r.chance(0.75)) and not self.dashes
        for n, row in enumerate(self.rows):
            points = [(self.middle(i), self.at(value)) for i, value in enumerate(row)]
            level = self.palette[n] if len(self.rows) > 1 else 230
            if self.form == "area":
                zero = self.at(max(self.low, 0))
                sketch.area([(points[0][0], zero), *points, (points[-1][0], zero)], r.pick((60, 90, 130)))
            path = points
            if self.form == "step":
                path = [(x + side * step / 2, y) for x, y in points for side in (-1, 1)]
            for a, b in itertools.pairwise(path):
                sketch.line(*a, *b, level, width, self.dashes[n] if self.dashes else 0)
            if self.legend == "ends":
                x, y = points[-1]
                self.put(x + step * 0.1 + 7, y + f.cap_height / 2, self.names[n], "l")
            for i, (x, y) in enumerate(points):
                if marked:
                    sketch.dot(x, y, 3, level, n % 3 if len(self.rows) > 1 else 0)
                if self.printed and f.width(self.printed[n][i]) > step - 2:
                    return False
                if self.printed or self.value_texts:
                    below = in_valley(row, i) and y + f.cap_height + 14 < self.at(self.low)
                    before, after = row[max(i - 1, 0)], row[min(i + 1, len(row) - 1)]
                    slope = (before > row[i] >= after) - (before < row[i] <= after)  # numbers keep off the line
                    align = "lcr"[1 - slope] if len(self.rows) == 1 and not below else "c"
                    x += 3 * slope if align != "c" else 0
                    self.say(n, i, x, y + (f.cap_height + 8 if below else -7), align)
        return True

    def _round(self, box: Box, sketch: Sketch) -> bool:
        f, r, values = self.small, self.r, self.rows[0]
        total, printed = sum(values), self.printed[0] if self.printed else None
        inside = bool(printed) and r.chance(0.35)
        texts = [
            f"{a} {b}" if printed and not inside else a for a, b in zip(self.labels, printed or values, strict=True)
        ]
        wide, tall = max(map(f.width, texts)), box.bottom - box.y
        radius = min(tall / 2 - f.height / 2 - 4, (box.width - 2 * wide) / 2 - 16)
        legend = r.chance(0.4) or radius < 42
        if legend and len(texts) > MOST_SHADES:  # more shades than the eye can match with a legend
            legend = False
        if legend:
            radius = min(tall / 2 - 4, (box.width - wide - 44) / 2)
        if radius < 42 or len(texts) > len(self.palette):
            return False
        cx, cy = box.x0 + (radius + 6 if legend else box.width / 2), box.y + tall / 2
        ends, top = np.cumsum([0.0, *values]) / total, cy - len(texts) * (f.height + 4) / 2
        for i, text in enumerate(texts):
            sketch.slice(cx, cy, radius, ends[i], ends[i + 1], self.palette[i])
            turn = math.pi * (ends[i] + ends[i + 1])
            sin, cos = math.sin(turn), math.cos(turn)
            if legend:
                y = top + i * (f.height + 4) + f.ascent
                self._swatch(sketch, cx + radius + 16, y, i)
                self.put(cx + radius + 22 + f.cap_height, y, text, "l")
            else:
                sketch.line(cx + radius * sin, cy - radius * cos, cx + (radius + 6) * sin, cy - (radius + 6) * cos, 160)
                y = cy - (radius + 10) * cos + f.cap_height * (1 - cos) / 2
                self.put(cx + (radius + 10) * sin, y, text, "l" if sin >= 0 else "r")
            if inside:
                share = 0.78 if self.form == "donut" else 0.66
                if (ends[i + 1] - ends[i]) * 2 * math.pi * radius * share < f.width(printed[i]) + 4:
                    return False
                fill = 0 if self.palette[i] > 125 else 255
                self.put(
                    cx + radius * share * sin, cy - radius * share * cos + f.cap_height / 2, printed[i], "c", fill=fill
                )
        if self.form == "donut":
            sketch.dot(cx, cy, radius * 0.55, 0)
            if middle := self.o.get("middle"):
                if self.bold.width(middle) > radius * 0.95:
                    return False
                self.put(cx, cy + self.bold.cap_height / 2, middle, "c", self.bold)
        return True


def draw_plot(s: Setter, box: Box, block: Block, plot: type[Plot] = Plot) -> bool:
    """Draws a chart over the width of ``box``; False, and nothing drawn, if its texts do not fit.

    Options of the block: as in :func:`training.office.charts.draw_chart` and
    :func:`training.office.series_charts.draw_series`; besides ``title``, ``title_at`` (top or bottom), ``subtitle``,
    ``note``, ``align`` (l or c), ``axis`` (what the upright axis measures), ``floor`` (its lowest value), ``middle``
    (of a ring), ``fixed`` (columns do not become bars where their labels are wide) and ``look`` (of
    :data:`training.office.chart_looks.LOOKS`, and the ``palette`` and ``dashes`` of the series).
    """
    style = s.style
    turned = {"column": "bar", "lollipop": "dots", "grouped": "grouped_bar", "stacked": "stacked_bar"}
    forms = [block.options["form"]] * 2  # then with labels that are too wide to stand side by side, then in small print
    forms += [forms[0] if block.options.get("fixed") else turned.get(forms[0], forms[0])] * 2
    for n, form in enumerate(forms):
        if n == 3:
            small, bold = (face(f.path, min(f.size, 10)) for f in (style.small, style.bold))
            s.style = replace(style, small=small, bold=bold)
        done = plot(s, box, replace(block, options={**block.options, "form": form})).draw()
        s.style = style
        if done:
            return True
    return False
