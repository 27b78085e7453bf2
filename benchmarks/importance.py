"""Whether the importance that a calibration takes on documents held out is the better one on others, too.

    python -m benchmarks.importance --model SmolLM2-135M-Instruct --dtype float32 \\
        --fit benchmarks/texts/persuasion.txt --limit 10 --on benchmarks/texts/jargon.txt benchmarks/texts/alice.txt

    python -m benchmarks.importance --append --fit tests/data/heldout/sample.jsonl

``rd`` is fitted to four fifths of the documents of ``--fit``, once with gradients of the predictions, once with queries
and output weights, as ``kvmm calibrate`` does to choose (:mod:`kvmm.calibration.choose`). Rows called ``held out``
have the KL of both on the other fifth, by which it chooses, ``others`` that on the files of ``--on``: of a text 1536
tokens are packed and the next 512 forced; of questions (JSON lines) the pages and recordings are packed, and question
and answer are read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Report, add_common_options, table
from kvmm.analysis.drift.prompts import read_lines, shortened
from kvmm.calibration.choose import MEASURED, ImportanceChoice, held_out
from kvmm.calibration.collect import Collector
from kvmm.calibration.fit import (
    Example,
    document_of,
    examples_of_lines,
    examples_of_text,
    read_prompts,
)
from kvmm.models import load_model
from kvmm.models.forced_text import ForcedText
from kvmm.models.loading import TINY_MODEL


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder, hub id or packaged model; default: tiny-omni")
    parser.add_argument("--dtype")
    parser.add_argument("--fit", type=Path, required=True, help="text or questions, as for kvmm calibrate --data")
    parser.add_argument("--limit", type=int, help="so many examples of --fit, spread over it")
    parser.add_argument("--on", type=Path, nargs="*", default=[], help="other texts or questions")
    parser.add_argument("--most", type=int, help="so many examples of each file of --on, spread over it")
    parser.add_argument("--policies", nargs="+", default=list(MEASURED), help="presets")
    add_common_options(parser, "importance")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    if options.smoke:
        options.limit, options.most, options.policies = 5, 1, options.policies[:1]
    report = Report("importance", given, options)
    model, processor = load_model(options.model or TINY_MODEL, device=options.device, dtype=options.dtype)
    examples = shortened(examples_of(processor, options.fit), options.limit)
    others = [one for path in options.on for one in shortened(examples_of(processor, path), options.most)]
    with ImportanceChoice(model, options.policies) as choice:
        for kind, count, kl in measured(model, processor, choice, examples, others, options.seed):
            name = f"{options.model or 'embedded'}, {kind}"
            report.add({"name": name, "prompts": count, "kl": kl})
    lines = [(f"{row['name']}: {name}", *kl.values()) for row in report.rows for name, kl in row["kl"].items()]
    table(("documents", *options.policies), lines)
    report.finish()


def measured(
    model: Any,
    processor: Any,
    choice: ImportanceChoice,
    examples: Sequence[Example],
    others: Sequence[Example],
    seed: int,
) -> Iterator[tuple[str, int, dict[str, dict[str, float]]]]:
    """Fit to most of the examples; measure on those held out, then on others: the kind, prompts and KL by importance
    and policy."""
    last = held_out([document_of(example) for example in examples])
    collector = Collector(model, seed=seed)
    for _, (inputs, answer, document) in read_prompts(
        model, processor, [example for at, example in enumerate(examples) if at not in last]
    ):
        if len(answer) > 1:
            collector.add(inputs, answer, document)
    choice.fit(collector.samples())
    for kind, chosen in (("held out", [examples[at] for at in last]), *([("others", others)] if others else [])):
        sums, positions, count = dict.fromkeys(choice.policies, 0.0), 0, 0
        for _, (inputs, answer, document) in read_prompts(model, processor, chosen):
            if len(answer) > 1:
                text = ForcedText(document, inputs, answer[None])
                sums = {key: sums[key] + total for key, total in choice.measure(text).items()}
                positions, count = positions + text.count, count + 1
        kl: dict[str, dict[str, float]] = {}
        for (importance, name), total in sums.items():
            kl.setdefault(importance, {})[name] = total / positions
        yield kind, count, kl


def examples_of(processor: Any, path: Path) -> list[Example]:
    """Examples of a file of questions or a text."""
    if path.suffix == ".jsonl":
        return examples_of_lines(read_lines(path))
    return examples_of_text(processor, path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
