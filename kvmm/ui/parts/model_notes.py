"""What the app says of a model: what may be asked of it, and what was measured of it."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from kvmm.models.confidence import FILE_NAME
from kvmm.models.loading import (
    EMBEDDED_MODELS,
    OFFICE_MODEL,
    TINY_MODEL,
    assets_folder,
    cpu_multiplies_bfloat16,
)

FIGURES_PATH = Path(__file__).parents[1] / "model_figures.json"  # written by benchmarks/model_figures.py
NOT_MEASURED = "not measured for this model"
_SCOPES = {
    OFFICE_MODEL: (
        "office-omni is small. It is for letters, minutes, receipts, forms, timetables, notices and voice memos "
        "of up to 30 seconds, and gets one answer in four wrong. For summaries, charts or videos, start the app with a "
        "larger model."
    ),
    TINY_MODEL: (
        "tiny-omni is the smallest model: it finds values, names, dates and cells of tables on up to eight printed "
        "pages, and in 30 seconds of speech, and nothing in prose, charts, handwriting, photographs or videos."
    ),
    "SmolLM2-135M-Instruct": (
        "SmolLM2 reads text: your question, and the text layer of a PDF. It sees no pictures or scans and hears no "
        "recordings."
    ),
}
_BETTER = f" For letters, receipts and notices as people have them choose {OFFICE_MODEL} under Model; it is slower."
_NO_MARK = " It does not say when it is unsure, so check its answers."


def scope_html(model: str | None, offered: Collection[str] = ()) -> str:
    """What may be asked of a model that comes with the app; nothing for others.

    Args:
        model: the name that the app shows.
        offered: the names that can be chosen, one of which may be better for what this model is not for.
    """
    if model not in _SCOPES:
        return ""
    marks = model not in EMBEDDED_MODELS or (assets_folder() / model / FILE_NAME).is_file()
    better = _BETTER if model == TINY_MODEL and OFFICE_MODEL in offered else ""
    return f'<div class="hint">{_SCOPES[model]}{better}{"" if marks else _NO_MARK}</div>'


@cache
def _figures() -> dict[str, Any]:
    return json.loads(FIGURES_PATH.read_text(encoding="utf-8"))["models"]


def model_html(model: str | None, *, remote: bool = False) -> str:
    """How often a model is right, and how long it takes in the dtype that this processor suits, as far as measured.

    Args:
        model: the name that the app shows.
        remote: a server has the model, which need not be the one of that name that was measured.
    """
    found = None if remote else _figures().get(model)
    if found is None:
        return f'<div class="policy-line">Accuracy and speed: {NOT_MEASURED}.</div>'
    dtype = "bfloat16" if cpu_multiplies_bfloat16() else "float32"
    seconds = found["first_token_seconds"][dtype]
    packed = ", ".join(
        f"{policy} {one['anls']:.2f} ({one['bits_per_value']:.1f} bits)" for policy, one in found["packed"].items()
    )
    return (
        f'<div class="policy-line"><span class="measured">Ordinary documents: {found["anls"]:.2f} of 1 (ANLS); '
        f"voice memos: {found['memo_exact_match']:.0%} right. First token {seconds['1']:.1f} s after a page, "
        f"{seconds['4']:.1f} s after four.</span> <small>Full precision; documents with {packed} of the whole cache. "
        f"{found['questions']} questions written without sight of the training data; seconds on two cores in "
        f"{dtype}, policy {found['policy']}.</small></div>"
    )


def has_policy_figures(model: str | None) -> bool:
    """Whether the bits and right answers of presets (:mod:`kvmm.policy.costs`) are shown beside a model. They were
    measured with one of those that come along, which is named where they stand."""
    return model in EMBEDDED_MODELS


__all__ = ["FIGURES_PATH", "NOT_MEASURED", "has_policy_figures", "model_html", "scope_html"]
