"""The heatmap of needles in a haystack: the share found by length of the text and depth of the needle, by policy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvmm.analysis.plots.style import style

if TYPE_CHECKING:
    from kvmm.eval.report.build import PolicyResult, TaskResult

_CELL = re.compile(r"(\w+)=(\d+),depth=(\d+\.\d+)")
COLUMNS = 3  # heatmaps beside each other
ROW_GAP = 45  # pixels between rows of heatmaps, for a title
COLORS = [[0.0, "#D55E00"], [0.5, "#F0E442"], [1.0, "#009E73"]]  # nothing found ... all found


def depth_cells(one: PolicyResult) -> dict[tuple[int, float], float]:
    """The shares in [0, 1] by length and depth; empty for a task that hides no needles."""
    found = ((_CELL.fullmatch(name), value) for name, value in (one.parts or {}).items())
    return {(int(cell[2]), float(cell[3])): value for cell, value in found if cell is not None}


def found_by_depth(task: TaskResult) -> go.Figure | None:
    """One heatmap a policy, lengths from left to right and depths from top to bottom; None without needles."""
    shown = [(one, cells) for one in task.policies if (cells := depth_cells(one))]
    if not shown:
        return None
    unit = next(cell[1] for name in shown[0][0].parts if (cell := _CELL.fullmatch(name)) is not None)
    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    titles = [f"{one.policy}: {100 * one.score:.1f}" for one, _ in shown]
    count = max(len({depth for _, depth in cells}) for _, cells in shown)
    height = 90 + rows * (60 + 20 * max(count, 5))
    figure = make_subplots(
        rows,
        columns,
        subplot_titles=titles,
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.04,
        vertical_spacing=ROW_GAP / height,
    )
    for index, (one, cells) in enumerate(shown):
        lengths, depths = (sorted({key[axis] for key in cells}) for axis in (0, 1))
        figure.add_heatmap(
            x=[f"{length:,}" for length in lengths],
            y=[f"{100 * depth:.0f}" for depth in depths],
            z=[[None if (n, d) not in cells else 100 * cells[n, d] for n in lengths] for d in depths],
            zmin=0,
            zmax=100,
            colorscale=COLORS,
            showscale=index == 0,
            colorbar={"title": {"text": "found, %"}, "thickness": 12},
            xgap=1,
            ygap=1,
            hovertemplate=f"{one.policy}<br>%{{x}} {unit}, depth %{{y}} %: %{{z:.0f}} % found<extra></extra>",
            row=index // columns + 1,
            col=index % columns + 1,
        )
    style(
        figure,
        height=height,
        revision=f"depths-{task.task}",
        margin={"l": 8, "r": 8, "t": 40, "b": 44},
    )
    figure.update_xaxes(type="category", title_text=unit, row=rows)
    figure.update_yaxes(type="category", autorange="reversed", title_text="depth, %", col=1)
    return figure


__all__ = ["depth_cells", "found_by_depth"]
