"""Figures of what a KV cache holds."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from kvmm.analysis.plots.style import DENSE_COLOR, MODALITY_COLORS, format_bytes, style
from kvmm.modality import MODALITY_NAMES


def memory_by_modality(report: Any) -> go.Figure:
    """Bytes of the KV cache by modality: dense (grey) over measured (coloured), one pair of bars a modality.

    ``report`` is a :class:`kvmm.cache.MemoryReport` or its ``to_dict()``.
    """
    report = report if isinstance(report, dict) else report.to_dict()
    rows = {name: row for name, row in report["by_modality"].items() if row["tokens"]}
    names = sorted(rows, key=MODALITY_NAMES.index, reverse=True)  # plotly draws the first category at the bottom
    labels = [f"<b>{name}</b><br>{rows[name]['tokens']:,} tokens" for name in names]
    dense = [rows[name]["nbytes_dense"] / 1024 for name in names]
    packed = [rows[name]["nbytes"] / 1024 for name in names]
    bits = [rows[name]["bits_per_value"] for name in names]

    figure = go.Figure()
    common = {"y": labels, "orientation": "h", "textposition": "outside", "cliponaxis": False, "width": 0.36}
    figure.add_bar(
        x=packed,
        name="kvmm",
        offset=-0.38,
        marker={"color": [MODALITY_COLORS[name] for name in names], "cornerradius": 3},
        text=[f"<b>{format_bytes(n * 1024)}</b> · {b:.2f} bits" for n, b in zip(packed, bits, strict=True)],
        hovertemplate="packed: %{text}<extra></extra>",
        **common,
    )
    figure.add_bar(
        x=dense,
        name="bf16",
        offset=0.02,
        marker={"color": DENSE_COLOR, "cornerradius": 3},
        text=[f"{format_bytes(n * 1024)} bf16" for n in dense],
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
    figure.update_xaxes(title_text="KiB", title_standoff=4, range=[0, top * 1.55], nticks=5)
    figure.update_yaxes(showgrid=False)
    return figure
