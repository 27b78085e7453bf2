"""Tab "Errors": what the sidebar's policy does to the keys, values and attention of the last prompt."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gradio as gr

from kvmm.analysis.errors import SCOPES, ErrorReport, measure_errors
from kvmm.analysis.errors.plots import channel_errors, mixed_errors, outlier_channels, token_errors
from kvmm.analysis.plots import MODALITY_COLORS
from kvmm.analysis.scores.measure import ScoreReport, measure_scores
from kvmm.analysis.scores.plots import attention_kl_parts, score_histogram
from kvmm.errors import KVMMError
from kvmm.models.conversation import model_lock
from kvmm.ui.chat.session import Session
from kvmm.ui.parts.events import DRAWING
from kvmm.ui.parts.sidebar import settings_of
from kvmm.ui.settings import Settings
from kvmm.ui.tabs.common import Earlier, Page, build_head, connect, has_prompt, hint, problem, table_html
from kvmm.ui.worked import worked_sample

MEANING = (
    "A relative error of 0.1 says that what is stored differs from the exact keys or values by a tenth of their "
    "squared size. Answers follow the attention: where its KL is small, the model looks at the same tokens as before."
)
MEASURED = "errors and attention under the sidebar's policy"
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
        side_errors = one.side(side)
        by_modality = side_errors.by_modality()
        if not by_modality:
            continue
        parts = " ".join(
            f'<span class="part"><span class="dot" style="background:{MODALITY_COLORS[m]}"></span>{m} '
            f"{values.mean():.4f}</span>"
            for m, values in by_modality.items()
        )
        scoped = [f"{side_errors.by_layer(scope).mean():.4f}" for scope in SCOPES]
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


def _layout(num_layers: int) -> dict[str, Any]:
    """Lay out the figures inside the current context; the components by name."""
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
    return dict(locals())


def draw(reports: Reports, layer: float, scope: str) -> tuple[Any, ...]:
    """The figures of one layer: curves and map of channels, tokens, scores, groups."""
    errors, scores = reports
    policy = errors.policies[0].policy
    row = min(max(int(layer), 0), len(errors.layers) - 1)
    return (
        outlier_channels(errors, policy, row),
        channel_errors(errors, policy, row, scope=scope),
        token_errors(errors, [policy], row),
        score_histogram(scores, policy, row),
        mixed_errors(errors, row),
    )


def build_errors(page: Page, tab: gr.Tab, num_layers: int) -> None:
    """Lay out the tab inside the current context; it measures when it is opened, and at the press of its button."""
    head, earlier = build_head(page, "errors", MEANING), Earlier()
    part = SimpleNamespace(**_layout(num_layers))

    def shown(state: Session | None) -> Reports:
        """The reports that the figures show: the conversation's last ones, else the worked sample's."""
        return earlier.of(state) or worked_sample().reports

    def all_of(reports: Reports, layer: float, scope: str) -> tuple[Any, ...]:
        return attention_kl_parts(reports[1], reports[1].policies[0].policy), *draw(reports, layer, scope)

    def at_once(state: Session | None, layer: float, scope: str, *values: Any) -> tuple[Any, ...]:
        settings = settings_of(*values)
        mine = state.talk.reports.get(_name(settings)) if has_prompt(state) else None
        if mine is not None:
            earlier.keep(state, mine)
            line = head.say(summary_html(mine, settings.label))
        else:
            sample = worked_sample().reports
            detail = summary_html(sample, sample[0].policies[0].policy)
            line = head.waits(state, MEASURED, earlier.of(state)) if has_prompt(state) else head.worked(state, detail)
        return *line, *all_of(shown(state), layer, scope)

    def measured(state: Session, layer: float, scope: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        settings = settings_of(*values)
        try:
            if _name(settings) in state.talk.reports:  # shown at once
                yield (gr.skip(),) * 8
                return
            reports = measure(state, settings)
        except KVMMError as error:
            yield *head.say(problem(error)), *(gr.skip(),) * 6
            return
        earlier.keep(state, reports)
        yield *head.say(summary_html(reports, settings.label)), *all_of(reports, layer, scope)

    def at_layer(state: Session | None, layer: float, scope: str) -> tuple[Any, ...]:
        return draw(shown(state), layer, scope)

    figures = [part.curves, part.heat, part.tokens, part.histogram, part.mixed]
    inputs = [part.layer, part.scope, *page.sidebar.inputs]
    outputs = [*head.outputs, part.divergence, *figures]
    sliders = [(part.layer, lambda of: of.num_hidden_layers)]
    connect(page, tab, head, at_once, measured, inputs, outputs, triggers=[part.again.click], sliders=sliders)
    gr.on(
        [part.layer.change, part.scope.input],
        at_layer,
        [page.session, part.layer, part.scope],
        figures,
        show_progress="hidden",
        trigger_mode="always_last",
        **DRAWING,
    )


__all__ = ["build_errors", "draw", "measure", "summary_html"]
