"""The sidebar that all tabs share: model, cache policy, what differs by modality, and the comparison."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvmm.memory_text import ratio_text
from kvmm.models.loading import TINY_MODEL
from kvmm.models.sampling import MAX_STOP, MAX_TEMPERATURE
from kvmm.policy import get_policy, policies
from kvmm.policy.costs import SHORT_LEGEND, answers_table, bits_table, measured_on, plain_cost, short_cost
from kvmm.policy.presets import policy_groups
from kvmm.ui.models import Models
from kvmm.ui.parts.events import AT_ONCE
from kvmm.ui.parts.model_notes import NOT_MEASURED, has_policy_figures, model_html
from kvmm.ui.settings import MAX_EXACT_TOKENS, MODALITIES, Settings

AS_POLICY = "as the policy"
_BEFORE_SAMPLING, _SAMPLING = 8, 6  # components of the sidebar
REMOTE = (
    "A server answers: its cache policy is set there, and what looks into a model (comparison, token norms, errors, "
    "methods, evaluation) or keeps its cache in a file needs the app without --endpoint."
)
EXACT_TOKENS = ("num_sink_tokens", "residual_length")


def policy_choices(model: str | None = TINY_MODEL) -> list[tuple[str, str]]:
    """(label, name) of every preset in the order of its tier, the label with its cost where that is shown."""
    return [(policy_label(name, model), name) for group in policy_groups() for name in group.names]


def policy_label(name: str, model: str | None = TINY_MODEL) -> str:
    """A preset in a list: "kivi2 · 3.2 / 3.4 · 96 %"; its name alone with models that nothing was measured of."""
    return " · ".join(filter(None, (name, short_cost(name)))) if has_policy_figures(model) else name


def policy_legend(model: str | None = TINY_MODEL) -> str:
    """What the labels of :func:`policy_choices` have behind the names; empty where they have nothing."""
    if not has_policy_figures(model):
        return ""
    measured = answers_table()["model"]
    return SHORT_LEGEND if model == measured else f"{SHORT_LEGEND}, with {measured}"


def policy_headings_css() -> str:
    """Rules that put headings into the lists of presets: the tier before its first one, the paper before its first."""
    rules, tier = [], ""
    for group in policy_groups():
        name = group.names[0]
        option = f'#sidebar [role="option"]:is([aria-label^="{name} · "], [aria-label="{name}"])'
        new, height = group.tier != tier, 0
        if group.source:
            height += 22
            rules.append(f'{option}::after {{ content: "{_css_text(group.source)}"; top: -{height}px; }}')
        if new:
            height += 24
            rules.append(f'{option}::before {{ content: "{_css_text(group.tier)}"; top: -{height}px; }}')
        if tier:
            rules.append(f"{option} {{ margin-top: {height + 2}px; }}")
        else:  # an opened list is scrolled to the chosen option, and a margin above the first one would be out of sight
            rules.append(f"{option} {{ padding-top: {height + 6}px; }}\n{option}::before {{ top: 4px; }}")
        tier = group.tier
    return "\n".join(rules)


def _css_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def policy_html(name: str, model: str | None = TINY_MODEL) -> str:
    """The preset's line, its plain cost with a model, and what that was measured on."""
    line = f'<div class="policy-line">{html.escape(policies()[name])}'
    if not has_policy_figures(model):
        line += f' <span class="measured">Bits and right answers kept: {NOT_MEASURED}.</span>'
    elif cost := plain_cost(name):
        ratio = bits_table()["policies"].get(name, {}).get("ratio", 0)
        smaller = f" {ratio_text(ratio)} smaller than bf16." if ratio > 1.05 else ""
        line += f' <span class="measured">{html.escape(cost)}.{smaller}</span>'
        line += f" <small>{html.escape(measured_on())}</small>"
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
    temperature: gr.Slider
    top_p: gr.Slider
    seed: gr.Textbox
    stop: gr.Textbox
    max_tokens: gr.Number
    logprobs: gr.Checkbox
    counted: gr.State  # the policy of the shown numbers of exact tokens

    @property
    def model_names(self) -> list[str]:
        """The models that can be chosen."""
        return [name for _, name in self.model.choices]

    @property
    def inputs(self) -> list[Any]:
        """The components that :func:`settings_of` takes values of."""
        return list(vars(self).values())[:-1]

    @property
    def policies(self) -> list[Any]:
        """The components that determine the contents of a cache."""
        return [*self.inputs[1 : _BEFORE_SAMPLING - 1], self.counted]

    @property
    def kept(self) -> list[Any]:
        """The components that a reloaded page and an opened conversation set: ``policies`` and the sampling."""
        return [*self.policies, *self.inputs[_BEFORE_SAMPLING:]]

    def values(self, settings: Settings) -> list[Any]:
        """Values of ``kept`` for some settings."""
        modalities = [getattr(settings, name) or AS_POLICY for name in MODALITIES]
        counts = [
            kept if (chosen := getattr(settings, name)) is None else chosen
            for name, kept in zip(EXACT_TOKENS, exact_tokens(settings.policy), strict=True)
        ]
        seed = "" if settings.seed is None else str(settings.seed)
        sampling = settings.temperature, settings.top_p, seed, stop_lines(settings.stop)
        told = settings.max_tokens or self.max_tokens.value, settings.logprobs
        return [settings.policy, *modalities, *counts, settings.policy, *sampling, *told]


