"""Figures of a plan: bytes and the longest context, by policy."""

from __future__ import annotations

import plotly.graph_objects as go

from kvmm.analysis.plan import PlanReport
from kvmm.analysis.plots.style import DENSE_COLOR, TEXT_COLOR, format_bytes, style

PACKED_COLOR, EXACT_COLOR, SLIDING_COLOR = "#0072B2", "#E69F00", "#CC79A7"
_EXACT = ("sink", "residual", "values")  # model dtype: first and newest tokens, pages of lossless policies


def plan_bytes(report: PlanReport) -> go.Figure:
    """GiB of the cache by policy: packed, in full precision, and of layers with a window; a line at the budget."""
    rows = report.rows[::-1]  # plotly draws the first category at the bottom
    names = [row.label for row in rows]
    exact = [sum(row.cost.by_component.get(name, 0) for name in _EXACT) for row in rows]
    sliding = [row.cost.by_component.get("sliding", 0) for row in rows]
    packed = [row.cost.nbytes - e - s for row, e, s in zip(rows, exact, sliding, strict=True)]
    figure = go.Figure()
    parts = (
        ("packed", packed, PACKED_COLOR),
        ("full precision", exact, EXACT_COLOR),
        ("sliding window", sliding, SLIDING_COLOR),
    )
    for name, values, color in parts:
        if any(values):
            figure.add_bar(
                x=[nbytes / 2**30 for nbytes in values],
                y=names,
                name=name,
                orientation="h",
                marker={"color": color},
                width=0.62,
                customdata=[format_bytes(nbytes) for nbytes in values],
                hovertemplate=f"{name}: %{{customdata}}<extra></extra>",
            )
    totals = [row.cost.nbytes / 2**30 for row in rows]
    figure.add_scatter(
        x=totals,
        y=names,
        mode="text",
        text=[f"  <b>{format_bytes(row.cost.nbytes)}</b> · {row.cost.bits_per_value:.2f} bits" for row in rows],
        textposition="middle right",
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )
    top = max(totals, default=1.0)
    if report.budget is not None and report.budget / 2**30 < 1.5 * top:
        figure.add_vline(
            x=report.budget / 2**30, line={"color": TEXT_COLOR, "dash": "dash", "width": 2}, annotation_text="budget"
        )
    style(
        figure,
        height=110 + 34 * max(len(rows), 1),
        revision="plan-bytes",
        barmode="stack",
        margin={"l": 8, "r": 8, "t": 44, "b": 40},
    )
    figure.update_xaxes(title_text="GiB", title_standoff=4, range=[0, top * 1.6], nticks=6)
    figure.update_yaxes(showgrid=False, type="category")
    return figure


def plan_contexts(report: PlanReport) -> go.Figure:
    """The longest context that fits the budget, by policy; policies that the media alone exceed have no bar."""
    rows = report.rows[::-1]
    names = [row.label for row in rows]
    longest = [row.longest_context or 0 for row in rows]
    lossless = [row.cost.policy == "bf16" for row in rows]
    figure = go.Figure()
    figure.add_bar(
        x=longest,
        y=names,
        orientation="h",
        width=0.62,
        marker={"color": [DENSE_COLOR if one else PACKED_COLOR for one in lossless], "cornerradius": 3},
        text=[f"<b>{count:,}</b>" if count else "does not fit" for count in longest],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{x:,} tokens<extra></extra>",
        showlegend=False,
    )
    style(
        figure,
        height=110 + 34 * max(len(rows), 1),
        revision="plan-contexts",
        margin={"l": 8, "r": 8, "t": 44, "b": 40},
    )
    top = max([*longest, 1])
    figure.update_xaxes(title_text="tokens", title_standoff=4, range=[0, top * 1.35], nticks=5, tickformat="~s")
    figure.update_yaxes(showgrid=False, type="category")
    return figure


__all__ = ["plan_bytes", "plan_contexts"]
