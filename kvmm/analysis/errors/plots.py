"""Figures of the errors of stored keys and values."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvmm.analysis.errors import ARRANGEMENTS, SCOPES, ErrorReport
from kvmm.analysis.plots.parts import add_legend, add_ribbon, log_axis
from kvmm.analysis.plots.policies import policy_line
from kvmm.analysis.plots.style import GRID_COLOR, TEXT_COLOR, bins, style
from kvmm.kernels.exact import BF16_ROUNDING

SIDE_NAMES = {"key": "Key", "value": "Value"}
_SCOPE_WIDTHS = {"all": 5, "rest": 3, "refit": 1.5}  # drawn in this order: curves that agree stay visible
_SCOPE_COLORS = {"all": "#D55E00", "rest": "#E69F00", "refit": "#0072B2"}
_CODECS = {"kivi": "KIVI", "oscar": "OScaR"}
_ARRANGEMENT_COLORS = {"separate": "#0072B2", "sequence": "#E69F00", "interleaved": "#D55E00"}
_MARGIN = {"l": 8, "r": 8, "t": 66, "b": 40}


def _measure(relative: bool) -> str:
    return "relative squared error" if relative else "mean squared error"


def _positive(values: np.ndarray) -> np.ndarray:
    """Zeros, which a logarithmic axis does not have, as gaps."""
    return np.where(values > 0, values, np.nan)


def channel_errors(
    report: ErrorReport, policy: str, row: int = 0, side: str = "key", scope: str = "all", relative: bool = True
) -> go.Figure:
    """Error by head (rows) and channel (columns) in one layer.

    Args:
        report: from :func:`kvmm.analysis.errors.measure_errors`.
        policy: one of its policies.
        row: of ``report.layers``.
        side: "key" or "value".
        scope: which tokens count, of :data:`kvmm.analysis.errors.SCOPES`.
        relative: over the channel's own energy; else the mean squared error.
    """
    cells = report.of(policy).side(side).by_channel(scope, relative)[row]  # [H, D]
    figure = go.Figure()
    figure.add_heatmap(
        z=cells.round(6),
        x=list(range(cells.shape[1])),
        y=[str(head) for head in range(cells.shape[0])],
        zmin=0,
        colorscale="Cividis",
        colorbar={"title": {"text": _measure(relative), "side": "right"}, "thickness": 10, "outlinewidth": 0},
        hovertemplate="head %{y}, channel %{x}: %{z:.4g}<extra></extra>",
    )
    style(
        figure,
        height=130 + 26 * max(len(cells), 5),
        revision=f"channel-errors-{side}",
        margin={"l": 8, "r": 8, "t": 30, "b": 40},
    )
    figure.update_xaxes(title_text="channel", showgrid=False)
    figure.update_yaxes(title_text="KV head", type="category", showgrid=False)
    return figure


def outlier_channels(
    report: ErrorReport, policy: str, row: int = 0, side: str = "key", head: int | None = None, relative: bool = True
) -> go.Figure:
    """Error of each channel of one layer with and without outlier tokens, channels in order of their error.

    ``head`` None takes all heads, each channel of each head for itself. Long rows are thinned to 512 points.
    """
    errors = report.of(policy).side(side)
    curves = {scope: errors.by_channel(scope, relative)[row] for scope in SCOPES}
    picked = {scope: (x if head is None else x[head]).reshape(-1) for scope, x in curves.items()}
    order = np.argsort(-picked["all"], kind="stable")
    order = order[bins(len(order))]
    dim = curves["all"].shape[-1]
    places = [f"head {head if head is not None else i // dim}, channel {i % dim}" for i in order]
    figure = go.Figure()
    for scope, text in SCOPES.items():
        figure.add_scatter(
            x=list(range(len(order))),
            y=_positive(picked[scope][order]).round(8),
            name=text,
            mode="lines",
            line={"color": _SCOPE_COLORS[scope], "width": _SCOPE_WIDTHS[scope]},
            customdata=places,
            hovertemplate="%{customdata}: %{y:.4g}",
        )
    style(figure, height=340, revision=f"outlier-channels-{side}", hovermode="x unified", margin=_MARGIN)
    figure.update_xaxes(title_text="channels, largest error first", showticklabels=False)
    log_axis(figure, _measure(relative))
    return figure


def outlier_layers(report: ErrorReport, policy: str, side: str = "key", relative: bool = True) -> go.Figure:
    """Error by layer with and without outlier tokens; hover tells how many outliers a layer has."""
    errors = report.of(policy).side(side)
    layers = [str(layer) for layer in report.layers]
    counts = [len(positions) for positions in report.outliers[side]]
    figure = go.Figure()
    for scope, text in SCOPES.items():
        figure.add_bar(
            x=layers,
            y=errors.by_layer(scope, relative),
            name=text,
            marker={"color": _SCOPE_COLORS[scope]},
            customdata=counts,
            hovertemplate="%{y:.4g} (%{customdata} outlier tokens)",
        )
    style(figure, height=340, revision=f"outlier-layers-{side}", barmode="group", hovermode="x unified", margin=_MARGIN)
    figure.update_xaxes(title_text="layer", type="category", showgrid=False)
    figure.update_yaxes(title_text=_measure(relative), rangemode="tozero")
    return figure


def layer_errors(
    report: ErrorReport, side: str = "key", policies: Sequence[str] | None = None, relative: bool = True
) -> go.Figure:
    """Error by layer, one line per policy; none for those that only round (``bf16``): they would take half the axis."""
    figure = go.Figure()
    layers = [str(layer) for layer in report.layers]
    for index, name in enumerate(policies or [one.policy for one in report.policies]):
        errors = report.of(name).side(side)
        if errors.by_layer().max() <= BF16_ROUNDING:
            continue
        values = errors.by_layer(relative=relative)
        figure.add_scatter(
            x=layers,
            y=_positive(values),
            name=name,
            mode="lines+markers",
            line=policy_line(index),
            hovertemplate="%{y:.4g}",
        )
    style(figure, height=360, revision=f"layer-errors-{side}", hovermode="x unified", margin=_MARGIN)
    figure.update_xaxes(title_text="layer", type="category", showgrid=False)
    log_axis(figure, f"{SIDE_NAMES[side].lower()}s: {_measure(relative)}")
    return figure


def token_errors(
    report: ErrorReport,
    policies: Sequence[str] | None = None,
    row: int = 0,
    side: str = "value",
    relative: bool = True,
) -> go.Figure:
    """Error by token in one layer, one line per policy, under a ribbon of modalities; outlier tokens are marked.

    Long prompts are shown as means of at most 512 spans. Tokens in full precision leave a gap.
    """
    starts = bins(len(report.modality))
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.07, 0.93], vertical_spacing=0.02)
    add_ribbon(figure, report.modality, starts, row=1, col=1)
    add_legend(figure, report.modalities(), row=1, col=1)
    figure.update_yaxes(showticklabels=False, showgrid=False, row=1, col=1)
    for index, name in enumerate(policies or [one.policy for one in report.policies]):
        errors = report.of(name).side(side)
        if np.nan_to_num(errors.by_token()[row]).max() <= BF16_ROUNDING:
            continue
        values = errors.by_token(relative)[row]
        figure.add_scatter(
            x=starts,
            y=_positive(_means(values, starts)).astype(float).round(8),
            name=name,
            mode="lines+markers",
            marker={"size": 3},
            line=policy_line(index, 1.3),
            hovertemplate="token %{x}: %{y:.4g}",
            row=2,
            col=1,
        )
    marked = sorted(report.outliers[side][row])
    for position in marked:
        line = {"color": TEXT_COLOR, "width": 1, "dash": "dot"}
        figure.add_vline(x=position, line=line, opacity=0.7, row=2, col=1)
    if marked:
        line = {"color": TEXT_COLOR, "width": 1, "dash": "dot"}
        figure.add_scatter(x=[None], y=[None], mode="lines", line=line, name="outlier token", row=2, col=1)
    style(figure, height=400, revision=f"token-errors-{side}", margin={**_MARGIN, "t": 90})
    figure.update_xaxes(showgrid=False)
    figure.update_xaxes(title_text="token", row=2, col=1)
    log_axis(figure, f"{SIDE_NAMES[side].lower()}s: {_measure(relative)}", row=2, col=1)
    return figure


def token_error_map(report: ErrorReport, policy: str, side: str = "value", relative: bool = True) -> go.Figure:
    """Error by layer (rows) and token (columns) under a ribbon of modalities; tokens in full precision are empty."""
    values = report.of(policy).side(side).by_token(relative)  # [L, T]
    starts = bins(values.shape[1])
    cells = np.stack([_means(row, starts) for row in values])
    finite = cells[np.isfinite(cells)]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.07, 0.93], vertical_spacing=0.02)
    add_ribbon(figure, report.modality, starts, row=1, col=1)
    add_legend(figure, report.modalities(), row=1, col=1)
    figure.update_yaxes(showticklabels=False, showgrid=False, row=1, col=1)
    figure.add_heatmap(
        z=cells.astype(float).round(5),
        x=starts,
        y=[str(layer) for layer in report.layers],
        zmin=0,
        zmax=float(np.quantile(finite, 0.99)) if len(finite) else 1.0,  # one bad token must not hide the others
        colorscale="Cividis",
        colorbar={"title": {"text": _measure(relative), "side": "right"}, "thickness": 10, "outlinewidth": 0},
        hovertemplate="layer %{y}, token %{x}: %{z:.4g}<extra></extra>",
        hoverongaps=False,
        row=2,
        col=1,
    )
    style(
        figure,
        height=150 + 24 * max(len(report.layers), 6),
        revision=f"token-error-map-{side}",
        margin=_MARGIN,
    )
    figure.update_xaxes(showgrid=False)
    figure.update_xaxes(title_text="token", row=2, col=1)
    figure.update_yaxes(showgrid=False, zeroline=False)
    figure.update_yaxes(title_text="layer", type="category", row=2, col=1)
    return figure


def _means(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Means of the spans of ``[T]``, NaN left out; NaN where a span has nothing else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # 0 / 0 is the NaN that is wanted
        is_measured = ~np.isnan(values)
        total = np.add.reduceat(np.where(is_measured, values, 0).astype(float), starts)
        return total / np.add.reduceat(is_measured.astype(float), starts)


def mixed_errors(report: ErrorReport, row: int | None = None) -> go.Figure:
    """Key errors by modality of per-channel codes with groups of one modality or of several; one panel per code.

    ``row`` of ``report.layers``; None takes all layers together. Empty for a prompt of one modality.
    """
    if not report.mixed:
        figure = style(go.Figure(), height=160, revision="mixed-errors", margin={"l": 8, "r": 8, "t": 30, "b": 30})
        figure.add_annotation(text="This prompt has one modality: there is nothing to mix.", showarrow=False)
        figure.update_xaxes(visible=False)
        figure.update_yaxes(visible=False)
        return figure
    titles = [_CODECS.get(one.codec, one.codec) for one in report.mixed]
    figure = make_subplots(rows=1, cols=len(titles), subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.04)
    for column, one in enumerate(report.mixed, start=1):
        for arrangement, text in ARRANGEMENTS.items():
            by_modality = one.by_modality(arrangement, row)
            values = [*by_modality.values(), one.total(arrangement, row)]
            figure.add_bar(
                x=[*by_modality, "all"],
                y=values,
                name=text,
                legendgroup=arrangement,
                showlegend=column == 1,
                marker={"color": _ARRANGEMENT_COLORS[arrangement]},
                hovertemplate="%{x}: %{y:.4g}<extra>" + text + "</extra>",
                row=1,
                col=column,
            )
        figure.update_xaxes(title_text=f"{one.bits:g} bits,<br>groups of {one.group_size}", row=1, col=column)
    style(figure, height=360, revision="mixed-errors", barmode="group", margin={**_MARGIN, "t": 84})
    figure.update_layout(legend={"y": 1.12})
    figure.update_xaxes(showgrid=False)
    figure.update_yaxes(rangemode="tozero", gridcolor=GRID_COLOR)
    figure.update_yaxes(title_text="keys: relative squared error", row=1, col=1)
    return figure


__all__ = [
    "channel_errors",
    "layer_errors",
    "mixed_errors",
    "outlier_channels",
    "outlier_layers",
    "token_error_map",
    "token_errors",
]
