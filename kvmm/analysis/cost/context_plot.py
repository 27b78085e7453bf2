"""Figures of a plan beside its bytes (:func:`kvmm.analysis.cost.plots.cost_components`)."""

from __future__ import annotations

import plotly.graph_objects as go

from kvmm.analysis.cost.plan import PlanReport
from kvmm.analysis.plots.style import DENSE_COLOR, style

PACKED_COLOR = "#0072B2"


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


__all__ = ["plan_contexts"]
