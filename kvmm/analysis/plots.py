"""Every figure of kvmm once, as plotly functions that the app, the command line and reports share.

Figures have a transparent background and mid-grey text, readable on light and dark pages alike. Modalities keep one
colour everywhere, from the Okabe-Ito palette, which readers with colour-vision deficiencies can tell apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvmm.analysis.norms import NormReport
from kvmm.modality import MODALITY_NAMES

MODALITY_COLORS = {"text": "#0072B2", "image": "#E69F00", "video": "#CC79A7", "audio": "#009E73"}
DENSE_COLOR = "rgba(128,134,148,0.38)"
TEXT_COLOR = "#7a8190"
GRID_COLOR = "rgba(128,134,148,0.22)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
MAX_COLUMNS = 512
NORM_NAMES = {"key": "Key", "value": "Value", "query": "Query"}


def format_bytes(nbytes: float) -> str:
    """``nbytes`` in binary units with three significant digits: ``"38.2 KiB"``, ``"1.50 MiB"``."""
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB"]
    while value >= 1000 and len(units) > 1:
        value /= 1024
        units.pop(0)
    digits = 0 if units[0] == "B" or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {units[0]}"


def _layout(figure: go.Figure, *, height: int, revision: str, **layout: Any) -> go.Figure:
    figure.update_layout(
        height=height,
        # One constant a figure: a redraw keeps the zoom, the hover and the hidden traces of the reader.
        uirevision=revision,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 12, "color": TEXT_COLOR},
        hoverlabel={"font": {"family": FONT}},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0},
        **layout,
    )
    axis = {"gridcolor": GRID_COLOR, "zerolinecolor": GRID_COLOR, "fixedrange": True, "automargin": True}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure


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
    _layout(
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


def _bins(tokens: int, columns: int = MAX_COLUMNS) -> np.ndarray:
    """First token of each column, int ``[C]`` with C <= ``columns``."""
    return np.unique(np.linspace(0, tokens, min(tokens, columns), endpoint=False).astype(int))


def norm_heatmap(report: NormReport, kind: str = "key") -> go.Figure:
    """Norm by layer (rows) and token (columns), under a ribbon that shows the modality of every token.

    Long prompts are binned to at most 512 columns. A bin shows the largest norm in it, so that a single outlier token
    stays visible, and the modality that most of its tokens have.
    """
    norms = report.by_token(kind)  # [L, T]
    tokens = norms.shape[1]
    starts = _bins(tokens)
    ends = np.append(starts[1:], tokens)
    cells = np.maximum.reduceat(norms, starts, axis=1)
    codes = np.arange(len(MODALITY_NAMES))
    counts = np.add.reduceat((report.modality[None] == codes[:, None]).astype(int), starts, axis=1)  # [M, C]
    ribbon = counts.argmax(axis=0)
    spans = [f"{a}" if b - a == 1 else f"{a}-{b - 1}" for a, b in zip(starts, ends, strict=True)]
    layers = [str(layer) for layer in report.layers]

    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.07, 0.93], vertical_spacing=0.02)
    palette = [MODALITY_COLORS[name] for name in MODALITY_NAMES]
    steps = np.repeat(np.linspace(0, 1, len(palette) + 1), 2)[1:-1]
    figure.add_heatmap(
        z=ribbon[None],
        x=starts,
        y=["modality"],
        zmin=-0.5,
        zmax=len(palette) - 0.5,
        colorscale=[[float(s), palette[i // 2]] for i, s in enumerate(steps)],
        showscale=False,
        customdata=np.array([[f"{MODALITY_NAMES[m]}, token {s}" for m, s in zip(ribbon, spans, strict=True)]]),
        hovertemplate="%{customdata}<extra></extra>",
        row=1,
        col=1,
    )
    figure.add_heatmap(
        z=np.round(cells, 3),
        x=starts,
        y=layers,
        colorscale="Cividis",
        colorbar={"title": {"text": "L2 norm", "side": "right"}, "thickness": 10, "outlinewidth": 0, "len": 0.9},
        hovertemplate="layer %{y}, token %{x}: %{z:.2f}<extra></extra>",
        row=2,
        col=1,
    )
    for name in report.modalities():  # a heatmap has no legend of its own
        marker = {"color": MODALITY_COLORS[name], "symbol": "square", "size": 10}
        figure.add_scatter(x=[None], y=["modality"], mode="markers", marker=marker, name=name, row=1, col=1)
    _layout(
        figure,
        height=150 + 24 * max(len(layers), 6),
        revision=f"heatmap-{kind}",
        margin={"l": 8, "r": 8, "t": 66, "b": 40},
    )
    figure.update_xaxes(showgrid=False)
    figure.update_xaxes(title_text="token", row=2, col=1)
    figure.update_yaxes(showgrid=False, zeroline=False)
    figure.update_yaxes(showticklabels=False, row=1, col=1)
    figure.update_yaxes(title_text="layer", type="category", row=2, col=1)
    return figure


def norm_boxes(report: NormReport, kind: str = "key", layer: int | None = None) -> go.Figure:
    """Box plots of the norms by modality, all layers side by side; ``layer`` (a row) is shaded.

    The quartiles are computed here and the whiskers are the 5 and 95 % quantiles: five numbers a box travel.
    """
    layers = [str(i) for i in report.layers]
    figure = go.Figure()
    for name in report.modalities():
        low, q1, median, q3, high = report.quantiles(kind, name).round(4).T
        figure.add_box(
            x=layers,
            lowerfence=low,
            q1=q1,
            median=median,
            q3=q3,
            upperfence=high,
            name=name,
            marker={"color": MODALITY_COLORS[name]},
            line={"width": 1.4},
            hoverinfo="y",
        )
    if layer is not None:
        figure.add_vrect(x0=layer - 0.5, x1=layer + 0.5, fillcolor=GRID_COLOR, line_width=0, layer="below")
    _layout(figure, height=340, revision=f"boxes-{kind}", boxmode="group", margin={"l": 8, "r": 8, "t": 66, "b": 40})
    figure.update_xaxes(title_text="layer", type="category", showgrid=False)
    figure.update_yaxes(title_text=f"{NORM_NAMES[kind]} norm", rangemode="tozero")
    return figure


def norm_imbalance(report: NormReport, kind: str = "key", layer: int | None = None) -> go.Figure:
    """Coefficient of variation of the token norms by layer: mean over the heads, with the range of the heads."""
    variation = report.coefficient_of_variation(kind)  # [L, H]
    mean = variation.mean(axis=1)
    layers = [str(i) for i in report.layers]
    selected = [i == layer for i in range(len(layers))]
    figure = go.Figure()
    figure.add_bar(
        x=layers,
        y=mean.round(4),
        marker={"color": ["#D55E00" if on else "rgba(128,134,148,0.55)" for on in selected], "cornerradius": 3},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": (variation.max(axis=1) - mean).round(4),
            "arrayminus": (mean - variation.min(axis=1)).round(4),
            "color": TEXT_COLOR,
            "thickness": 1.2,
        },
        hovertemplate="layer %{x}: %{y:.3f}<extra></extra>",
        showlegend=False,
    )
    _layout(figure, height=340, revision=f"imbalance-{kind}", margin={"l": 8, "r": 8, "t": 44, "b": 40})
    figure.update_xaxes(title_text="layer", type="category", showgrid=False)
    figure.update_yaxes(title_text="std / mean of the norms", rangemode="tozero")
    return figure
