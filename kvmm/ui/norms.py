"""Tab "Token norms": how uneven the keys, values and queries of the last prompt are, by layer and modality."""

from __future__ import annotations

import html
from typing import Any

import gradio as gr

from kvmm.analysis import NormReport
from kvmm.analysis.plots import MODALITY_COLORS, norm_boxes, norm_heatmap, norm_imbalance
from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES
from kvmm.ui.session import Session

KINDS = {"Keys": "key", "Values": "value", "Queries": "query"}


def summary_html(report: NormReport, kind: str) -> str:
    """One line: how many tokens, where the imbalance is largest, and the gap between modalities."""
    variation = report.coefficient_of_variation(kind).mean(axis=1)
    gap = report.modality_gap(kind)
    worst, widest = int(variation.argmax()), int(gap.argmax())
    counts = ", ".join(f"{int((report.modality == code).sum()):,} {name}" for code, name in _present(report))
    text = (
        f"<b>{report.modality.size:,} tokens</b> ({counts}). Norms vary most in layer {report.layers[worst]}: "
        f"their standard deviation is <b>{variation[worst]:.2f}</b> of the mean."
    )
    if len(report.modalities()) > 1:
        text += f" Modalities are furthest apart in layer {report.layers[widest]}: their medians differ "
        text += f"<b>{gap[widest]:.2f}×</b>."
    return f'<div class="hint" id="norm-summary">{text}</div>'


def _present(report: NormReport) -> list[tuple[int, str]]:
    return [(MODALITY_NAMES.index(name), name) for name in report.modalities()]


def outliers_html(report: NormReport, kind: str, layer: int) -> str:
    """Table of the outlier tokens of one layer."""
    rows = report.outliers(kind, layer)
    head = f'<div class="section">Outlier tokens in layer {report.layers[layer]}</div>'
    if not rows:
        return f'{head}<div class="hint">None: every norm is within 3.5 robust deviations of the median.</div>'
    body = "".join(
        f"<tr><td>{row['position']}</td>"
        f'<td><span class="dot" style="background:{MODALITY_COLORS[row["modality"]]}"></span>'
        f"{row['modality']}</td><td><code>{html.escape(row['token'])}</code></td><td>{row['norm']:.2f}</td>"
        f"<td>{row['ratio']:.2f}×</td></tr>"
        for row in rows
    )
    return (
        f'{head}<table class="outliers"><thead><tr><th>position</th><th>modality</th><th>token</th><th>norm</th>'
        f"<th>of the median</th></tr></thead><tbody>{body}</tbody></table>"
    )


def build_norms(session: gr.State, tab: gr.Tab, num_layers: int) -> None:
    """Lay out the tab inside the current context; it measures when it is opened after a new answer."""
    empty = '<div class="hint">Ask something first: this page measures the tokens of your last prompt.</div>'
    summary = gr.HTML(empty, elem_id="norms-summary", padding=False)
    with gr.Row(visible=False) as controls:
        kind = gr.Radio(list(KINDS), value="Keys", label="Norms of", elem_id="norm-kind")
        layer = gr.Slider(0, max(num_layers - 1, 1), value=0, step=1, label="Layer", elem_id="norm-layer")
    with gr.Column(visible=False) as figures:
        heatmap = gr.Plot(label="Norm of every token, by layer", elem_id="norm-heatmap")
        with gr.Row():
            with gr.Column(scale=7, min_width=320):
                boxes = gr.Plot(label="By modality: median, quartiles, 5 and 95 %", elem_id="norm-boxes")
            with gr.Column(scale=5, min_width=300):
                imbalance = gr.Plot(label="Imbalance: mean and range of the heads", elem_id="norm-imbalance")
        outliers = gr.HTML(elem_id="norm-outliers", padding=False)

    def detail(report: NormReport, kind: str, row: int) -> tuple[Any, ...]:
        return norm_boxes(report, kind, row), norm_imbalance(report, kind, row), outliers_html(report, kind, row)

    def everything(state: Session | None, name: str, row: int) -> tuple[Any, ...]:
        hidden = gr.update(visible=False)
        if state is None or state.last is None:
            return empty, hidden, hidden, None, None, None, ""
        try:
            report, kind = state.measure_norms(), KINDS[name]
            shown = gr.update(visible=True)
            row = min(int(row), len(report.layers) - 1)
            return summary_html(report, kind), shown, shown, norm_heatmap(report, kind), *detail(report, kind, row)
        except KVMMError as error:
            message = f'<div class="hint">⚠️ {html.escape(str(error))}</div>'
            return message, gr.update(visible=True), hidden, None, None, None, ""

    def at_layer(state: Session | None, name: str, row: int) -> tuple[Any, ...]:
        if state is None or state.norms is None:
            return gr.skip(), gr.skip(), gr.skip()
        try:
            return detail(state.norms, KINDS[name], min(int(row), len(state.norms.layers) - 1))
        except KVMMError:
            return None, None, ""

    options: dict[str, Any] = {
        "api_visibility": "private",
        "show_progress": "minimal",
        "concurrency_id": "model",
        "concurrency_limit": 1,
    }
    outputs = [summary, controls, figures, heatmap, boxes, imbalance, outliers]
    tab.select(everything, [session, kind, layer], outputs, **options)
    kind.input(everything, [session, kind, layer], outputs, **options)
    layer.input(
        at_layer,
        [session, kind, layer],
        [boxes, imbalance, outliers],
        api_visibility="private",
        show_progress="hidden",
        trigger_mode="always_last",
    )
