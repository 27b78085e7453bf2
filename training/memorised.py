"""How far answers about written-out documents rest on having met these: documents of training beside held-out ones.

    python -m training.memorised --model FOLDER --out training/results/memorised.json

The text tower reads the documents as texts, so nothing depends on the vision tower. Blanks are drawn anew for both, and
questions come in wordings kept for evaluation, so what differs is whether training had the document. Answers are
teacher-forced: a branch is exact if every token of it is the most likely one. A gap says that more documents would
help, a low share of those of training that more training would.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvmm.models.loading import cpu_multiplies_bfloat16
from training.base import Base
from training.evaluate import file_hash
from training.finish import WEIGHTS
from training.loader import index_step
from training.measures import Figures
from training.model import OmniModel
from training.office.pages import own_questions
from training.office.passages import WRITTEN
from training.office_dataset import SPECS, make_tokens, text_page
from training.pages import Rng

TOGETHER = 6  # sequences of a forward pass


def measure(model: OmniModel, sequences: int, held: bool, seed: int) -> dict[str, Any]:
    """Mean loss and accuracy of answer tokens and the share of exact branches, of documents held out or not."""
    spec = next(spec for spec, _ in SPECS if spec.name == "text")
    r, figures = Rng(seed), Figures()
    for begin in range(0, sequences, TOGETHER):
        count = min(TOGETHER, sequences - begin)
        pages = [own_questions(text_page(r, spec, held, WRITTEN)) for _ in range(count)]
        step = index_step(make_tokens(r, replace(spec, sequences=count), pages, held=True), branches=True)
        batch = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in step.items()}
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=cpu_multiplies_bfloat16()):
            out = model(batch, None, None)
        figures.add(WRITTEN, out, batch["target_weight"], batch["target_branch"])
    found = figures.describe()[WRITTEN]
    return {"loss": found["answer"], **{name: found[name] for name in ("accuracy", "exact", "branches")}}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.memorised", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="folder of training.export, or of training.smollm2")
    add("--sequences", type=int, default=48, help="documents of either sort (default 48)")
    add("--seed", type=int, default=0)
    add("--out", type=Path, required=True, help="JSON file")
    args = parser.parse_args()
    base = Base(args.model)  # before any document is made: it chooses the tokenizer
    if not base.has_weights:
        parser.error(f"{args.model} has no {WEIGHTS[0]}")
    model = OmniModel(base.config).eval()
    base.start(model, teach=False)
    found = {name: measure(model, args.sequences, held, args.seed) for name, held in (("met", False), ("held", True))}
    report = {
        "what": "answers about documents of training (met; with fresh blanks) and held-out ones, read as texts",
        "command": f"python -m training.memorised --model {args.model} --sequences {args.sequences} --seed {args.seed}",
        "model_sha256": file_hash(args.model / WEIGHTS[0]),
        "dtype": "bfloat16" if cpu_multiplies_bfloat16() else "float32",
        "torch": torch.__version__,
        "documents": found,
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for name, figures in found.items():
        print(name, figures)


if __name__ == "__main__":
    main()
