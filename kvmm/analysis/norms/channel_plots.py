"""Figures of one layer, channel by channel, at the stages of OScaR's codec."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvmm.analysis.norms.channels import STAGES, ChannelReport
from kvmm.analysis.norms.plots import MAX_BOXES, NORM_NAMES
from kvmm.analysis.plots.parts import add_boxes, add_legend, add_ribbon
from kvmm.analysis.plots.style import MODALITY_COLORS, bins, style
from kvmm.errors import KVMMError

STAGE_NAMES = {"raw": "raw", "rotated": "rotated", "scaled": "scaled", "both": "rotated, then scaled"}
_MAX_CHANNELS = 256
_SIDE_BY_SIDE = 128  # token bins of each of four heatmaps
_COLORS = "Cividis"


def channel_heatmap(
    report: ChannelReport, kind: str = "key", stage: str = "raw", head: int = 0, columns: int = 512
) -> go.Figure:
    """Magnitude by channel (rows) and token (columns) of one head at one stage, under the ribbon of modalities.

    At most 512 x 256 cells; a bin shows the largest magnitude in it.
    """
    starts = bins(report.modality.size, columns)
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.07, 0.93], vertical_spacing=0.02)
    add_ribbon(figure, report.modality, starts, row=1, col=1)
    cells, channels = _cells(report, kind, stage, head, starts)
    bar = {"title": {"text": "magnitude", "side": "right"}, "thickness": 10, "outlinewidth": 0, "len": 0.9}
    _add_cells(figure, cells, starts, channels, colorbar=bar, row=2, col=1)
    add_legend(figure, report.modalities(), row=1, col=1)
    style(figure, height=400, revision=f"channels-{kind}-{stage}", margin={"l": 8, "r": 8, "t": 66, "b": 40})
    _axes(figure, 1, 1, f"channel of head {head}")
    return figure


def channel_stages(report: ChannelReport, kind: str = "key", head: int = 0) -> go.Figure:
    """The stages of ``kind`` side by side, each with its own scale: what is flat is easy to code in two bits."""
    names = report.stages(kind)
    starts = bins(report.modality.size, _SIDE_BY_SIDE)
    pairs = len(names) // 2
    figure = make_subplots(
        rows=2 * pairs,
        cols=2,
        row_heights=[0.07, 0.93] * pairs,
        vertical_spacing=0.05 if pairs > 1 else 0.03,
        horizontal_spacing=0.06,
        subplot_titles=[t for i in range(pairs) for t in (*(STAGE_NAMES[n] for n in names[2 * i : 2 * i + 2]), "", "")],
    )
    for index, name in enumerate(names):
        row, col = 2 * (index // 2) + 1, index % 2 + 1
        add_ribbon(figure, report.modality, starts, row=row, col=col)
        cells, channels = _cells(report, kind, name, head, starts)
        _add_cells(figure, cells, starts, channels, showscale=False, row=row + 1, col=col)
        _axes(figure, row, col, f"channel of head {head}" if col == 1 else "")
        figure.update_xaxes(showticklabels=False, row=row, col=col)
        if row + 1 < 2 * pairs:
            figure.update_xaxes(title_text="", showticklabels=False, row=row + 1, col=col)
    add_legend(figure, report.modalities(), row=1, col=1)
    style(figure, height=110 + 270 * pairs, revision=f"stages-{kind}", margin={"l": 8, "r": 8, "t": 80, "b": 40})
    figure.update_layout(legend={"y": 1.07})
    figure.update_annotations(font={"size": 13})
    return figure


def stage_boxes(report: ChannelReport, measure: str = "range") -> go.Figure:
    """Box plots over the heads of the keys, grouped by modality, one panel per stage.

    Args:
        measure: ``range`` (of a channel within a quantisation group, in units of the stage's root mean square: the
            step of its code) or ``norm`` (of the tokens; 1 once they are scaled).
    """
    count = report.key.shape[0]
    heads = np.arange(count)[:: -(-count // MAX_BOXES)]
    titles = [STAGE_NAMES[name].replace(", then ", ",<br>then<br>") for name in STAGES]  # four panels fit on a phone
    figure = make_subplots(rows=1, cols=len(STAGES), shared_yaxes=measure == "range", subplot_titles=titles)
    for col, stage in enumerate(STAGES, start=1):
        for name in report.modalities():
            boxes = report.quantiles(stage, name, measure)[heads]
            # One group of offsets in all panels; else every panel leaves room for the boxes of the others.
            group = {"legendgroup": name, "offsetgroup": name, "showlegend": col == 1}
            add_boxes(figure, boxes, heads, name, **group, row=1, col=col)
    style(figure, height=360, revision=f"stage-{measure}", boxmode="group", margin={"l": 8, "r": 8, "t": 96, "b": 40})
    figure.update_layout(legend={"y": 1.24})
    figure.update_annotations(font={"size": 12})
    figure.update_xaxes(title_text="head", type="category", showgrid=False)
    figure.update_yaxes(rangemode="tozero")
    title = "channel range / rms" if measure == "range" else f"{NORM_NAMES['key']} norm"
    figure.update_yaxes(title_text=title, row=1, col=1)
    return figure


def stage_summary(report: ChannelReport, kind: str = "key") -> go.Figure:
    """Bars by stage and modality: range, kurtosis and the error of the codes."""
    if kind == "query":
        raise KVMMError("queries are not coded: ask for keys or values")
    rows = report.summary(kind)
    measures = {
        "range": "range / rms",
        "kurtosis": "kurtosis",
        "token_error": f"relative error of {report.bits}-bit codes",
    }
    figure = make_subplots(rows=1, cols=3, subplot_titles=list(measures.values()), horizontal_spacing=0.08)
    for col, measure in enumerate(measures, start=1):
        for name in report.modalities():
            of_modality = [row for row in rows if row.modality == name]
            figure.add_bar(
                x=[STAGE_NAMES[row.stage].replace(", ", ",<br>") for row in of_modality],
                y=[float(f"{getattr(row, measure):.4g}") for row in of_modality],
                name=name,
                marker={"color": MODALITY_COLORS[name], "cornerradius": 3},
                legendgroup=name,
                offsetgroup=name,
                showlegend=col == 1,
                hovertemplate=f"{name}, %{{x}}: %{{y}}<extra></extra>",
                row=1,
                col=col,
            )
    style(figure, height=340, revision=f"summary-{kind}", barmode="group", margin={"l": 8, "r": 8, "t": 84, "b": 40})
    figure.update_layout(legend={"y": 1.14})
    figure.update_annotations(font={"size": 13})
    figure.update_xaxes(showgrid=False, tickangle=0)
    figure.update_yaxes(rangemode="tozero")
    return figure


def _cells(
    report: ChannelReport, kind: str, stage: str, head: int, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Largest magnitudes ``[D', C]`` by bin of channels and tokens, and the first channel of each bin."""
    states = report.stage(kind, stage)
    if not 0 <= head < states.shape[0]:
        raise KVMMError(f"There is no head {head}: {kind} has {states.shape[0]}, counted from 0.")
    magnitude = np.abs(states[head])  # [T, D]
    channels = bins(magnitude.shape[1], _MAX_CHANNELS)
    return np.maximum.reduceat(np.maximum.reduceat(magnitude, starts, axis=0), channels, axis=1).T, channels


def _add_cells(
    figure: go.Figure, cells: np.ndarray, starts: np.ndarray, channels: np.ndarray, **options: object
) -> None:
    figure.add_heatmap(
        z=cells.astype(np.float32),
        x=starts,
        y=channels,
        colorscale=_COLORS,
        zmin=0,
        hovertemplate="channel %{y}, token %{x}: %{z:.3g}<extra></extra>",
        **options,
    )


def _axes(figure: go.Figure, row: int, col: int, title: str) -> None:
    """Of a ribbon at ``row`` and the cells below it."""
    figure.update_xaxes(showgrid=False, zeroline=False, row=row, col=col)
    figure.update_xaxes(showgrid=False, zeroline=False, title_text="token", row=row + 1, col=col)
    figure.update_yaxes(showgrid=False, showticklabels=False, row=row, col=col)
    figure.update_yaxes(showgrid=False, zeroline=False, title_text=title, row=row + 1, col=col)


__all__ = ["STAGE_NAMES", "channel_heatmap", "channel_stages", "stage_boxes", "stage_summary"]
