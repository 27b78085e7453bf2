"""The sidebar that all tabs share: model, cache policy, what differs by modality, and the comparison."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from kvmm.policy import get_policy, policies
from kvmm.ui.models import Models
from kvmm.ui.settings import MAX_EXACT_TOKENS, MODALITIES, Settings

BITS_PATH = Path(__file__).with_name("policy_bits.json")  # written by benchmarks/policy_bits.py
AS_POLICY = "as the policy"


@cache
def measured_bits() -> dict[str, Any]:
    """What ``benchmarks/policy_bits.py`` measured: ``document``, ``model``, ``tokens``, ``policies {name: {...}}``."""
    return json.loads(BITS_PATH.read_text(encoding="utf-8"))


def policy_choices() -> list[tuple[str, str]]:
    """(label, name) of every preset, the label with its measured bits a value."""
    bits = measured_bits()["policies"]
    labels = {name: f"{name} · {row['bits_per_value']:.2f} bits" for name, row in bits.items()}
    return [(labels.get(name, name), name) for name in policies()]


def policy_html(name: str) -> str:
    """The preset's line, and what it was measured to hold."""
    measured = measured_bits()
    found = measured["policies"].get(name)
    line = f'<div class="policy-line">{html.escape(policies()[name])}'
    if found:
        line += (
            f' <span class="measured">Measured on {html.escape(measured["document"])} with the embedded model: '
            f"{found['bits_per_value']:.2f} bits a value, {found['ratio']:.1f}× smaller than bf16.</span>"
        )
    return f"{line}</div>"


@dataclass(frozen=True)
class Sidebar:
    """The components, in the order of the fields of :class:`Settings`; pass ``inputs`` to an event ..."""

    model: gr.Dropdown
    policy: gr.Dropdown
    text: gr.Dropdown
    image: gr.Dropdown
    audio: gr.Dropdown
    num_sink_tokens: gr.Number
    residual_length: gr.Number
    compare: gr.Checkbox

    @property
    def inputs(self) -> list[Any]:
        """The components whose values :func:`settings_of` takes."""
        return list(vars(self).values())

    @property
    def policies(self) -> list[Any]:
        """Those that say what a cache stores."""
        return self.inputs[1:-1]

    def values(self, settings: Settings) -> list[Any]:
        """Values of ``policies`` for some settings."""
        modalities = [getattr(settings, name) or AS_POLICY for name in MODALITIES]
        return [settings.policy, *modalities, settings.num_sink_tokens, settings.residual_length]


def settings_of(*values: Any) -> Settings:
    """... and make the settings from the values that arrive."""
    model, policy, *modalities, sinks, residual, compare = values
    chosen = [None if value in (None, "", AS_POLICY) else value for value in modalities]
    counts = [None if value is None else int(value) for value in (sinks, residual)]
    return Settings(model, policy, *chosen, *counts, bool(compare))


def build_sidebar(models: Models, default_policy: str) -> Sidebar:
    """Lay out the sidebar inside the current Blocks and connect what belongs to it alone."""
    with gr.Sidebar(open=True, width=300, elem_id="sidebar"):
        model = gr.Dropdown(
            models.names,
            value=models.default,
            label="Model",
            elem_id="model",
            filterable=False,
            interactive=len(models.names) > 1,
        )
        policy = gr.Dropdown(
            policy_choices(), value=default_policy, label="Cache policy", elem_id="policy", filterable=False
        )
        line = gr.HTML(policy_html(default_policy), elem_id="policy-line", padding=False)
        compare = gr.Checkbox(False, label="Compare with full precision", elem_id="compare", container=False)
        with gr.Accordion("By modality", open=False, elem_id="by-modality"):
            choices = [(AS_POLICY, AS_POLICY), *policy_choices()]
            by_modality = [
                gr.Dropdown(
                    choices, value=AS_POLICY, label=label, elem_id=f"policy-{name}", filterable=False, container=True
                )
                for name, label in zip(MODALITIES, ("Text", "Images and video", "Audio"), strict=True)
            ]
        with gr.Accordion("Kept in full precision", open=False, elem_id="exact-tokens"):
            limits: dict[str, Any] = {"value": None, "precision": 0, "minimum": 0, "maximum": MAX_EXACT_TOKENS}
            sinks = gr.Number(label="First tokens (sinks)", elem_id="sinks", **limits)
            residual = gr.Number(label="Newest text tokens (residual)", elem_id="residual", **limits)

    def chosen(name: str) -> tuple[Any, ...]:
        if name not in policies():
            return (gr.skip(),) * 3
        preset = get_policy(name)
        return (
            policy_html(name),
            gr.Number(placeholder=f"{preset.num_sink_tokens}, {AS_POLICY}"),
            gr.Number(placeholder=f"{preset.residual_length}, {AS_POLICY}"),
        )

    preset = get_policy(default_policy)
    sinks.placeholder = f"{preset.num_sink_tokens}, {AS_POLICY}"
    residual.placeholder = f"{preset.residual_length}, {AS_POLICY}"
    policy.change(
        chosen, policy, [line, sinks, residual], api_visibility="private", show_progress="hidden", queue=False
    )
    return Sidebar(model, policy, *by_modality, sinks, residual, compare)


__all__ = ["Sidebar", "build_sidebar", "measured_bits", "settings_of"]
