"""Figures of token norms, by layer, head and modality."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvmm.analysis.norms.attention_map import AttentionMap
from kvmm.analysis.norms.measure import QUANTILES, NormReport
from kvmm.analysis.plots.parts import add_boxes, add_legend, add_ribbon, spans
from kvmm.analysis.plots.style import GRID_COLOR, TEXT_COLOR, bins, style

MAX_BOXES = 64
MAX_TOKEN_BOXES = 96
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


def shown_tokens(report: NormReport, kind: str, layer: int, count: int = MAX_TOKEN_BOXES) -> np.ndarray:
    """The tokens of :func:`token_boxes`, ascending: all of a short prompt, else the furthest outliers of row ``layer``,
    up to half of ``count``, and others spread evenly over the prompt.
    """
    tokens = report.modality.size
    unusual = [one["position"] for one in report.outliers(kind, layer, count=count // 2)]
    spread = np.linspace(0, tokens - 1, min(tokens, count - len(unusual))).round().astype(int)
    return np.arange(tokens) if tokens <= count else np.unique(np.concatenate((np.array(unusual, int), spread)))


def token_boxes(report: NormReport, kind: str = "key", layer: int = 0) -> go.Figure:
    """Box plots over the heads of one layer (a row), a box a token, as in OScaR's Fig. 3 and 10 to 21.

    A token whose box lies apart has an unusual norm in all heads, such as a sink; tall boxes are of tokens on which the
    heads disagree, whose norms one number for all heads (``norm_scope="token"``) fits badly. Of long prompts up to 96
    tokens are shown: see :func:`shown_tokens`. Whiskers are the 5 and 95 % quantiles.
    """
    tokens = shown_tokens(report, kind, layer)
    quantiles = np.quantile(report.norms(kind)[layer][:, tokens], QUANTILES, axis=0).T
    figure = go.Figure()
    for name in report.modalities():
        of_name = report.mask(name)[tokens]
        add_boxes(figure, quantiles[of_name], tokens[of_name], name)
    style(figure, height=340, revision=f"tokens-{kind}", margin={"l": 8, "r": 8, "t": 66, "b": 40})
    figure.update_xaxes(
        title_text=f"token, layer {report.layers[layer]}",
        type="category",
        showgrid=False,
        categoryorder="array",
        categoryarray=[str(one) for one in tokens],
    )
    figure.update_yaxes(title_text=f"{NORM_NAMES[kind]} norm over the heads", rangemode="tozero")
    return figure


def attention_heatmap(found: AttentionMap, head: int | None = None) -> go.Figure:
    """Attention by query (rows) and token (columns) of one layer, under a ribbon of modalities, as in OScaR's Fig. 7.

    The colours are of the logarithm, from a thousandth to 1: a sink takes most of a row and the rest shares little.
    ``head`` is a query head; None shows the mean of all.
    """
    weights = found.mean(head)
    logs = np.log10(np.maximum(weights, 1e-3))
    labels = np.broadcast_to(np.array(spans(found.starts, found.modality.size)), weights.shape)
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.06, 0.94], vertical_spacing=0.02)
    add_ribbon(figure, found.modality, found.starts, row=1, col=1)
    figure.add_heatmap(
        z=np.round(logs, 3),
        x=found.starts,
        y=found.queries,
        customdata=labels,
        colorscale="Cividis",
        zmin=-3,
        zmax=0,
        colorbar={
            "title": {"text": "attention", "side": "right"},
            "tickvals": [-3, -2, -1, 0],
            "ticktext": ["0.001", "0.01", "0.1", "1"],
            **{"thickness": 10, "outlinewidth": 0, "len": 0.9},
        },
        hovertemplate="query %{y}, token %{customdata}: 10^%{z:.2f}<extra></extra>",
        row=2,
        col=1,
    )
    add_legend(figure, found.modalities(), row=1, col=1)
    style(figure, height=520, revision="attention-map", margin={"l": 8, "r": 8, "t": 66, "b": 40})
    figure.update_xaxes(showgrid=False)
    figure.update_xaxes(title_text=f"token, layer {found.layer}", row=2, col=1)
    figure.update_yaxes(showgrid=False, zeroline=False)
    figure.update_yaxes(showticklabels=False, row=1, col=1)
    figure.update_yaxes(title_text="query", autorange="reversed", row=2, col=1)
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
