"""Figures of all methods on one document: quality against bytes, time."""

from __future__ import annotations

from collections import defaultdict
from math import log10

import plotly.graph_objects as go

from kvmm.analysis.methods import MethodRow, MethodsReport
from kvmm.analysis.plots.policies import family_color, family_of, family_symbol
from kvmm.analysis.plots.style import GRID_COLOR, TEXT_COLOR, format_bytes, style

_WIDTH, _HEIGHT = 620, 330  # pixels of the plot that labels are placed for
_CHARACTER, _LINE = 6.6, 14  # pixels of a label
# where a label may go: (x anchor, y anchor, x shift, y shift) in pixels
_PLACES = (
    ("left", "middle", 9, 0),
    ("right", "middle", -9, 0),
    ("center", "bottom", 0, 8),
    ("center", "top", 0, -8),
    ("left", "bottom", 7, 6),
    ("left", "top", 7, -6),
    ("right", "bottom", -7, 6),
    ("right", "top", -7, -6),
    ("left", "bottom", 9, 20),
    ("left", "top", 9, -20),
)
_FLOOR = 1e-9  # nats: below is rounding


def pareto(report: MethodsReport) -> go.Figure:
    """KL of the next token against measured bytes, both logarithmic: down and left is better.

    The policies that no other beats are joined by a line. Labels that would lie on others are left out, those of the
    line first placed; hover tells every point's name, bits, answer and time. Policies of equal bytes and KL share one
    label. Colours tell the methods apart.
    """
    rows = report.measured()
    figure = go.Figure()
    front = [row for row in rows if row.policy in report.pareto()]
    front.sort(key=lambda row: (row.nbytes, -row.kl))
    if front:
        figure.add_scatter(
            x=[row.nbytes / 2**20 for row in front],
            y=[_kl(row) for row in front],
            mode="lines",
            line={"color": GRID_COLOR, "width": 6},
            name="no other is better",
            hoverinfo="skip",
        )
    families: dict[str, list[MethodRow]] = defaultdict(list)
    for row in rows:
        families[family_of(row.policy, row.stored_as)].append(row)
    for family, members in families.items():
        on_front = [row in front for row in members]
        figure.add_scatter(
            x=[row.nbytes / 2**20 for row in members],
            y=[_kl(row) for row in members],
            mode="markers",
            name="full precision" if family == "other" else family,
            marker={
                "color": family_color(family),
                "symbol": family_symbol(family),
                "size": [13 if on else 10 for on in on_front],
                "opacity": 0.95,
                "line": {"width": [2 if on else 0 for on in on_front], "color": TEXT_COLOR},
            },
            customdata=[_hover(row) for row in members],
            hovertemplate="%{customdata}<extra></extra>",
        )
    ranges = _ranges(rows)
    for label in _labels(rows, set(report.pareto()), *ranges):
        figure.add_annotation(**label)
    style(figure, height=490, revision="pareto", hovermode="closest", margin={"l": 8, "r": 8, "t": 96, "b": 46})
    ticks = _ticks(*ranges[0])
    figure.update_xaxes(title_text="packed document", type="log", range=ranges[0])
    figure.update_xaxes(tickvals=ticks, ticktext=[format_bytes(tick * 2**20) for tick in ticks])
    figure.update_yaxes(
        title_text="KL of the next token (nats)", type="log", range=ranges[1], exponentformat="power", dtick=1
    )
    return figure


