"""Tab "Errors": what the sidebar's policy does to the keys, values and attention of the last prompt."""

from __future__ import annotations

from typing import Any

import gradio as gr

from kvmm.analysis.errors import SCOPES, ErrorReport, measure_errors
from kvmm.analysis.plots import MODALITY_COLORS
from kvmm.analysis.plots.errors import channel_errors, mixed_errors, outlier_channels, token_errors
from kvmm.analysis.plots.scores import attention_kl_parts, score_histogram
from kvmm.analysis.scores import ScoreReport, measure_scores
from kvmm.errors import KVMMError
from kvmm.models.conversation import model_lock
from kvmm.ui.prompts import Page, build_head, connect, has_prompt, hint, problem, table_html
from kvmm.ui.session import Session
from kvmm.ui.settings import Settings
from kvmm.ui.sidebar import settings_of

EMPTY = "Ask something first: this page measures what a policy changes in your last prompt."
SIDES = {"Keys": "key", "Values": "value"}
Reports = tuple[ErrorReport, ScoreReport]


def measure(session: Session, settings: Settings) -> Reports:
    """Errors and attention scores of the prompt under the settings' policy, kept until the next answer.

    Raises:
        KVMMError: nothing has been answered yet, or the model cannot have the policy.
    """

    def now() -> Reports:
        policy, inputs = settings.kv_policy(), session.prompt_inputs()
        with model_lock(session.model):
            return measure_errors(session.model, inputs, [policy]), measure_scores(session.model, inputs, [policy])

    return session.report(_name(settings), now)


def _name(settings: Settings) -> str:
    return f"errors of {settings.label}"


def summary_html(reports: Reports, label: str) -> str:
    """The policy's errors in a table: by side and modality, with and without outlier tokens, and the attention."""
    errors, scores = reports
    (one,), (attention,) = errors.policies, scores.policies
    stored = "" if one.stored_as == one.policy else f" (stored as {one.stored_as}: there is no calibration file)"
    rows = []
    for name, side in SIDES.items():
        found = one.side(side)
        by_modality = found.by_modality()
        if not by_modality:
            continue
        parts = " ".join(
            f'<span class="part"><span class="dot" style="background:{MODALITY_COLORS[m]}"></span>{m} '
            f"{values.mean():.4f}</span>"
            for m, values in by_modality.items()
        )
        scoped = [f"{found.by_layer(scope).mean():.4f}" for scope in SCOPES]
        rows.append((name, *scoped, parts))
    if not rows:
        return hint(f"{label}{stored}: nothing of this prompt is packed, so keys and values are exact.")
    columns = ("", "relative error", "outliers not counted", "packed without outliers", "by modality")
    worst = int(attention.kl.argmax())
    line = (
        f"{label}{stored}: squared error over squared size, mean over the layers. Attention moves by "
        f"{attention.kl.mean():.4f} nats on average, most in layer {scores.layers[worst]} ({attention.kl[worst]:.4f})."
    )
    return hint(line, "error-line") + table_html(columns, rows, "error-table")


def build_errors(page: Page, tab: gr.Tab, num_layers: int) -> None:
    """Lay out the tab inside the current context; it measures when it is opened, and at the press of its button."""
    head = build_head(page, "errors", EMPTY)
    with gr.Column(visible=False) as body:
        with gr.Row(elem_classes="actions"):
            again = gr.Button("Measure the sidebar's policy", elem_id="error-again", size="sm", min_width=180)
        with gr.Row(elem_classes="controls"):
            layer = gr.Slider(
                0, max(num_layers - 1, 1), value=0, step=1, label="Layer", elem_id="error-layer", scale=3, min_width=200
            )
            scope = gr.Radio(
                [("All tokens", "all"), ("Outliers not counted", "rest"), ("Packed without outliers", "refit")],
                value="all",
                label="Tokens in the map of channels",
                elem_id="error-scope",
                scale=7,
                min_width=300,
            )
        with gr.Row():
            with gr.Column(scale=6, min_width=320):
                curves = gr.Plot(label="Keys: error of each channel, with and without outliers", elem_id="error-curves")
            with gr.Column(scale=6, min_width=320):
                heat = gr.Plot(label="Keys: error by head and channel", elem_id="error-channels")
        tokens = gr.Plot(label="Values: error of each token", elem_id="error-tokens")
        with gr.Row():
            with gr.Column(scale=6, min_width=320):
                histogram = gr.Plot(label="Attention scores of the layer", elem_id="error-scores")
            with gr.Column(scale=6, min_width=320):
                divergence = gr.Plot(label="KL of the attention, by layer", elem_id="error-kl")
        mixed = gr.Plot(label="Groups of one modality, or of several", elem_id="error-mixed")

    def at_layer_now(reports: Reports, value: float, scope: str) -> tuple[Any, ...]:
        errors, scores = reports
        policy = errors.policies[0].policy
        row = min(max(int(value), 0), len(errors.layers) - 1)
        return (
            outlier_channels(errors, policy, row),
            channel_errors(errors, policy, row, scope=scope),
            token_errors(errors, [policy], row),
            score_histogram(scores, policy, row),
            mixed_errors(errors, row),
        )

    def refresh(state: Session | None, value: float, scope: str, *values: Any) -> tuple[Any, ...]:
        nothing = (gr.skip(),) * 6
        if not has_prompt(state):
            return *head.empty(), gr.Column(visible=False), *nothing
        settings = settings_of(*values)
        try:
            reports = measure(state, settings)
        except KVMMError as error:
            return *head.say(problem(error)), gr.Column(visible=False), *nothing
        state.talk.reports["errors"] = reports  # those that the figures show
        figures = at_layer_now(reports, value, scope)
        kl = attention_kl_parts(reports[1], reports[1].policies[0].policy)
        return *head.say(summary_html(reports, settings.label)), gr.Column(visible=True), kl, *figures

    def is_ready(state: Session, value: float, scope: str, *values: Any) -> bool:
        return _name(settings_of(*values)) in state.talk.reports

    def at_layer(state: Session | None, value: float, scope: str) -> tuple[Any, ...]:
        reports = state.talk.reports.get("errors") if has_prompt(state) else None
        return (gr.skip(),) * 5 if reports is None else at_layer_now(reports, value, scope)

    figures = [curves, heat, tokens, histogram, mixed]
    inputs = [layer, scope, *page.sidebar.inputs]
    outputs = [*head.outputs, body, divergence, *figures]
    connect(page, tab, head, refresh, inputs, outputs, is_ready=is_ready, triggers=[again.click])
    gr.on(
        [layer.change, scope.input],
        at_layer,
        [page.session, layer, scope],
        figures,
        api_visibility="private",
        show_progress="hidden",
        trigger_mode="always_last",
        concurrency_id="figures",
        concurrency_limit=2,
    )


__all__ = ["build_errors", "measure", "summary_html"]
