"""Charts of several series on the ink canvas: grouped and stacked columns, lines, with a legend."""

from __future__ import annotations

import itertools

from training.office.document import Block
from training.pages.blocks import Box, Setter

SHADES = (255, 100, 170, 50)  # of the series in turn


def legend_places(s: Setter, box: Box, names: list[str], y: float) -> list[tuple[float, float, str, str]] | None:
    """Texts of a legend in one row from the left, each behind a swatch of 10 pixels; None if it is too wide."""
    f, x, places = s.style.small, box.x0 + 20, []
    for name in names:
        places.append((x, y, name, "l"))
        x += f.width(name) + 34
    return places if x - 30 < box.x1 else None


def draw_series(s: Setter, box: Box, block: Block) -> bool:
    """Draws a chart of several series over the width of ``box``; False, and nothing drawn, if its labels do not fit.

    Options of the block: ``form`` is grouped, stacked or lines; ``values`` holds a list of numbers for every series,
    ``series`` their names, ``ticks`` the values and texts of the axis, ``printed`` texts as ``values``, or None,
    ``value_texts`` as in :func:`training.office.charts.draw_chart`.
    """
    from training.office.charts import _texts, hint_value, segment

    o, r, f = block.options, s.r, s.style.small
    height = min(box.bottom - box.y - 6, box.width * r.uniform(0.5, 0.8), 340)
    stacked = o["form"] == "stacked"
    sums = [sum(column) for column in zip(*o["values"], strict=True)]
    top = max([*(sums if stacked else itertools.chain(*o["values"])), *(value for value, _ in o["ticks"])])
    left = box.x0 + max(f.width(text) for _, text in o["ticks"]) + 8
    step = (box.x1 - left) / len(block.texts)
    if height < 130 or step < max(map(f.width, block.texts)) + 4:
        return False
    base, high = box.y + height - f.height - 4, box.y + 2 * f.height + 8
    y_of = lambda value: base - (base - high) * value / top  # noqa: E731
    legend = legend_places(s, box, o["series"], box.y + f.ascent)
    if legend is None or base - high < 60:
        return False
    places = [*legend, *((left + step * (i + 0.5), base + f.height, t, "c") for i, t in enumerate(block.texts))]
    places += [(left - 5, y_of(value) + f.cap_height / 2, text, "r") for value, text in o["ticks"]]
    count = len(o["series"])
    wide = step * r.uniform(0.6, 0.84) / (1 if stacked else count)
    if o["printed"] and o["form"] == "grouped":
        if wide < max(f.width(text) for row in o["printed"] for text in row) + 1:
            return False
        for n, i in itertools.product(range(count), range(len(block.texts))):
            x = left + step * (i + 0.5) + wide * (n - (count - 1) / 2)
            places.append((x, y_of(o["values"][n][i]) - 3, o["printed"][n][i], "c"))
    if not _texts(s, places):
        return False
    for value, _ in o["ticks"]:
        s.canvas.line(left, y_of(value), box.x1, y_of(value), 60)
    for n, (x, y, _, _) in enumerate(legend):
        s.canvas.rect(x - 16, y - f.cap_height, x - 6, y, fill=SHADES[n], outline=255)
    for n, row in enumerate(o["values"]):
        points = [(left + step * (i + 0.5), y_of(value)) for i, value in enumerate(row)]
        for i, (x, y) in enumerate(points):
            if o["form"] == "lines":
                s.canvas.rect(x - 2, y - 2, x + 2, y + 2, fill=SHADES[n], outline=255)
                hint_value(s, o, n, i, x, y - 4)
                continue
            under = sum(o["values"][k][i] for k in range(n)) if stacked else 0
            x = x - wide / 2 if stacked else x + wide * (n - count / 2)
            s.canvas.rect(x, y_of(row[i] + under), x + wide - 1, y_of(under), fill=SHADES[n], outline=255)
            if not stacked:
                hint_value(s, o, n, i, x + wide / 2, y_of(row[i]) - 3)
        if o["form"] == "lines":
            for (x0, y0), (x1, y1) in itertools.pairwise(points):
                segment(s.canvas, x0, y0, x1, y1, SHADES[n], 2)
    s.canvas.line(left, base, box.x1, base, 255)
    box.y += height + r.randint(6, 14)
    return True
