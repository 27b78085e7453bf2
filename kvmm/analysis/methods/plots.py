"""Figures of all methods on one document: quality against bytes, time."""

from __future__ import annotations

from math import log10

import plotly.graph_objects as go

from kvmm.analysis.methods.measure import MethodRow, MethodsReport
from kvmm.analysis.plots.pareto_front import Point, pareto_plot
from kvmm.analysis.plots.style import format_bytes, style
from kvmm.memory_text import bits_text

_FLOOR = 1e-9  # nats: below is rounding


def pareto(report: MethodsReport) -> go.Figure:
    """KL of the next token against measured bytes, both logarithmic: down and left is better.

    A line joins the policies on the Pareto front. Labels that would lie on others are left out, those of the
    line first placed; hover tells every point's name, bits, answer and time. Policies of equal bytes and KL share one
    label. Colours tell the methods apart.
    """
    figure = pareto_plot(
        [Point(row.policy, row.nbytes / 2**20, _kl(row), _hover(row), row.stored_as) for row in report.measured()],
        report.pareto(),
        x_title="packed document",
        y_title="KL of the next token (nats)",
        revision="pareto",
        y_axis={"exponentformat": "power", "dtick": 1},
        log_y=True,
    )
    ticks = _ticks(*figure.layout.xaxis.range)
    return figure.update_xaxes(tickvals=ticks, ticktext=[format_bytes(tick * 2**20) for tick in ticks])


def _kl(row: MethodRow) -> float:
    return max(row.kl, _FLOOR)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 KiB, 10, 20 and 50 KiB and so on, in MiB, between powers of ten of MiB."""
    ticks = [
        step * 10.0**power * unit / 2**20
        for unit in (2**10, 2**20, 2**30)
        for power in range(3)
        for step in (1, 2, 5)
        if step * 10**power < 1000
    ]
    return [tick for tick in ticks if low <= log10(tick) <= high]


def _hover(row: MethodRow) -> str:
    answer = row.answer if len(row.answer) <= 60 else row.answer[:59] + "…"
    answer = answer.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
    same = "the same answer" if row.identical else f"answers “{answer}”"
    return (
        f"<b>{row.policy}</b><br>{format_bytes(row.nbytes)}; {bits_text(row.bits, row.packed_bits)}<br>"
        f"KL {row.kl:.3g} nats"
        f"<br>{same}<br>packed in {row.pack_seconds:.2f} s, answered in {row.answer_seconds:.2f} s"
    )


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
