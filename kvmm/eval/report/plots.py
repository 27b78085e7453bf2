"""Figures of an evaluation: score against bits, and differences to full precision with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from kvmm.analysis.plots.pareto_front import Point, pareto_plot
from kvmm.analysis.plots.policies import family_color, family_of
from kvmm.analysis.plots.style import TEXT_COLOR, style
from kvmm.memory_text import AXIS, bits_text

if TYPE_CHECKING:
    from kvmm.eval.report.build import PolicyResult, TaskResult

LEAST_POINTS = 10.0  # of 100, that the axis of a score spans at least


def score_by_bits(task: TaskResult) -> go.Figure:
    """The score over the measured bits per value: up and left is better; bars are the 95 % interval of the paired
    difference to full precision, drawn around the score.
    """
    measured = [one for one in task.policies if one.score is not None and one.bits_per_value]
    top = 100.0 if all(one.score <= 1 for one in measured) else float("inf")

    def end(one: PolicyResult, value: float) -> float:
        return min(max(100 * (one.score + value - one.difference.mean), 0.0), top)

    points = [
        Point(
            one.policy,
            one.bits_per_value,
            100 * one.score,
            _hover(one, task.metric),
            low=None if one.difference is None else end(one, one.difference.low),
            high=None if one.difference is None else end(one, one.difference.high),
        )
        for one in measured
    ]
    return pareto_plot(
        points,
        front(measured),
        x_title=AXIS,
        y_title=f"{task.metric}, points of 100",
        revision=f"bits-{task.task}",
        least=LEAST_POINTS,
        limits=(0.0, top) if top == 100 else None,
        x_axis={"tickvals": [1, 1.5, 2, 3, 4, 6, 8, 16], "ticktext": ["1", "1.5", "2", "3", "4", "6", "8", "16"]},
    )


def front(policies: Sequence[PolicyResult]) -> list[str]:
    """The policies on the Pareto front of score and bits."""
    return [
        one.policy
        for one in policies
        if not any(
            other.bits_per_value <= one.bits_per_value
            and other.score >= one.score
            and (other.bits_per_value, other.score) != (one.bits_per_value, one.score)
            for other in policies
        )
    ]


def score_differences(task: TaskResult) -> go.Figure:
    """Each policy's paired difference to full precision in points, with its 95 % interval; 0 is full precision."""
    rows = [one for one in task.policies if one.difference is not None][::-1]  # plotly draws the first at the bottom
    figure = go.Figure()
    figure.add_scatter(
        x=[100 * one.difference.mean for one in rows],
        y=[one.policy for one in rows],
        mode="markers",
        marker={"size": 9, "color": [family_color(family_of(one.policy)) for one in rows]},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [100 * (one.difference.high - one.difference.mean) for one in rows],
            "arrayminus": [100 * (one.difference.mean - one.difference.low) for one in rows],
            "color": TEXT_COLOR,
            "thickness": 1.6,
            "width": 4,
        },
        customdata=[_hover(one, task.metric) for one in rows],
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
    )
    figure.add_vline(x=0, line={"color": TEXT_COLOR, "width": 1, "dash": "dot"})
    style(
        figure,
        height=110 + 26 * len(rows),
        revision=f"differences-{task.task}",
        margin={"l": 8, "r": 8, "t": 24, "b": 44},
    )
    figure.update_xaxes(title_text=f"{task.paired_metric} minus {task.reference}, points", title_standoff=4)
    figure.update_yaxes(type="category")
    return figure


def _hover(one: PolicyResult, metric: str) -> str:
    text = f"<b>{one.policy}</b><br>{metric} {100 * one.score:.1f}" if one.score is not None else f"<b>{one.policy}</b>"
    if one.bits_per_value:
        text += f"<br>{bits_text(one.bits_per_value, one.packed_bits_per_value)}, 1/{one.kv_ratio:.1f} of bf16"
    if one.difference is not None:
        d = one.difference
        text += f"<br>difference {100 * d.mean:+.1f} ({100 * d.low:+.1f} to {100 * d.high:+.1f})"
    return text


__all__ = ["front", "score_by_bits", "score_differences"]
