"""Policies as points, quality against size: the front that no other beats, and names that do not cover each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

import plotly.graph_objects as go

from kvmm.analysis.plots.policies import family_color, family_of, family_symbol
from kvmm.analysis.plots.style import GRID_COLOR, TEXT_COLOR, style

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


@dataclass(frozen=True)
class Point:
    """One policy: ``x`` is its size (positive), ``y`` its quality, ``hover`` what a reader sees on it.

    ``low`` and ``high`` are the ends of an interval of ``y``; ``stored_as`` is the preset that took its place, if any.
    """

    policy: str
    x: float
    y: float
    hover: str
    stored_as: str | None = None
    low: float | None = None
    high: float | None = None


def pareto_plot(
    points: Sequence[Point],
    front: Collection[str],
    *,
    x_title: str,
    y_title: str,
    revision: str,
    x_axis: dict[str, Any] | None = None,
    y_axis: dict[str, Any] | None = None,
    log_y: bool = False,
) -> go.Figure:
    """Points over a logarithmic size, those of ``front`` joined by a line.

    Labels that would lie on others are left out, those of the front placed first. Points of equal place share one.
    Colours tell the methods apart.

    Args:
        points: one a policy.
        front: names of the policies that no other beats.
        log_y: whether the quality is on a logarithmic axis too; then it is positive.
    """
    figure = go.Figure()
    line = sorted((one for one in points if one.policy in front), key=lambda one: (one.x, one.y))
    if line:
        figure.add_scatter(
            x=[one.x for one in line],
            y=[one.y for one in line],
            mode="lines",
            line={"color": GRID_COLOR, "width": 6},
            name="Pareto front",
            hoverinfo="skip",
        )
    families: dict[str, list[Point]] = defaultdict(list)
    for one in points:
        families[family_of(one.policy, one.stored_as)].append(one)
    for family, members in families.items():
        on_front = [one.policy in front for one in members]
        figure.add_scatter(
            x=[one.x for one in members],
            y=[one.y for one in members],
            mode="markers",
            name="full precision" if family == "other" else family,
            marker={
                "color": family_color(family),
                "symbol": family_symbol(family),
                "size": [13 if on else 10 for on in on_front],
                "opacity": 0.95,
                "line": {"width": [2 if on else 0 for on in on_front], "color": TEXT_COLOR},
            },
            error_y=_errors(members),
            customdata=[one.hover for one in members],
            hovertemplate="%{customdata}<extra></extra>",
        )
    x_range, y_range = _ranges(points, log_y)
    for label in _labels(points, set(front), x_range, y_range, log_y):
        figure.add_annotation(**label)
    style(figure, height=490, revision=revision, hovermode="closest", margin={"l": 8, "r": 8, "t": 96, "b": 46})
    # entries of equal width: two beside each other on a phone, where one a line would leave no room for the points
    figure.update_layout(legend={"entrywidth": 84, "font": {"size": 11}})
    figure.update_xaxes(title_text=x_title, type="log", range=x_range, **(x_axis or {}))
    figure.update_yaxes(title_text=y_title, type="log" if log_y else "linear", range=y_range, **(y_axis or {}))
    return figure


def _errors(members: Sequence[Point]) -> dict[str, Any]:
    if all(one.low is None for one in members):
        return {"visible": False}
    return {
        "type": "data",
        "symmetric": False,
        "array": [0 if one.high is None else one.high - one.y for one in members],
        "arrayminus": [0 if one.low is None else one.y - one.low for one in members],
        "thickness": 1.2,
        "width": 3,
    }


def _ranges(points: Sequence[Point], log_y: bool) -> tuple[list[float], list[float]]:
    """Ends of the axes, powers of ten on logarithmic ones, with room for labels."""
    if not points:
        return [-1.0, 1.0], [-6.0, 1.0] if log_y else [0.0, 1.0]
    x = [log10(one.x) for one in points]
    wide = max(max(x) - min(x), 0.3)
    x_range = [min(x) - 0.12 * wide, max(x) + 0.2 * wide]
    if log_y:
        y = [log10(one.y) for one in points]
        least = 1.0
    else:
        y = [value for one in points for value in (one.y, one.low, one.high) if value is not None]
        least = 0.02
    high = max(max(y) - min(y), least)
    return x_range, [min(y) - 0.08 * high, max(y) + 0.08 * high]


def _labels(
    points: Sequence[Point], front: set[str], x_range: list[float], y_range: list[float], log_y: bool
) -> list[dict]:
    """Annotations that lie neither on each other nor on a point, as far as a plot of ordinary size goes."""
    places: dict[tuple[float, float], list[str]] = defaultdict(list)
    for one in points:
        places[log10(one.x), log10(one.y) if log_y else one.y].append(one.policy)

    def pixel(x: float, y: float) -> tuple[float, float]:
        return (
            (x - x_range[0]) / (x_range[1] - x_range[0]) * _WIDTH,
            (y - y_range[0]) / (y_range[1] - y_range[0]) * _HEIGHT,
        )

    taken = [(px - 6, py - 6, px + 6, py + 6) for px, py in (pixel(*at) for at in places)]
    labels = []
    for (x, y), names in sorted(places.items(), key=lambda item: (not front & set(item[1]), item[0])):
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


__all__ = ["Point", "pareto_plot"]
