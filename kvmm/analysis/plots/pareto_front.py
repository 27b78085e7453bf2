"""Policies as points, quality against size, with their Pareto front and labels that do not overlap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

import plotly.graph_objects as go

from kvmm.analysis.plots.labels import HEIGHT, Label, place_labels
from kvmm.analysis.plots.policies import family_color, family_of, family_symbol
from kvmm.analysis.plots.style import GRID_COLOR, TEXT_COLOR, style

_MARGIN = {"l": 8, "r": 8, "t": 44, "b": 46}
_AXES = 90  # pixels that margins and the title of the axis take of the height


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
    least: float = 1.0,
    limits: tuple[float, float] | None = None,
) -> go.Figure:
    """Points over a logarithmic size, those of ``front`` joined by a line.

    Every point has its name beside it, or at the end of a line (:mod:`kvmm.analysis.plots.labels`); points of equal
    place share one. The names say the method, and colours repeat it, so there is no legend.

    Args:
        points: one per policy.
        front: names of the policies on the Pareto front.
        log_y: whether the quality is on a logarithmic axis too; then it is positive.
        least: what the axis of the quality spans at least (powers of ten on a logarithmic one), so that policies which
            are equal are not shown as if they differed.
        limits: the lowest and highest quality there can be; the axis ends a little beyond.
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
    x_range, y_range = _ranges(points, log_y, least, limits)
    for label in _labels(points, set(front), x_range, y_range, log_y):
        figure.add_annotation(**label)
    style(figure, height=HEIGHT + _AXES, revision=revision, hovermode="closest", margin=_MARGIN, showlegend=False)
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


def _ranges(
    points: Sequence[Point], log_y: bool, least: float, limits: tuple[float, float] | None
) -> tuple[list[float], list[float]]:
    """Ends of the axes, powers of ten on logarithmic ones, with room for labels."""
    if not points:
        return [-1.0, 1.0], [-6.0, 1.0] if log_y else [0.0, 1.0]
    x = [log10(one.x) for one in points]
    wide = max(max(x) - min(x), 0.3)
    x_range = [min(x) - 0.12 * wide, max(x) + 0.2 * wide]
    if log_y:
        y = [log10(one.y) for one in points]
    else:
        y = [value for one in points for value in (one.y, one.low, one.high) if value is not None]
    low, high = min(y), max(y)
    missing = max(least - (high - low), 0.0)
    low, high = low - missing / 2, high + missing / 2
    pad = 0.08 * (high - low)
    low, high = low - pad, high + pad
    if limits is not None:  # what cannot be is not shown, but a point at the end is whole
        shift = min(max(limits[0] - pad - low, 0.0), high - low) - max(high - limits[1] - pad, 0.0)
        low, high = max(low + shift, limits[0] - pad), min(high + shift, limits[1] + pad)
    return x_range, [low, high]


def _labels(
    points: Sequence[Point], front: set[str], x_range: list[float], y_range: list[float], log_y: bool
) -> list[dict[str, Any]]:
    """One annotation for each place that has points, the names of the front in bold."""
    places: dict[tuple[float, float], list[str]] = defaultdict(list)
    for one in points:
        places[log10(one.x), log10(one.y) if log_y else one.y].append(one.policy)
    labels = [
        Label(
            (x - x_range[0]) / (x_range[1] - x_range[0]),
            (y - y_range[0]) / (y_range[1] - y_range[0]),
            ", ".join(names),
            bool(front & set(names)),
        )
        for (x, y), names in places.items()
    ]
    # annotations of a logarithmic axis are placed by the power of ten
    return [{"x": x, "y": y} | where for (x, y), where in zip(places, place_labels(labels), strict=True)]


__all__ = ["Point", "pareto_plot"]
