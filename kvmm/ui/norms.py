"""Tab "Token norms": how uneven the keys, values and queries of the last prompt are, and which tokens make them so."""

from __future__ import annotations

import html
from typing import Any

import gradio as gr

from kvmm.analysis import NormReport
from kvmm.analysis.channels import STAGES, ChannelReport, record_channels
from kvmm.analysis.plots import (
    MODALITY_COLORS,
    STAGE_NAMES,
    channel_heatmap,
    channel_stages,
    head_boxes,
    norm_heatmap,
    norm_imbalance,
    stage_boxes,
)
from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES
from kvmm.models.conversation import model_lock
from kvmm.ui.prompts import AT_ONCE, ON_MODEL, Page, build_head, connect, has_prompt, problem, table_html
from kvmm.ui.session import Session
from kvmm.ui.token_view import click_script, token_html

KINDS = {"Keys": "key", "Values": "value", "Queries": "query"}
SIDE_BY_SIDE = "all side by side"
EMPTY = "Ask something first: this page measures the tokens of your last prompt."
STAGE_CHOICES = [(STAGE_NAMES[name].capitalize(), name) for name in STAGES] + [("Side by side", SIDE_BY_SIDE)]


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
    """Table of the outlier tokens of one layer, then its attention sinks. Buttons choose a token."""
    rows, sinks = report.outliers(kind, layer), report.sinks(kind, layer)
    head = f'<div class="section">Outlier tokens in layer {report.layers[layer]}</div>'
    if not rows:
        return f'{head}<div class="hint">None: every norm is within 3.5 robust deviations of the median.</div>'
    body = [
        (
            _button(row),
            f'<span class="dot" style="background:{MODALITY_COLORS[row["modality"]]}"></span>{row["modality"]}',
            f"<code>{html.escape(row['token'])}</code>",
            f"{row['norm']:.2f}",
            f"{row['ratio']:.2f}×",
            "" if row["attention"] is None else f"{100 * row['attention']:.1f} %",
        )
        for row in rows
    ]
    columns = ("token", "modality", "text", "norm", "× median", "attention")
    drawn = " ".join(map(_button, sinks)) or "none"
    return (
        f"{head}{table_html(columns, body, 'outlier-table')}"
        f'<div class="hint">Attention sinks among the outliers: {drawn}. Attention is what the head that looks at a '
        "token most gives it on average. Choose a token here or in a figure to see where it comes from.</div>"
    )


def _button(row: dict[str, Any]) -> str:
    position = row["position"]
    return (
        f'<button type="button" class="token-button" data-token="{position}" aria-label="Show token {position}">'
        f"{position}</button>"
    )


def channels_of(session: Session, layer: int) -> ChannelReport:
    """Keys, values and queries of one layer of the prompt; only the last layer asked for is kept."""
    held = session.talk.reports.get("channels")
    if held is None or held.layer != layer:
        inputs = session.prompt_inputs()
        with model_lock(session.model):
            held = session.talk.reports["channels"] = record_channels(session.model, inputs, layer)
    return held


def channel_figure(report: ChannelReport, kind: str, stage: str, head: int) -> Any:
    """The heatmap of one head; a stage that values and queries do not have is shown without its scaling."""
    head = min(int(head), report.states(kind).shape[0] - 1)
    if stage == SIDE_BY_SIDE:
        return channel_stages(report, kind, head)
    known = report.stages(kind)
    return channel_heatmap(report, kind, stage if stage in known else known[STAGES.index(stage) % 2], head)


