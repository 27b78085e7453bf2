"""Tab "Planner": the size of a cache by policy and the longest context of a budget, as ``kvmm plan`` finds them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from kvmm.analysis.cost.context_plot import plan_contexts
from kvmm.analysis.cost.plan import PLAN_POLICIES, PlanReport, count_tokens, make_plan
from kvmm.analysis.cost.plots import cost_components
from kvmm.analysis.cost.shapes import SHAPES, ModelShape, find_shape, shape_of
from kvmm.calibration import Calibration
from kvmm.errors import KVMMError, unknown_name
from kvmm.policy import get_policy, policies
from kvmm.policy.calibrated import load_calibration
from kvmm.ui.models import Models

FIRST_MODEL = "Qwen2.5-VL-7B-Instruct"
AUDIO_TOKENS_A_SECOND = 25  # Qwen2.5-Omni's audio tower
MAX_BATCH = 4096


def plan_of(
    shape: ModelShape,
    calibration: Calibration | None,
    names: Sequence[str],
    context: float | None,
    images: float | None,
    image_tokens: float | None,
    audio_seconds: float | None,
    batch: float | None,
    budget_gib: float | None,
    cache_only: bool = False,
) -> tuple[PlanReport, list[str]]:
    """The plan of what the page's inputs hold, and a line for each policy that the shape cannot have.

    Raises:
        KVMMError: an input is missing or out of range, or no policy is left.
    """
    if not names:
        raise KVMMError("Choose one policy or more.")
    if unknown := [name for name in names if name not in policies()]:
        raise unknown_name("policy", unknown[0], policies())
    context = _whole(context, "Context", 1)
    media = {
        "image": _whole(images, "Images", 0) * _whole(image_tokens, "Tokens an image", 1),
        "audio": _whole(audio_seconds, "Seconds of audio", 0) * AUDIO_TOKENS_A_SECOND,
    }
    tokens = count_tokens(context, media)
    batch = _whole(batch, "Batch", 1)
    if batch > MAX_BATCH:
        raise KVMMError(f"Batch can be {MAX_BATCH} at most.")
    if budget_gib is not None and not 0 < budget_gib < 2**20:
        raise KVMMError("Budget must be more than 0 GiB, or empty.")
    budget = None if budget_gib is None else max(1, int(budget_gib * 2**30))
    rows, refused, report = [], [], None
    for name in names:
        try:
            report = make_plan(
                shape, [name], tokens, batch=batch, budget=budget, cache_only=cache_only, calibration=calibration
            )
        except KVMMError as error:
            refused.append(str(error))
            continue
        rows += report.rows
    if report is None:
        raise KVMMError(refused[0])
    return replace(report, rows=tuple(rows)), refused


def _whole(value: float | None, name: str, least: int) -> int:
    if value is None or value != int(value) or not least <= value <= 2**40:
        raise KVMMError(f"{name} must be a whole number from {least}.")
    return int(value)


def plan_html(report: PlanReport, refused: Sequence[str] = ()) -> str:
    """The table."""
    shape = report.shape
    layers = f"{shape.num_layers} layers"
    if shape.num_sliding_layers:
        layers += f" and {shape.num_sliding_layers} with a window of {shape.sliding_window:,} tokens"
    counts = ", ".join(f"{count:,} {name}" for name, count in report.tokens.items() if count)
    sequences = "" if report.batch == 1 else f", {report.batch:,} sequences"
    lines = "".join(f'<div class="hint">⚠️ {html.escape(line)}</div>' for line in refused)
    lines += "".join(f'<div class="hint plan-note">{html.escape(line)}</div>' for line in report.notes)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in report.cells(row)) + "</tr>" for row in report.rows
    )
    head = "".join(f"<th>{html.escape(column)}</th>" for column in report.columns)
    return (
        f'<div class="hint" id="plan-shape"><b>{html.escape(shape.name)}</b>: {layers}, {shape.num_key_value_heads} KV '
        f"heads of {shape.head_dim}. {counts} tokens{sequences}.</div>"
        f'<div class="table-scroll"><table class="outliers" id="plan-table"><thead><tr>{head}'
        f"</tr></thead><tbody>{body}</tbody></table></div>"
        f"{lines}"
    )


def command_of(report: PlanReport, model: str, media: tuple[int, int, int]) -> str:
    """The same on the command line; ``media`` are images, tokens per image and audio tokens."""
    images, image_tokens, audio_tokens = media
    parts = ["python -m kvmm plan", f"--model {model}", f"--context {sum(report.tokens.values())}"]
    parts += [f"--images {images} --image-tokens {image_tokens}"] if images else []
    parts += [f"--audio-tokens {audio_tokens}"] if audio_tokens else []
    parts += [f"--batch {report.batch}"] if report.batch > 1 else []
    parts += [] if report.budget is None else [f"--budget {report.budget / 2**30:.10g}GiB"]
    parts += ["--cache-only"] if report.budget is not None and not report.weights else []
    names = tuple(row.cost.policy for row in report.rows)
    parts += [] if names == PLAN_POLICIES else [f"--policy {name}" for name in names]
    return " ".join(parts)


def build_planner(models: Models, tab: gr.Tab) -> None:
    """Lay out the tab inside the current context; it computes when it is opened and whenever an input changes."""
    planner = _Planner(models)
    with gr.Row(equal_height=False, elem_id="planner"):
        with gr.Column(scale=4, min_width=280):
            inputs = _lay_out_inputs(list(planner.own))
        with gr.Column(scale=8, min_width=320):
            table = gr.HTML('<div class="hint">…</div>', elem_id="plan", padding=False)
            sizes = gr.Plot(label="Size of the cache", elem_id="plan-bytes")
            contexts = gr.Plot(label="Longest context in the budget", elem_id="plan-contexts")
            command = gr.Code(label="The same on the command line", language="shell", elem_id="plan-command", lines=1)
    gr.on(
        [tab.select, *(component.change for component in inputs)],
        planner.update,
        inputs,
        [table, sizes, contexts, command],
        api_visibility="private",
        show_progress="hidden",
        trigger_mode="always_last",
        concurrency_id="planner",
        concurrency_limit=2,
    )


def _lay_out_inputs(own: Sequence[str]) -> list[Any]:
    """Lay out the inputs: the model (``own`` are the app's), the policies and the numbers, in the order of
    :meth:`_Planner.update`."""
    model = gr.Dropdown([*own, *SHAPES], value=FIRST_MODEL, label="Model", elem_id="plan-model")
    with gr.Row():
        context = gr.Number(
            32768,
            precision=0,
            step=4096,
            label="Context, tokens",
            min_width=120,
            elem_id="plan-context",
        )
        batch = gr.Number(1, precision=0, label="Batch", min_width=90, elem_id="plan-batch")
    with gr.Row():
        images = gr.Number(8, precision=0, label="Images", min_width=90, elem_id="plan-images")
        image_tokens = gr.Number(1024, precision=0, label="Tokens an image", min_width=120, elem_id="plan-image-tokens")
    with gr.Row():
        audio = gr.Number(0, precision=0, label="Audio, seconds", min_width=120, elem_id="plan-audio")
        budget = gr.Number(24, label="Memory, GiB", min_width=90, elem_id="plan-budget")
    cache_only = gr.Checkbox(
        False, label="All of it is for the cache (weights are elsewhere)", elem_id="plan-cache-only"
    )
    names = gr.Dropdown(
        list(policies()),
        value=list(PLAN_POLICIES),
        multiselect=True,
        label="Policies",
        elem_id="plan-policies",
    )
    gr.HTML(
        '<div class="hint">Images and audio are part of the context; a second of audio is '
        f"{AUDIO_TOKENS_A_SECOND} tokens. No weights are loaded and no GPU is needed.</div>",
        padding=False,
    )
    return [model, names, context, images, image_tokens, audio, batch, budget, cache_only]


class _Planner:
    """Plans for the models of the table and for the app's own.

    Args:
        models: what the sidebar offers; those of the app itself can be planned for by the names of ``own``.
    """

    def __init__(self, models: Models) -> None:
        self.models = models
        self.own = {} if models.remote else {f"This app's: {name}": name for name in models.names}
        self._found: dict[str, tuple[ModelShape, Calibration | None]] = {}

    def _loaded(self, name: str) -> tuple[ModelShape, Calibration | None]:
        """Shape and calibration of one of the app's models."""
        if name not in self._found:
            model, _ = self.models.get(name)
            calibration = load_calibration(model, get_policy("balanced"))
            parameters = sum(p.numel() for p in model.parameters())
            self._found[name] = replace(shape_of(model.config, name), parameters=parameters), calibration
        return self._found[name]

    def shape_and_calibration(self, name: str) -> tuple[ModelShape, Calibration | None]:
        """Raises ``KVMMError`` for a name that is not in the list."""
        if name in self.own:
            return self._loaded(self.own[name])
        if name not in SHAPES:
            raise KVMMError("Choose one of the models in the list.")
        return find_shape(name), None

    def update(self, model: str, names: list[str], *numbers: float | None) -> tuple[Any, ...]:
        """The table, the two figures and the command for what the inputs hold."""
        try:
            report, refused = plan_of(*self.shape_and_calibration(model), names, *numbers)
        except KVMMError as error:
            return f'<div class="hint" id="plan-error">⚠️ {html.escape(str(error))}</div>', *(gr.skip(),) * 3
        longest = gr.Plot(visible=False)
        if report.budget is not None:
            longest = gr.Plot(plan_contexts(report), visible=True)
        media = int(numbers[1]), int(numbers[2]), report.tokens["audio"]
        line = "" if model in self.own else command_of(report, model, media)
        return plan_html(report, refused), cost_components(report), longest, gr.Code(line, visible=bool(line))


__all__ = ["build_planner", "command_of", "plan_html", "plan_of"]
