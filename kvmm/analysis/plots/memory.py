"""Figures of what a KV cache holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from kvmm.analysis.plots.style import DENSE_COLOR, MODALITY_COLORS, TEXT_COLOR, bins, format_bytes, style
from kvmm.memory_text import WHOLE, memory_text
from kvmm.modality import MODALITY_NAMES


def _unit(nbytes: int) -> tuple[str, int]:
    """The unit of an axis that reaches ``nbytes``."""
    return ("MiB", 2**20) if nbytes >= 1000 * 1024 else ("KiB", 2**10)


def memory_by_modality(report: Any) -> go.Figure:
    """Bytes of the KV cache by modality: dense (grey) over measured (coloured), one pair of bars a modality.

    ``report`` is a :class:`kvmm.cache.MemoryReport` or its ``to_dict()``.
    """
    report = report if isinstance(report, dict) else report.to_dict()
    rows = {name: row for name, row in report["by_modality"].items() if row["tokens"]}
    names = sorted(rows, key=MODALITY_NAMES.index, reverse=True)  # plotly draws the first category at the bottom
    labels = [f"<b>{name}</b><br>{rows[name]['tokens']:,} tokens" for name in names]
    unit, scale = _unit(max((max(row["nbytes"], row["nbytes_dense"]) for row in rows.values()), default=1))
    dense = [rows[name]["nbytes_dense"] / scale for name in names]
    packed = [rows[name]["nbytes"] / scale for name in names]
    bits = [rows[name]["bits_per_value"] for name in names]

    figure = go.Figure()
    common = {"y": labels, "orientation": "h", "textposition": "outside", "cliponaxis": False, "width": 0.36}
    figure.add_bar(
        x=packed,
        name="kvmm",
        offset=-0.38,
        marker={"color": [MODALITY_COLORS[name] for name in names], "cornerradius": 3},
        text=[f"<b>{format_bytes(n * scale)}</b> · {b:.2f} bits" for n, b in zip(packed, bits, strict=True)],
        customdata=[memory_text(rows[name]) for name in names],
        hovertemplate="%{text}<br>%{customdata}<extra></extra>",
        **common,
    )
    figure.add_bar(
        x=dense,
        name="bf16",
        offset=0.02,
        marker={"color": DENSE_COLOR, "cornerradius": 3},
        text=[f"{format_bytes(n * scale)} bf16" for n in dense],
        hovertemplate="%{text}<extra></extra>",
        **common,
    )
    top = max([*dense, *packed], default=1.0)
    style(
        figure,
        height=90 + 74 * max(len(names), 1),
        revision="memory",
        showlegend=False,
        barmode="overlay",
        margin={"l": 8, "r": 8, "t": 34, "b": 30},
    )
    # Room on the right for the labels outside the bars, which plotly leaves out of its own range.
    figure.update_xaxes(title_text=f"{unit}, {WHOLE}", title_standoff=4, range=[0, top * 1.75], nticks=5)
    figure.update_yaxes(showgrid=False)
    return figure


def _held(report: dict[str, Any]) -> int:
    return sum(row["nbytes"] for row in report["by_modality"].values())


def memory_over_tokens(history: Sequence[tuple[int, Any]]) -> go.Figure:
    """Bytes of the KV cache by modality, stacked, as tokens are generated; a dashed line for full precision.

    ``history`` holds ``(tokens generated so far, report)``, in order; a report is a
    :class:`kvmm.cache.MemoryReport` or its ``to_dict()``. Long histories are thinned to ``MAX_COLUMNS`` points.
    """
    rows = [(count, report if isinstance(report, dict) else report.to_dict()) for count, report in history]
    if rows:
        last = len(rows) - 1
        rows = [rows[i] for i in sorted({*bins(len(rows)).tolist(), last})]
    tokens = [count for count, _ in rows]
    top = max((max(_held(report), report["nbytes_dense"]) for _, report in rows), default=1)
    unit, scale = _unit(top)
    marker = {"mode": "lines" if len(rows) > 1 else "markers"}

    figure = go.Figure()
    for name in MODALITY_NAMES:
        sizes = [report["by_modality"].get(name, {}).get("nbytes", 0) for _, report in rows]
        if any(sizes):
            figure.add_scatter(
                x=tokens,
                y=[nbytes / scale for nbytes in sizes],
                name=name,
                stackgroup="held",
                line={"width": 0.5, "color": MODALITY_COLORS[name]},
                fillcolor=MODALITY_COLORS[name],
                customdata=[format_bytes(nbytes) for nbytes in sizes],
                hovertemplate="%{customdata}",
                **marker,
            )
    dense = [report["nbytes_dense"] for _, report in rows]
    figure.add_scatter(
        x=tokens,
        y=[nbytes / scale for nbytes in dense],
        name="bf16",
        line={"color": TEXT_COLOR, "dash": "dash", "width": 2},
        customdata=[format_bytes(nbytes) for nbytes in dense],
        hovertemplate="%{customdata}",
        **marker,
    )
    style(
        figure,
        height=250,
        revision="memory-over-tokens",
        hovermode="x unified",
        margin={"l": 8, "r": 12, "t": 58, "b": 34},
        legend_traceorder="normal",
    )
    figure.update_xaxes(title_text="tokens generated", title_standoff=4, rangemode="tozero", tickformat=",d", nticks=6)
    figure.update_yaxes(title_text=unit, rangemode="tozero", nticks=5)
    return figure
