"""Tab "Token norms": how uneven the keys, values and queries of the last prompt are, and which tokens make them so."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gradio as gr

from kvmm.analysis import NormReport
from kvmm.analysis.norms.channels import STAGES, ChannelReport, record_channels
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
from kvmm.ui.chat.session import Session
from kvmm.ui.parts.events import AT_ONCE, DRAWING, ON_MODEL
from kvmm.ui.parts.toasts import warn
from kvmm.ui.parts.token_view import click_script, token_html
from kvmm.ui.tabs.common import Earlier, Page, build_head, connect, has_prompt, problem, table_html
from kvmm.ui.worked import worked_sample

KINDS = {"Keys": "key", "Values": "value", "Queries": "query"}
SIDE_BY_SIDE = "all side by side"
MEANING = (
    "A column is a token, a row a layer, and bright cells are large vectors. Tokens whose key norm is far from that of "
    "their neighbours stretch the scale they share, and low-bit codes lose precision there."
)
MEASURED = "the norms of keys, values and queries in every layer"
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
    channels = session.talk.reports.get("channels")
    if channels is None or channels.layer != layer:
        inputs = session.prompt_inputs()
        with model_lock(session.model):
            channels = session.talk.reports["channels"] = record_channels(session.model, inputs, layer)
    return channels


def channel_figure(report: ChannelReport, kind: str, stage: str, head: int) -> Any:
    """The heatmap of one head; a stage that values and queries do not have is shown without its scaling."""
    head = min(int(head), report.states(kind).shape[0] - 1)
    if stage == SIDE_BY_SIDE:
        return channel_stages(report, kind, head)
    stages = report.stages(kind)
    return channel_heatmap(report, kind, stage if stage in stages else stages[STAGES.index(stage) % 2], head)


@dataclass(frozen=True)
class Subject:
    """The subject of the tab: a report, and the session of its tokens.

    ``is_own`` says that it is of the visitor's prompt as it is now, so that more of it can be measured.
    """

    report: NormReport
    session: Any
    is_own: bool

    def row(self, layer: float) -> int:
        """The report's row for the slider's layer."""
        return min(max(int(layer), 0), len(self.report.layers) - 1)

    def draw(self, name: str, layer: float, token: float | None) -> tuple[Any, ...]:
        """Heatmap, boxes, imbalance, outlier tokens and the chosen token of ``name`` (a key of ``KINDS``)."""
        kind, row = KINDS[name], self.row(layer)
        return (
            norm_heatmap(self.report, kind),
            head_boxes(self.report, kind, row),
            norm_imbalance(self.report, kind, row),
            outliers_html(self.report, kind, row),
            self.place(name, layer, token),
        )

    def place(self, name: str, layer: float, token: float | None) -> str:
        """Where the chosen token is from."""
        try:
            position = -1 if token is None else int(token)
            return token_html(self.session, self.report, KINDS[name], self.row(layer), position)
        except KVMMError as error:
            return problem(error)


def _layout(num_layers: int, num_heads: int) -> dict[str, Any]:
    """Lay out the figures inside the current context; the components by name."""
    with gr.Row(elem_classes="controls"):
        kind = gr.Radio(list(KINDS), value="Keys", label="Norms of", elem_id="norm-kind", min_width=220)
        layer = gr.Slider(
            0, max(num_layers - 1, 1), value=0, step=1, label="Layer", elem_id="norm-layer", min_width=220
        )
    heatmap = gr.Plot(label="L2 norm of every token, by layer", elem_id="norm-heatmap")
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
    with gr.Column(visible=False) as by_channel:
        with gr.Row(elem_classes="controls"):
            stage = gr.Radio(
                STAGE_CHOICES, value="raw", label="Channels, as the code sees them", elem_id="norm-stage", min_width=320
            )
            head = gr.Slider(
                0, max(num_heads - 1, 1), value=0, step=1, label="Head", elem_id="norm-head", min_width=180
            )
        channels = gr.Plot(label="Magnitude by channel and token", elem_id="norm-channels")
        ranges = gr.Plot(label="Keys: range of a channel in a group, by head and stage", elem_id="norm-stages")
    return dict(locals())


def build_norms(page: Page, tab: gr.Tab, num_layers: int, num_heads: int) -> None:
    """Lay out the tab inside the current context; it measures when it is opened after a new answer."""
    top, earlier = build_head(page, "norms", MEANING), Earlier()
    part = SimpleNamespace(**_layout(num_layers, num_heads))

    def subject(state: Session | None) -> Subject:
        if has_prompt(state) and state.norms is not None:
            return Subject(state.norms, state, True)
        if (earlier_report := earlier.of(state)) is not None:
            return Subject(earlier_report, state, False)
        sample = worked_sample()
        return Subject(sample.norms, sample.session, False)

    def by_channel(state: Session, name: str, layer: float, stage: str, number: int) -> tuple[Any, Any]:
        report = channels_of(state, state.norms.layers[subject(state).row(layer)])
        return channel_figure(report, KINDS[name], stage, number), stage_boxes(report)

    def at_once(state: Session | None, name: str, layer: float, stage: str, number: int, token: float) -> tuple:
        shown_subject = subject(state)
        if shown_subject.is_own:
            line = top.say(summary_html(shown_subject.report, KINDS[name]))
        else:
            line = top.waits(state, MEASURED, earlier.of(state)) if has_prompt(state) else top.worked(state)
        shown = gr.skip() if shown_subject.is_own else gr.Column(visible=False)
        return *line, *shown_subject.draw(name, layer, token), shown, gr.skip(), gr.skip()

    def measure(state: Session, name: str, layer: float, stage: str, number: int, token: float) -> Iterator[tuple]:
        nothing = (gr.skip(),) * 7
        try:
            if state.norms is None:
                earlier.keep(state, state.measure_norms())
                shown_subject = subject(state)
                line = top.say(summary_html(shown_subject.report, KINDS[name]))
                yield *line, *shown_subject.draw(name, layer, token), *nothing[:3]
            figures = by_channel(state, name, layer, stage, number)
            yield *nothing[:2], *nothing[:5], gr.Column(visible=True), *figures
        except KVMMError as error:
            yield *top.say(problem(error)), *nothing, gr.Column(visible=False)

    def redraw(state: Session | None, name: str, layer: float, token: float) -> tuple:
        shown_subject = subject(state)
        line = top.say(summary_html(shown_subject.report, KINDS[name]))[0] if shown_subject.is_own else gr.skip()
        return line, *shown_subject.draw(name, layer, token)

    def channels(state: Session | None, name: str, layer: float, stage: str, number: int) -> tuple:
        if not has_prompt(state) or state.norms is None:
            return gr.skip(), gr.skip()
        try:
            return by_channel(state, name, layer, stage, number)
        except KVMMError as error:
            warn(error)
            return gr.skip(), gr.skip()

    def at_token(state: Session | None, name: str, layer: float, token: float | None) -> str:
        return subject(state).place(name, layer, token)

    def chosen(event: gr.SelectData) -> Any:
        return int(event.index)

    inputs = [part.kind, part.layer, part.stage, part.head, part.token]
    figures = [part.heatmap, part.boxes, part.imbalance, part.outliers, part.place]
    outputs = [*top.outputs, *figures, part.by_channel, part.channels, part.ranges]
    sliders = [(part.layer, lambda of: of.num_hidden_layers), (part.head, lambda of: of.num_key_value_heads)]
    connect(page, tab, top, at_once, measure, inputs, outputs, sliders=sliders)
    state = page.session
    following: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last"}
    changed = [part.kind.input, part.layer.change]
    gr.on(changed, redraw, [state, part.kind, part.layer, part.token], [top.message, *figures], **DRAWING, **following)
    gr.on(
        [*changed, part.stage.input, part.head.change],
        channels,
        [state, part.kind, part.layer, part.stage, part.head],
        [part.channels, part.ranges],
        **ON_MODEL,
        **following,
    )
    part.outliers.select(chosen, None, part.token, **AT_ONCE)
    part.token.change(at_token, [state, part.kind, part.layer, part.token], part.place, **DRAWING, **following)


__all__ = ["Subject", "build_norms", "outliers_html", "summary_html"]