def exact_tokens(policy: str) -> tuple[int, int]:
    """How many first and newest tokens a preset keeps in full precision."""
    preset = get_policy(policy)
    return preset.num_sink_tokens, preset.residual_length


def settings_of(*values: Any) -> Settings:
    """... and make the settings from their values; values equal to the policy's own are left out.

    ``values`` without those of the last components, which are for sampling, are of a greedy answer.
    """
    model, policy, *modalities, sinks, residual, compare = values[:_BEFORE_SAMPLING]
    given = values[_BEFORE_SAMPLING:]
    temperature, top_p, seed, stop, most, logprobs = (*given, *(None,) * (_SAMPLING - len(given)))
    chosen = [None if value in (None, "", AS_POLICY) else value for value in modalities]
    counts = [None if value is None else int(value) for value in (sinks, residual)]
    if policy in policies():
        policy_counts = exact_tokens(policy)
        counts = [None if count == kept else count for count, kept in zip(counts, policy_counts, strict=True)]
    sampling = (0.0 if temperature is None else temperature), (1.0 if top_p is None else top_p)
    stops, most = stop_texts(stop or ""), None if most is None else int(most)
    told = most, bool(logprobs)
    return Settings(model, policy, *chosen, *counts, bool(compare), *sampling, _seed_of(seed), stops, *told)


def _seed_of(value: str | float | None) -> Any:
    """The seed in a field, None if it is empty; what is no number stays, and :class:`Sampling` refuses it."""
    with contextlib.suppress(ValueError, OverflowError):
        return int(value) if value is not None and str(value).strip() else None
    return value


def stop_texts(lines: str) -> tuple[str, ...]:
    r"""The texts of a field that holds one a line, where ``\n`` is a line break; empty lines are left out."""
    return tuple(line.strip().replace(r"\n", "\n") for line in lines.splitlines() if line.strip())


def stop_lines(texts: Sequence[str]) -> str:
    """The field that :func:`stop_texts` reads."""
    return "\n".join(text.replace("\n", r"\n") for text in texts)


def followed(policy: str, shown_for: str, *counts: float | None) -> tuple[int, ...]:
    """The numbers of exact tokens after a change of policy: the new policy's, but what the visitor typed stays.

    Args:
        policy, shown_for: the preset that is chosen now, and the preset of the shown numbers.
        counts: first and newest tokens as they are in the fields; None for an empty field.
    """
    before, after = exact_tokens(shown_for), exact_tokens(policy)
    return tuple(
        new if count is None or count == old else int(count)
        for count, old, new in zip(counts, before, after, strict=True)
    )


