"""Figures of a drift report: what policies change in the next-token distributions and in the answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from kvmm.analysis.drift.report import DriftReport
from kvmm.analysis.plots.parts import log_axis
from kvmm.analysis.plots.policies import family_color, family_of, family_symbol, policy_line
from kvmm.analysis.plots.style import TEXT_COLOR, style
from kvmm.memory_text import AXIS

_MARGIN = {"l": 8, "r": 8, "t": 44, "b": 40}
_FLOOR = 1e-7  # nats: what rounding alone makes; a logarithmic axis has no zero


def drift_by_bits(report: DriftReport) -> go.Figure:
    """KL(full || policy) over the bits per value that the cache holds, one point per policy, with standard errors.

    Bits are measured, of the whole cache, full-precision tokens included: lower left is better.
    """
    figure = go.Figure()
    shown = [one for one in report.policies if one.bits.bits is not None]
    places = [(one.bits.bits, math.log10(max(one.logits.kl_mean, _FLOOR))) for one in shown]
    for index, one in enumerate(shown):
        family = family_of(one.policy)
        figure.add_scatter(
            x=[round(one.bits.bits, 3)],
            y=[max(one.logits.kl_mean, _FLOOR)],
            error_y={"type": "data", "array": [one.kl_error or 0], "thickness": 1.2, "color": TEXT_COLOR},
            mode="markers+text",
            text=[f" {one.policy} "],
            textposition=_label_side(places, index),
            marker={"size": 11, "color": family_color(family), "symbol": family_symbol(family)},
            hovertemplate=f"{one.policy}: %{{x:.2f}} bits, KL %{{y:.3g}}<extra></extra>",
            showlegend=False,
            cliponaxis=False,
        )
    style(figure, height=380, revision="drift-bits", margin=_MARGIN)
    figure.update_xaxes(title_text=AXIS, rangemode="tozero")
    log_axis(figure, "KL per token (nats)")
    return figure


def _label_side(places: Sequence[tuple[float, float]], index: int) -> str:
    """Where the name of a point goes: beside it, away from a neighbour; error bars are above and below."""
    bits, kl = places[index]
    near = [other for i, other in enumerate(places) if i != index and abs(other[1] - kl) < 0.6]
    right = any(0 <= other[0] - bits < 0.9 for other in near)
    left = any(0 < bits - other[0] < 0.9 for other in near)
    if right and left:
        return "top center"
    last = bits >= max(place[0] for place in places)  # where the figure ends
    return "middle left" if right or (last and not left) else "middle right"


def drift_by_position(report: DriftReport) -> go.Figure:
    """Mean KL along the continuation, one line per policy: whether drift grows towards the end."""
    figure = go.Figure()
    for index, one in enumerate(report.policies):
        buckets = [bucket for bucket in one.tail.by_position if bucket.positions]
        figure.add_scatter(
            x=[round((bucket.start + bucket.end) / 2, 3) for bucket in buckets],
            y=[max(bucket.kl_mean, _FLOOR) for bucket in buckets],
            name=one.policy,
            mode="lines+markers",
            line=policy_line(index),
            customdata=[bucket.positions for bucket in buckets],
            hovertemplate="%{y:.3g} over %{customdata} positions",
        )
    style(figure, height=340, revision="drift-position", margin={**_MARGIN, "t": 66}, hovermode="x unified")
    figure.update_xaxes(title_text="place in the continuation", tickformat=".0%", range=[0, 1])
    log_axis(figure, "KL per token (nats)")
    return figure


def drift_agreement(report: DriftReport) -> go.Figure:
    """Shares by policy: same most probable token, same answer, similarity of the answers, where they were compared."""
    names = [one.policy for one in report.policies]
    bars = {"same most probable token": ([one.logits.top1_agreement for one in report.policies], "#0072B2")}
    if all(one.agreement is not None for one in report.policies):
        bars["same answer"] = ([one.agreement.identical for one in report.policies], "#009E73")
        bars["similarity of the answers"] = ([one.agreement.similarity for one in report.policies], "#E69F00")
    figure = go.Figure()
    for name, (values, color) in bars.items():
        figure.add_bar(
            x=names,
            y=[round(value, 4) for value in values],
            name=name,
            marker={"color": color, "cornerradius": 3},
            hovertemplate="%{x}: %{y:.1%}",
        )
    style(figure, height=340, revision="drift-agreement", barmode="group", margin={**_MARGIN, "t": 66})
    figure.update_xaxes(showgrid=False, type="category")
    figure.update_yaxes(tickformat=".0%", range=[0, 1.02])
    return figure


__all__ = ["drift_agreement", "drift_by_bits", "drift_by_position"]
