"""Parts that several figures share: the ribbon of modalities, its legend, boxes from five numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvmm.analysis.plots.style import MODALITY_COLORS, log_ticks
from kvmm.modality import MODALITY_NAMES


def spans(starts: np.ndarray, count: int) -> list[str]:
    """The tokens of each bin: ``"7"``, or ``"7-9"``."""
    ends = np.append(starts[1:], count)
    return [f"{a}" if b - a == 1 else f"{a}-{b - 1}" for a, b in zip(starts, ends, strict=True)]


def add_ribbon(figure: go.Figure, modality: np.ndarray, starts: np.ndarray, **place: int) -> None:
    """A heatmap of one row: the modality that most tokens of each bin have.

    Args:
        modality: int8 ``[T]``.
        starts: first token of each bin, as of :func:`kvmm.analysis.plots.style.bins`.
        place: ``row`` and ``col`` of the subplot.
    """
    codes = np.arange(len(MODALITY_NAMES))
    counts = np.add.reduceat((modality[None] == codes[:, None]).astype(int), starts, axis=1)  # [M, C]
    ribbon = counts.argmax(axis=0)
    palette = [MODALITY_COLORS[name] for name in MODALITY_NAMES]
    steps = np.repeat(np.linspace(0, 1, len(palette) + 1), 2)[1:-1]
    labels = [f"{MODALITY_NAMES[m]}, token {s}" for m, s in zip(ribbon, spans(starts, modality.size), strict=True)]
    figure.add_heatmap(
        z=ribbon[None],
        x=starts,
        y=["modality"],
        zmin=-0.5,
        zmax=len(palette) - 0.5,
        colorscale=[[float(s), palette[i // 2]] for i, s in enumerate(steps)],
        showscale=False,
        customdata=np.array([labels]),
        hovertemplate="%{customdata}<extra></extra>",
        **place,
    )


def add_legend(figure: go.Figure, names: Sequence[str], **place: int) -> None:
    """A legend of modalities in the subplot of a ribbon, which has none of its own."""
    for name in names:
        marker = {"color": MODALITY_COLORS[name], "symbol": "square", "size": 10}
        figure.add_scatter(x=[None], y=["modality"], mode="markers", marker=marker, name=name, **place)


def add_boxes(figure: go.Figure, quantiles: np.ndarray, x: Sequence[Any], name: str, **options: Any) -> None:
    """One box a row of ``quantiles`` ``[N, 5]`` (5, 25, 50, 75 and 95 %) at ``x``, in the modality's colour."""
    low, q1, median, q3, high = quantiles.round(4).T
    figure.add_box(
        x=[str(one) for one in x],
        lowerfence=low,
        q1=q1,
        median=median,
        q3=q3,
        upperfence=high,
        name=name,
        marker={"color": MODALITY_COLORS[name]},
        line={"width": 1.4},
        hoverinfo="y",
        **options,
    )


def log_axis(figure: go.Figure, title: str, **where: int) -> None:
    """A logarithmic y axis with ticks for the lines drawn so far; ``where``: ``row`` and ``col`` of the subplot."""
    lines = [trace.y for trace in figure.data if trace.type == "scatter" and trace.x[0] is not None]  # no legend's
    values = np.concatenate([*(np.asarray(line, dtype=float) for line in lines), [np.nan]])
    values = values[values > 0]
    ticks = log_ticks(values.min(), values.max()) if len(values) else {}
    figure.update_yaxes(title_text=title, type="log", **ticks, **where)
