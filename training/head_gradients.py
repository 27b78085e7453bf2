"""Gradients of auxiliary heads that start from nothing on trained towers, beside those of answers.

    python -m training.head_gradients --base assets/office-omni --out training/results/head_gradients.json

A model that is trained on from its shipped weights has towers that read, and heads that know nothing. Where their
gradients are the larger ones, they lead: the optimiser of a tower's matrices (`training.optim`) goes as far whatever a
gradient's size. `training.train` lets new heads learn for `--head-updates` before they teach.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.augment import render_media
from training.base import Base
from training.evaluate import file_hash
from training.finish import WEIGHTS
from training.loader import index_step, spec_group, to_device
from training.model import OmniModel
from training.office_dataset import SPECS, OfficeSpec, make_step

TOWERS = {"page": "visual", "audio": "audio_tower"}  # of a group of specs


def smallest(group: str) -> OfficeSpec:
    """The spec of a group whose steps are computed first on a CPU."""
    return min((spec for spec, _ in SPECS if spec_group(spec) == group), key=lambda spec: spec.seq_len)


def gradients(model: OmniModel, spec: OfficeSpec, seed: int) -> tuple[Tensor, Tensor]:
    """Gradients float32 `[parameters]` of the loss of answers and of the auxiliary one, for the tower that a step of
    `spec` reads with, of the parameters that both reach.
    """
    batch = to_device(index_step(make_step(seed, spec)), torch.device("cpu"))
    inputs = render_media(batch, training=False)
    losses = model(inputs, inputs.get("pages"), inputs.get("mel"))
    tower: nn.Module = getattr(model, TOWERS[spec_group(spec)])
    weights = list(tower.parameters())
    found = [
        torch.autograd.grad(losses[name], weights, retain_graph=name == "loss", allow_unused=True)
        for name in ("loss", "aux")
    ]
    both = [(a, b) for a, b in zip(*found, strict=True) if a is not None and b is not None]
    answers, heads = (torch.cat([g.flatten() for g in part]) for part in zip(*both, strict=True))
    return answers, heads


def compare(model: OmniModel, spec: OfficeSpec, seeds: int, weight: float) -> dict[str, float | int]:
    """Medians over seeds: how many times as large the auxiliary gradient is, times its weight, and their cosine."""
    ratios, cosines = [], []
    for seed in range(seeds):
        answers, heads = gradients(model, spec, seed)
        ratios.append(float(weight * heads.norm() / answers.norm()))
        cosines.append(float(F.cosine_similarity(answers, heads, 0)))
        print(f"{TOWERS[spec_group(spec)]}: {ratios[-1]:.2f} times, cosine {cosines[-1]:.3f}", flush=True)
    return {
        "sequences": spec.sequences, "steps": seeds,
        "times": round(statistics.median(ratios), 2), "cosine": round(statistics.median(cosines), 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.head_gradients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--base", type=Path, required=True, help="folder of packed weights")
    add("--sequences", type=int, default=4, help="of a step (default 4)")
    add("--steps", type=int, default=5, help="steps of either tower (default 5)")
    add("--aux-weight", type=float, default=0.6, help="as for training.train (default 0.6)")
    add("--out", type=Path, required=True, help="JSON file")
    args = parser.parse_args()
    base = Base(args.base)  # before any page is made: it chooses the tokenizer
    if not base.has_weights:
        parser.error(f"{args.base} has no {WEIGHTS[0]}")
    torch.manual_seed(0)
    model = OmniModel(base.config)
    base.start(model, teach=False)
    found = {
        TOWERS[group]: compare(model, replace(smallest(group), sequences=args.sequences), args.steps, args.aux_weight)
        for group in TOWERS
    }
    report = {
        "what": "gradients of new auxiliary heads in a trained tower, times their weight, relative to those of "
        "answers; medians over steps",
        "command": f"python -m training.head_gradients --base {args.base} --sequences {args.sequences} "
        f"--steps {args.steps} --aux-weight {args.aux_weight}",
        "model_sha256": file_hash(args.base / WEIGHTS[0]),
        "dtype": "float32",
        "torch": torch.__version__,
        "towers": found,
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