def build_sidebar(models: Models, default_policy: str, max_new_tokens: int = 256) -> Sidebar:
    """Lay out the sidebar inside the current Blocks and connect what belongs to it alone.

    Of models behind a server, whose caches are not the app's, it has the name and the sampling. ``max_new_tokens``: as
    many as an answer may have.
    """
    here = models.remote is None
    with gr.Sidebar(open=True, width=300, elem_id="sidebar"):
        model = gr.Dropdown(
            models.names,
            value=models.default,
            label="Model",
            elem_id="model",
            filterable=False,
            interactive=len(models.names) > 1,
        )
        known = gr.HTML(model_html(models.default, remote=not here), elem_id="model-line", padding=False)
        policy = gr.Dropdown(
            policy_choices(models.default),
            value=default_policy,
            label="Cache policy",
            info=policy_legend(models.default),
            elem_id="policy",
            filterable=False,
            visible=here,
        )
        line = gr.HTML(policy_html(default_policy, models.default), elem_id="policy-line", padding=False, visible=here)
        compare = gr.Checkbox(
            False, label="Compare with full precision", elem_id="compare", container=False, visible=here
        )
        if not here:
            gr.HTML(f'<div class="hint" id="endpoint-hint">{html.escape(REMOTE)}</div>', padding=False)
        with gr.Accordion("By modality", open=False, elem_id="by-modality", visible=here):
            choices = [(AS_POLICY, AS_POLICY), *policy_choices(models.default)]
            by_modality = [
                gr.Dropdown(
                    choices, value=AS_POLICY, label=label, elem_id=f"policy-{name}", filterable=False, container=True
                )
                for name, label in zip(MODALITIES, ("Text", "Images and video", "Audio"), strict=True)
            ]
        with gr.Accordion("Kept in full precision", open=False, elem_id="exact-tokens", visible=here):
            limits: dict[str, Any] = {"precision": 0, "minimum": 0, "maximum": MAX_EXACT_TOKENS}
            kept = exact_tokens(default_policy)
            sinks = gr.Number(kept[0], label="First tokens (sinks)", elem_id="sinks", **limits)
            residual = gr.Number(kept[1], label="Newest text tokens (residual)", elem_id="residual", **limits)
        sampling = _lay_out_sampling(max_new_tokens)
        counted = gr.State(default_policy)

    def chosen(name: str, model_name: str, shown_for: str, *counts: float | None) -> tuple[Any, ...]:
        if name not in policies():
            return (gr.skip(),) * 4
        return policy_html(name, model_name), *followed(name, shown_for, *counts), name

    policy.change(chosen, [policy, model, counted, sinks, residual], [line, sinks, residual, counted], **AT_ONCE)

    def of_model(model_name: str, name: str) -> tuple[Any, ...]:
        """What is said of the chosen model, and the lists of presets with what was measured with it."""
        labels = policy_choices(model_name)
        by_kind = (gr.Dropdown([(AS_POLICY, AS_POLICY), *labels]),) * len(MODALITIES)
        told = policy_html(name, model_name) if name in policies() else gr.skip()
        return (
            model_html(model_name, remote=not here),
            gr.Dropdown(labels, info=policy_legend(model_name)),
            told,
            *by_kind,
        )

    model.change(of_model, [model, policy], [known, policy, line, *by_modality], **AT_ONCE)
    return Sidebar(model, policy, *by_modality, sinks, residual, compare, *sampling, counted)


def _lay_out_sampling(max_new_tokens: int) -> tuple[Any, ...]:
    """The components for how the tokens of an answer are chosen, and how many, and whether they are told."""
    with gr.Accordion("Sampling", open=False, elem_id="sampling"):
        temperature = gr.Slider(
            0, MAX_TEMPERATURE, 0, step=0.05, label="Temperature (0: the most likely token)", elem_id="temperature"
        )
        top_p = gr.Slider(0.05, 1, 1, step=0.05, label="Top p", elem_id="top-p")
        # a text, since a browser shows and sends 0 for a number that is empty
        seed = gr.Textbox(label="Seed (empty: another one each time)", max_lines=1, elem_id="seed")
        stop = gr.Textbox(
            label="Stop texts",
            info=rf"One a line, at most {MAX_STOP}; \n is a line break. The answer ends before them.",
            lines=2,
            max_lines=MAX_STOP,
            elem_id="stop-texts",
        )
        most = gr.Number(
            max_new_tokens,
            label="Max. tokens",
            info=f"Of an answer, at most {max_new_tokens:,}.",
            precision=0,
            elem_id="max-tokens",
        )
        logprobs = gr.Checkbox(
            False,
            label="Log-probabilities",
            info="Shows the answer's tokens with their probability.",
            elem_id="logprobs",
        )
    return temperature, top_p, seed, stop, most, logprobs


__all__ = [
    "Sidebar",
    "build_sidebar",
    "policy_headings_css",
    "policy_label",
    "settings_of",
    "stop_lines",
    "stop_texts",
]
