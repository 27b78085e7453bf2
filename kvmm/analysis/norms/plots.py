"""Figures of token norms, by layer, head and modality."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvmm.analysis.norms.measure import NormReport
from kvmm.analysis.plots.parts import add_boxes, add_legend, add_ribbon
from kvmm.analysis.plots.style import GRID_COLOR, TEXT_COLOR, bins, style

MAX_BOXES = 64
NORM_NAMES = {"key": "Key", "value": "Value", "query": "Query"}


def norm_heatmap(report: NormReport, kind: str = "key") -> go.Figure:
    """Norm by layer (rows) and token (columns), under a ribbon that shows the modality of every token.

    Long prompts are binned to at most 512 columns. A bin shows the largest norm in it, so that a single outlier token
    stays visible, and the modality that most of its tokens have.
    """
    norms = report.by_token(kind)  # [L, T]
    starts = bins(norms.shape[1])
    cells = np.maximum.reduceat(norms, starts, axis=1)
    layers = [str(layer) for layer in report.layers]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.07, 0.93], vertical_spacing=0.02)
    add_ribbon(figure, report.modality, starts, row=1, col=1)
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
    add_legend(figure, report.modalities(), row=1, col=1)
    style(
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
        add_boxes(figure, report.quantiles(kind, name), layers, name)
    if layer is not None:
        figure.add_vrect(x0=layer - 0.5, x1=layer + 0.5, fillcolor=GRID_COLOR, line_width=0, layer="below")
    style(figure, height=340, revision=f"boxes-{kind}", boxmode="group", margin={"l": 8, "r": 8, "t": 66, "b": 40})
    figure.update_xaxes(title_text="layer", type="category", showgrid=False)
    figure.update_yaxes(title_text=f"{NORM_NAMES[kind]} norm", rangemode="tozero")
    return figure


def head_boxes(report: NormReport, kind: str = "key", layer: int = 0) -> go.Figure:
    """Box plots of the token norms of every head of one layer (a row), grouped by modality, as in OScaR's figures.

    Quartiles and whiskers as in :func:`norm_boxes`. Of more than 64 heads every n-th is shown.
    """
    heads = np.arange(report.norms(kind).shape[1])[:: -(-report.norms(kind).shape[1] // MAX_BOXES)]
    figure = go.Figure()
    for name in report.modalities():
        add_boxes(figure, report.head_quantiles(kind, layer, name)[heads], heads, name)
    style(figure, height=340, revision=f"heads-{kind}", boxmode="group", margin={"l": 8, "r": 8, "t": 66, "b": 40})
    figure.update_xaxes(title_text=f"head of layer {report.layers[layer]}", type="category", showgrid=False)
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
    style(figure, height=340, revision=f"imbalance-{kind}", margin={"l": 8, "r": 8, "t": 44, "b": 40})
    figure.update_xaxes(title_text="layer", type="category", showgrid=False)
    figure.update_yaxes(title_text="std / mean of the norms", rangemode="tozero")
    return figure
