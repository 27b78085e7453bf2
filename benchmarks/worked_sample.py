"""Measure what the app's analysis tabs show before something was asked, on a bundled page with tiny-omni.

python -m benchmarks.worked_sample     # writes kvmm/ui/worked_sample.safetensors
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kvmm.analysis import compare_methods, measure_errors, measure_scores, record_norms
from kvmm.media import load_media
from kvmm.models import Conversation, load_model
from kvmm.models.loading import TINY_MODEL
from kvmm.policy.presets import PRESETS
from kvmm.samples import SAMPLES, load_samples
from kvmm.ui.worked import PATH, WorkedSample, write

POLICY = "balanced"


def load() -> tuple[Any, Any]:
    """The model and its processor, in the dtype whose norms are alike on all machines."""
    return load_model(TINY_MODEL, device="cpu", dtype=torch.float32)


def measure(model: Any, processor: Any, policies: list[str] | None = None) -> WorkedSample:
    """The first sample that is a picture, measured under ``policies``; None for all presets."""
    sample = next(sample for sample in load_samples(SAMPLES) if sample.kind == "image")
    (path,) = sample.files
    conversation = Conversation(model, processor, POLICY)
    *_, _last = conversation.ask(sample.question, load_media(path), max_new_tokens=64)
    inputs = conversation.prompt_inputs()
    tokenizer = getattr(processor, "tokenizer", processor)
    methods = compare_methods(model, processor, inputs, list(PRESETS) if policies is None else policies)
    methods = replace(methods, rows=tuple(replace(row, by_component=None) for row in methods.rows))
    return WorkedSample(
        command="python -m benchmarks.worked_sample",
        model=TINY_MODEL,
        file=path.name,
        question=sample.question,
        answer=methods.answer,
        norms=record_norms(model, inputs, tokenizer=tokenizer, attention=True),
        errors=measure_errors(model, inputs, [POLICY]),
        scores=measure_scores(model, inputs, [POLICY]),
        methods=methods,
        grids=tuple(tuple(row) for row in inputs["image_grid_thw"].tolist()),
        merge=int(processor.image_processor.merge_size),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=PATH)
    parser.add_argument("--policies", nargs="+", help="of the methods; default: all presets")
    options = parser.parse_args()
    sample = measure(*load(), options.policies)
    write(sample, options.output)
    print(f"{options.output}: {options.output.stat().st_size / 1024:.0f} KiB, {len(sample.methods.rows)} methods")


if __name__ == "__main__":
    main()