def build_norms(page: Page, tab: gr.Tab, num_layers: int, num_heads: int) -> None:
    """Lay out the tab inside the current context; it measures when it is opened after a new answer."""
    head = build_head(page, "norms", EMPTY)
    with gr.Column(visible=False) as body:
        with gr.Row(elem_classes="controls"):
            kind = gr.Radio(list(KINDS), value="Keys", label="Norms of", elem_id="norm-kind", min_width=220)
            layer = gr.Slider(
                0, max(num_layers - 1, 1), value=0, step=1, label="Layer", elem_id="norm-layer", min_width=220
            )
        heatmap = gr.Plot(label="Norm of every token, by layer", elem_id="norm-heatmap")
        with gr.Row():
            with gr.Column(scale=7, min_width=320):
                boxes = gr.Plot(label="Heads of the layer: median, quartiles, 5 and 95 %", elem_id="norm-boxes")
            with gr.Column(scale=5, min_width=300):
                imbalance = gr.Plot(label="Imbalance: mean and range of the heads", elem_id="norm-imbalance")
        with gr.Row():
            with gr.Column(scale=6, min_width=320):
                outliers = gr.HTML(
                    elem_id="norm-outliers", padding=False, js_on_load=click_script("norm-heatmap", "norm-channels")
                )
            with gr.Column(scale=6, min_width=320):
                token = gr.Number(0, precision=0, label="Token", elem_id="norm-token")
                place = gr.HTML(elem_id="norm-place", padding=False)
        with gr.Row(elem_classes="controls"):
            stage = gr.Radio(
                STAGE_CHOICES, value="raw", label="Channels, as the code sees them", elem_id="norm-stage", min_width=320
            )
            channel_head = gr.Slider(
                0, max(num_heads - 1, 1), value=0, step=1, label="Head", elem_id="norm-head", min_width=180
            )
        channels = gr.Plot(label="Magnitude by channel and token", elem_id="norm-channels")
        ranges = gr.Plot(label="Keys: range of a channel in a group, by head and stage", elem_id="norm-stages")

    def row_of(report: NormReport, value: float) -> int:
        return min(max(int(value), 0), len(report.layers) - 1)

    def at_layer_now(
        state: Session, report: NormReport, kind: str, row: int, stage: str, number: int, token: float
    ) -> tuple:
        report_of_layer = channels_of(state, report.layers[row])
        return (
            head_boxes(report, kind, row),
            norm_imbalance(report, kind, row),
            outliers_html(report, kind, row),
            shown(state, report, kind, row, token),
            channel_figure(report_of_layer, kind, stage, number),
            stage_boxes(report_of_layer),
        )

    def shown(state: Session, report: NormReport, kind: str, row: int, token: float | None) -> str:
        try:
            return token_html(state, report, kind, row, -1 if token is None else int(token))
        except KVMMError as error:
            return problem(error)

    def everything(state: Session | None, name: str, value: float, stage: str, number: int, token: float) -> tuple:
        nothing = (gr.skip(),) * 7
        if not has_prompt(state):
            return *head.empty(), gr.Column(visible=False), *nothing
        try:
            report, kind = state.measure_norms(), KINDS[name]
            detail = at_layer_now(state, report, kind, row_of(report, value), stage, number, token)
        except KVMMError as error:
            return *head.say(problem(error)), gr.Column(visible=False), *nothing
        return *head.say(summary_html(report, kind)), gr.Column(visible=True), norm_heatmap(report, kind), *detail

    def at_layer(state: Session | None, name: str, value: float, stage: str, number: int, token: float) -> tuple:
        if not has_prompt(state) or state.norms is None:
            return (gr.skip(),) * 6
        try:
            return at_layer_now(state, state.norms, KINDS[name], row_of(state.norms, value), stage, number, token)
        except KVMMError as error:
            gr.Warning(str(error), duration=6)
            return (gr.skip(),) * 6

    def at_stage(state: Session | None, name: str, value: float, stage: str, number: int) -> Any:
        if not has_prompt(state) or state.norms is None:
            return gr.skip()
        try:
            return channel_figure(
                channels_of(state, state.norms.layers[row_of(state.norms, value)]), KINDS[name], stage, number
            )
        except KVMMError as error:
            gr.Warning(str(error), duration=6)
            return gr.skip()

    def at_token(state: Session | None, name: str, value: float, token: float | None) -> Any:
        if not has_prompt(state) or state.norms is None:
            return gr.skip()
        return shown(state, state.norms, KINDS[name], row_of(state.norms, value), token)

    def chosen(event: gr.SelectData) -> Any:
        return int(event.index)

    inputs = [kind, layer, stage, channel_head, token]
    detail = [boxes, imbalance, outliers, place, channels, ranges]
    everywhere = [*head.outputs, body, heatmap, *detail]
    connect(page, tab, head, everything, inputs, everywhere, is_ready=lambda state, *_: state.norms is not None)
    state = page.session
    kind.input(everything, [state, *inputs], everywhere, show_progress="minimal", **ON_MODEL)
    following: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", **ON_MODEL}
    layer.change(at_layer, [state, *inputs], detail, **following)
    gr.on(
        [stage.input, channel_head.change], at_stage, [state, kind, layer, stage, channel_head], channels, **following
    )
    outliers.select(chosen, None, token, **AT_ONCE)
    token.change(at_token, [state, kind, layer, token], place, **following)


__all__ = ["build_norms", "outliers_html", "summary_html"]
