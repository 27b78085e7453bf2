"""Figures of attention under a policy: histograms of the scores, divergence by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from kvmm.analysis.plots.parts import log_axis
from kvmm.analysis.plots.policies import policy_line
from kvmm.analysis.plots.style import DENSE_COLOR, MODALITY_COLORS, TEXT_COLOR, style
from kvmm.analysis.scores.measure import KINDS, ScoreReport
from kvmm.modality import MODALITY_NAMES

_KIND_LINES = {
    "exact": {"color": TEXT_COLOR, "width": 1.5},
    "quantised": {"color": "#D55E00", "width": 2},
    "calibrated": {"color": "#0072B2", "width": 2, "dash": "dash"},
}
_MARGIN = {"l": 8, "r": 8, "t": 66, "b": 40}
_ROUNDING = 1e-4  # nats: keys rounded to 16 bits stay below it


def score_histogram(
    report: ScoreReport, policy: str, row: int = 0, modality: str | None = None, log: bool = True
) -> go.Figure:
    """Scores before the softmax in one layer: with exact keys (filled), quantised, and quantised and calibrated.

    Args:
        report: from :func:`kvmm.analysis.scores.measure.measure_scores`.
        policy: one of its policies.
        row: of ``report.layers``.
        modality: of the keys; None takes all that the policy packs.
        log: logarithmic shares, which show the tails that the softmax looks at.
    """
    scores = report.of(policy)
    edges = scores.edges[row].astype(float)
    centers = ((edges[1:] + edges[:-1]) / 2).round(5)
    figure = go.Figure()
    for kind in scores.counts:
        share = scores.histogram(kind, row, modality)
        figure.add_scatter(
            x=centers,
            y=np.where(share > 0, share, np.nan) if log else share,
            name=KINDS[kind],
            mode="lines",
            line={**_KIND_LINES[kind], "shape": "hvh"},
            fill="tozeroy" if kind == "exact" and not log else None,
            fillcolor=DENSE_COLOR,
            hovertemplate="%{y:.3g} of the scores",
        )
    style(figure, height=340, revision="score-histogram", hovermode="x unified", margin=_MARGIN)
    figure.update_xaxes(title_text="score before the softmax", zeroline=False)
    if log:
        log_axis(figure, "share of the scores")
    else:
        figure.update_yaxes(title_text="share of the scores", rangemode="tozero")
    return figure


def attention_kl(report: ScoreReport, policies: Sequence[str] | None = None) -> go.Figure:
    """KL(exact || policy) of the attention by layer, one line per policy that does more than round (``bf16``)."""
    figure = go.Figure()
    layers = [str(layer) for layer in report.layers]
    for index, name in enumerate(policies or [one.policy for one in report.policies]):
        kl = report.of(name).kl
        if kl.max() < _ROUNDING:
            continue
        figure.add_scatter(
            x=layers,
            y=np.where(kl > 0, kl, np.nan),
            name=name,
            mode="lines+markers",
            line=policy_line(index),
            hovertemplate="%{y:.3g}",
        )
    style(figure, height=360, revision="attention-kl", hovermode="x unified", margin=_MARGIN)
    figure.update_xaxes(title_text="layer", type="category", showgrid=False)
    log_axis(figure, "KL of the attention (nats)")
    return figure


def softmax_errors(report: ScoreReport, policies: Sequence[str] | None = None) -> go.Figure:
    """Squared error of the attention's weights by layer, one line per policy that does more than round.

    Policies that calibrate logits have a second, dotted line without it: the question of CalibQuant's figure 2
    (arXiv 2502.14882).
    """
    figure = go.Figure()
    layers = [str(layer) for layer in report.layers]
    for index, name in enumerate(policies or [one.policy for one in report.policies]):
        scores = report.of(name)
        if scores.kl.max() < _ROUNDING:
            continue
        line = policy_line(index)
        lines = [(name, scores.softmax_mse, line)]
        if "calibrated" in scores.counts:
            lines.append((f"{name}, not calibrated", scores.softmax_mse_uncalibrated, {**line, "dash": "dot"}))
        for label, values, drawn in lines:
            figure.add_scatter(
                x=layers,
                y=np.where(values > 0, values, np.nan),
                name=label,
                mode="lines+markers",
                line=drawn,
                hovertemplate="%{y:.3g}",
            )
    style(figure, height=360, revision="softmax-errors", hovermode="x unified", margin=_MARGIN)
    figure.update_xaxes(title_text="layer", type="category", showgrid=False)
    log_axis(figure, "squared error of the softmax")
    return figure


def attention_kl_parts(report: ScoreReport, policy: str) -> go.Figure:
    """KL(exact || policy) of the attention by layer, in its parts: between modalities, and within each."""
    scores = report.of(policy)
    layers = [str(layer) for layer in report.layers]
    parts = [("between modalities", scores.kl_between, "#7a8190")]
    for code in np.unique(report.modality):
        name = MODALITY_NAMES[code]
        parts.append((f"within {name}", scores.kl_within[:, code], MODALITY_COLORS[name]))
    figure = go.Figure()
    for name, values, color in parts:
        figure.add_bar(x=layers, y=values, name=name, marker={"color": color}, hovertemplate="%{y:.3g}")
    if "calibrated" in scores.counts:
        figure.add_scatter(
            x=layers,
            y=scores.kl_uncalibrated,
            name="without calibration",
            mode="markers",
            marker={"symbol": "line-ew-open", "size": 18, "color": TEXT_COLOR, "line": {"width": 2}},
            hovertemplate="%{y:.3g}",
        )
    style(figure, height=340, revision="attention-kl-parts", barmode="stack", hovermode="x unified", margin=_MARGIN)
    figure.update_xaxes(title_text="layer", type="category", showgrid=False)
    figure.update_yaxes(title_text="KL of the attention (nats)", rangemode="tozero")
    figure.update_layout(legend_traceorder="normal")
    return figure


__all__ = ["attention_kl", "attention_kl_parts", "score_histogram", "softmax_errors"]