def _kl(row: MethodRow) -> float:
    return max(row.kl, _FLOOR)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 KiB, 10, 20 and 50 KiB and so on, in MiB, between powers of ten of MiB."""
    found = [
        step * 10.0**power * unit / 2**20
        for unit in (2**10, 2**20, 2**30)
        for power in range(3)
        for step in (1, 2, 5)
        if step * 10**power < 1000
    ]
    return [tick for tick in found if low <= log10(tick) <= high]


def _hover(row: MethodRow) -> str:
    answer = row.answer if len(row.answer) <= 60 else row.answer[:59] + "…"
    answer = answer.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
    same = "the same answer" if row.identical else f"answers “{answer}”"
    return (
        f"<b>{row.policy}</b><br>{format_bytes(row.nbytes)}, {row.bits:.2f} bits a value<br>KL {row.kl:.3g} nats"
        f"<br>{same}<br>packed in {row.pack_seconds:.2f} s, answered in {row.answer_seconds:.2f} s"
    )


def _ranges(rows: tuple[MethodRow, ...]) -> tuple[list[float], list[float]]:
    """Ends of the axes, in powers of ten, with room for labels."""
    if not rows:
        return [-1.0, 1.0], [-6.0, 1.0]
    x = [log10(row.nbytes / 2**20) for row in rows]
    y = [log10(_kl(row)) for row in rows]
    wide, high = max(max(x) - min(x), 0.3), max(max(y) - min(y), 1.0)
    return [min(x) - 0.12 * wide, max(x) + 0.2 * wide], [min(y) - 0.08 * high, max(y) + 0.08 * high]


def _labels(rows: tuple[MethodRow, ...], front: set[str], x_range: list[float], y_range: list[float]) -> list[dict]:
    """Annotations that lie neither on each other nor on a point, as far as a plot of ordinary size goes."""
    points: dict[tuple[float, float], list[str]] = defaultdict(list)
    for row in rows:
        points[log10(row.nbytes / 2**20), log10(_kl(row))].append(row.policy)

    def pixel(x: float, y: float) -> tuple[float, float]:
        return (
            (x - x_range[0]) / (x_range[1] - x_range[0]) * _WIDTH,
            (y - y_range[0]) / (y_range[1] - y_range[0]) * _HEIGHT,
        )

    taken = [(px - 6, py - 6, px + 6, py + 6) for px, py in (pixel(*at) for at in points)]
    labels = []
    for (x, y), names in sorted(points.items(), key=lambda item: (not front & set(item[1]), item[0])):
        text, on = ", ".join(names), bool(front & set(names))
        px, py = pixel(x, y)
        for anchor, vertical, dx, dy in _PLACES:
            width = len(text) * _CHARACTER * (1.08 if on else 1.0)
            left = px + dx - {"left": 0, "right": width, "center": width / 2}[anchor]
            low = py + dy - {"bottom": 0, "top": _LINE, "middle": _LINE / 2}[vertical]
            box = (left, low, left + width, low + _LINE)
            inside = box[0] >= 0 and box[1] >= 0 and box[2] <= _WIDTH and box[3] <= _HEIGHT
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                labels.append(
                    {
                        "x": x,  # annotations of a logarithmic axis are placed by the power of ten
                        "y": y,
                        "text": f"<b>{text}</b>" if on else text,
                        "showarrow": False,
                        "xanchor": anchor,
                        "yanchor": vertical,
                        "xshift": dx,
                        "yshift": dy,
                        "font": {"size": 12 if on else 11, "color": TEXT_COLOR},
                    }
                )
                break
    return labels


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def method_seconds(report: MethodsReport) -> go.Figure:
    """Seconds of packing and of answering, by policy, in the order measured; full precision first."""
    rows = report.measured()[::-1]  # plotly draws the first category at the bottom
    names = [*(row.policy for row in rows), "full precision"]
    figure = go.Figure()
    for name, values, color in (
        ("packing", [*(row.pack_seconds for row in rows), 0], "#E69F00"),
        ("question and answer", [*(row.answer_seconds for row in rows), report.answer_seconds], "#0072B2"),
    ):
        figure.add_bar(
            x=values,
            y=names,
            name=name,
            orientation="h",
            marker={"color": color},
            hovertemplate="%{y}: %{x:.2f} s<extra>" + name + "</extra>",
        )
    style(
        figure,
        height=110 + 22 * len(names),
        revision="method-seconds",
        barmode="stack",
        margin={"l": 8, "r": 8, "t": 44, "b": 40},
    )
    figure.update_xaxes(title_text="seconds", title_standoff=4, rangemode="tozero")
    figure.update_layout(legend_traceorder="normal")
    figure.update_yaxes(showgrid=False, type="category")
    return figure


__all__ = ["method_seconds", "pareto"]
