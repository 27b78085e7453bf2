"""Figures of what a cache costs: bytes by component, measured or planned, and operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from kvmm.analysis.cost.operations import decode_operations, pack_operations
from kvmm.analysis.cost.plan import PlanReport
from kvmm.analysis.methods.measure import MethodsReport
from kvmm.analysis.plots.style import format_bytes, style
from kvmm.memory_text import AXIS

# What a component is for: one colour a purpose, whatever codecs call their tensors.
_PURPOSES = {
    "codes": ("codes", "#0072B2"),
    "parameters": ("scales, norms, indices", "#E69F00"),
    "exact": ("sinks, newest text, exact pages", "#009E73"),
    "sliding": ("sliding windows", "#CC79A7"),
    "table": ("page tables", "#7a8190"),
}
_PURPOSE_OF = {
    **dict.fromkeys(("scale", "zero_point", "norm", "radius", "offset", "mean", "deviation"), "parameters"),
    **dict.fromkeys(("transform", "bits", "channel_order", "boosted"), "parameters"),
    **dict.fromkeys(("sink", "residual", "values", "outlier", "outlier_slot"), "exact"),
    **dict.fromkeys(("page_table", "retention", "backing"), "table"),
    "sliding": "sliding",
}
_OPERATIONS = {
    "qk": ("query · keys", "#0072B2"),
    "pv": ("probabilities · values", "#56B4E9"),
    "rotation": ("rotation", "#D55E00"),
    "scale": ("scales and zero points", "#E69F00"),
    "norm": ("token norms", "#009E73"),
    "quantize": ("quantising", "#CC79A7"),
}
_MARGIN = {"l": 8, "r": 8, "t": 62, "b": 40}


def cost_components(report: PlanReport | MethodsReport) -> go.Figure:
    """Bytes by policy, stacked by what they hold; planned, or measured on a document."""
    if isinstance(report, PlanReport):
        rows = [(row.label, row.cost.by_component, row.cost.bits_per_value) for row in report.rows]
    else:
        rows = [(row.policy, row.by_component, row.bits) for row in report.measured()]
    rows.reverse()  # plotly draws the first category at the bottom
    names = [name for name, _, _ in rows]
    totals = [sum(components.values()) for _, components, _ in rows]
    top = max(totals, default=1)
    units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
    unit, scale = next((one for one in units if top >= one[1]), ("B", 1))
    figure = go.Figure()
    for purpose, (text, color) in _PURPOSES.items():
        values = [_held(components, purpose) for _, components, _ in rows]
        if any(values):
            figure.add_bar(
                x=[nbytes / scale for nbytes in values],
                y=names,
                name=text,
                orientation="h",
                width=0.62,
                marker={"color": color},
                customdata=[format_bytes(nbytes) for nbytes in values],
                hovertemplate="%{y}: %{customdata}<extra>" + text + "</extra>",
            )
    figure.add_scatter(
        x=[total / scale for total in totals],
        y=names,
        mode="text",
        text=[f"  {format_bytes(n)} · {bits:.2f} bits" for n, (_, _, bits) in zip(totals, rows, strict=True)],
        textposition="middle right",
        textfont={"size": 11},
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )
    style(figure, height=110 + 28 * max(len(names), 1), revision="cost-components", barmode="stack", margin=_MARGIN)
    title = f"{unit} · {AXIS}"
    figure.update_xaxes(title_text=title, title_standoff=4, range=[0, top / scale * 1.65], nticks=6)
    figure.update_yaxes(showgrid=False, type="category")
    figure.update_layout(legend_traceorder="normal")
    return figure


def _held(components: Mapping[str, int], purpose: str) -> int:
    return sum(nbytes for name, nbytes in components.items() if _purpose(name) == purpose)


def _purpose(name: str) -> str:
    """The purpose of a tensor by its name; any other name holds codes."""
    return _PURPOSE_OF.get(name, "codes")


def decode_counts(report: PlanReport) -> go.Figure:
    """Operations of attention for one decoded token of one sequence, by policy, stacked by kind.

    The products with keys and values are the same for all policies; the rest, named beside the bar, is what codes add.
    """
    counts = [decode_operations(row.model, report.tokens).to_dict() for row in report.rows]
    added = [1 - (one["qk"] + one["pv"]) / max(one["total"], 1) for one in counts]
    texts = [f"  {_short(one['total'])}, {share:.1%} added" for one, share in zip(counts, added, strict=True)]
    return _operations(report, counts, texts, "operations of one decoded token", "decode-counts")


def pack_counts(report: PlanReport, modality: str = "text") -> go.Figure:
    """Operations of packing one token of a modality, by policy, stacked by kind."""
    counts = [pack_operations(row.model, modality).to_dict() for row in report.rows]
    texts = [f"  {_short(one['total'])}" for one in counts]
    return _operations(report, counts, texts, f"operations of packing one {modality} token", "pack-counts")


def _operations(
    report: PlanReport, counts: Sequence[Mapping[str, int]], texts: Sequence[str], title: str, revision: str
) -> go.Figure:
    names = [row.label for row in report.rows][::-1]
    counts, texts = list(counts)[::-1], list(texts)[::-1]
    figure = go.Figure()
    for kind, (text, color) in _OPERATIONS.items():
        values = [one.get(kind, 0) for one in counts]
        if any(values):
            figure.add_bar(
                x=values,
                y=names,
                name=text,
                orientation="h",
                width=0.62,
                marker={"color": color},
                hovertemplate="%{y}: %{x:,}<extra>" + text + "</extra>",
            )
    common: dict[str, Any] = {"mode": "text", "textposition": "middle right", "hoverinfo": "skip", "showlegend": False}
    figure.add_scatter(x=[one["total"] for one in counts], y=names, text=texts, cliponaxis=False, **common)
    top = max((one["total"] for one in counts), default=1)
    style(figure, height=110 + 28 * max(len(names), 1), revision=revision, barmode="stack", margin=_MARGIN)
    figure.update_xaxes(title_text=title, title_standoff=4, range=[0, top * 1.45], nticks=5, tickformat="~s")
    figure.update_yaxes(showgrid=False, type="category")
    figure.update_layout(legend_traceorder="normal")
    return figure


def _short(count: int) -> str:
    for limit, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= limit:
            return f"{count / limit:.3g}{unit}"
    return f"{count} "


__all__ = ["cost_components", "decode_counts", "pack_counts"]
