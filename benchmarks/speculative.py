"""What drafts gain over one token a step: acceptance, and the time of the same answer without them.

    python -m benchmarks.speculative [--policies balanced bf16] [--rounds 3]
    python -m benchmarks.speculative --model SmolLM2-135M-Instruct --text benchmarks/texts/jargon.txt --draft-layers 24

tiny-omni is asked about the sample pages, a model without eyes about the first ``--text-tokens`` tokens of a
text: to copy it, which prompt lookup foresees once it has found the place, and a question that it answers in words of
its own. ``--draft-layers N`` adds a draft model: the model itself with ``N`` of its layers, evenly spaced, untrained as
such, since there is no smaller model of the same vocabulary to be had everywhere.

The prompt is read and packed before the clock starts. ``ratio`` is tokens per second against the faster of two ways to
take one token a step, ``generate()`` and the loop of drafts without a drafter. Medians over ``--rounds``, in which all
ways take turns. ``equal``: the tokens are those without drafts.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.ask_policies import ROOT
from benchmarks.report import Report, add_common_options, table
from kvmm.media import load_media
from kvmm.models import load_model
from kvmm.models.documents import Document, answer_tokens
from kvmm.models.loading import TINY_MODEL
from kvmm.models.prompting import encode_question
from kvmm.models.speculative import Drafter, DraftModel, PromptLookup, Speculation, generate_with_drafts
from kvmm.samples import SAMPLES

PAGES = ("letter.png", "table.png")
PAGE_QUESTIONS = {"copy": "Copy the text.", "answer": "What is the total?"}
TEXT_QUESTIONS = {
    "copy": "Copy the text above word for word.",
    "answer": "What is the text above about? Answer in a few sentences.",
}
TEXT = ROOT / "benchmarks" / "texts" / "jargon.txt"
NOTHING = PromptLookup(count=0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder, hub id or packaged model; default: tiny-omni")
    parser.add_argument("--text", type=Path, default=TEXT, help="what a model without eyes is asked about")
    parser.add_argument("--text-tokens", type=int, default=600)
    parser.add_argument("--draft-layers", type=int, help="also draft with so many layers of a text-only model")
    parser.add_argument("--policies", nargs="+", default=["balanced", "bf16"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    add_common_options(parser, "speculative")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if options.smoke:
        options.rounds, options.new_tokens, options.text_tokens = 1, 12, 100
    torch.set_num_threads(options.threads)
    report = Report("speculative", given, options)
    model, processor = load_model(options.model or TINY_MODEL, device=options.device, dtype=options.dtype)
    drafters: dict[str, Drafter] = {"lookup": PromptLookup()}
    if options.draft_layers:
        drafters[f"{options.draft_layers} layers"] = DraftModel(shallow(model, options.draft_layers))
    for task, inputs in _prompts(model, processor, options).items():
        document = Document(model, inputs, inputs["input_ids"].shape[1] - 1)
        for policy in options.policies:
            for row in measure(model, inputs, document, policy, drafters, options):
                name = " ".join((options.model or "embedded", task, policy, row["drafter"]))
                report.add({"name": name, "task": task, "policy": policy, **row})
    columns = ("tokens", "equal", "calls", "acceptance", "per_second", "plain_per_second", "ratio")
    table(("answer", *columns), [[row["name"], *(row.get(name) for name in columns)] for row in report.rows])
    report.finish()


def measure(
    model: Any,
    inputs: dict[str, torch.Tensor],
    document: Document,
    policy: str,
    drafters: dict[str, Drafter],
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """A row for each drafter: one prompt under one policy."""
    count = options.new_tokens
    ways: dict[str, Callable[[Any], Speculation]] = {
        "generate": lambda cache: Speculation(answer_tokens(model, inputs, cache, count).tolist()),
        "steps": lambda cache: generate_with_drafts(model, inputs, cache, count, NOTHING),
    }
    for name, drafter in drafters.items():
        ways[name] = lambda cache, drafter=drafter: generate_with_drafts(model, inputs, cache, count, drafter)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, Speculation] = {}
    for warm in (True, *[False] * options.rounds):
        for name, way in ways.items():
            cache = document.cache(policy)
            begin = time.perf_counter()
            found[name] = way(cache)
            if not warm:
                rates[name].append(len(found[name].tokens) / (time.perf_counter() - begin))
    rate = {name: statistics.median(values) for name, values in rates.items()}
    plain = max(rate["generate"], rate["steps"])
    return [
        {
            "drafter": name,
            "tokens": len(found[name].tokens),
            "equal": found[name].tokens == found["steps"].tokens == found["generate"].tokens,
            **found[name].to_dict(),
            "per_second": rate[name],
            "plain_per_second": plain,
            "ratio": rate[name] / plain,
            "rounds": rates[name],
        }
        for name in drafters
    ]


def shallow(model: Any, count: int) -> Any:
    """A text-only model with ``count`` of its layers, evenly spaced, the first and the last among them."""
    layers = model.model.layers
    if not 2 <= count <= len(layers):
        raise SystemExit(f"--draft-layers must be 2 to {len(layers)}, which the model has.")
    chosen = [round(i * (len(layers) - 1) / (count - 1)) for i in range(count)]
    small = copy.deepcopy(model)
    small.model.layers = torch.nn.ModuleList(small.model.layers[i] for i in chosen)
    for i, layer in enumerate(small.model.layers):
        layer.self_attn.layer_idx = i  # its place in the cache
    small.config.num_hidden_layers = count
    if getattr(small.config, "layer_types", None):
        small.config.layer_types = [small.config.layer_types[i] for i in chosen]
    return small


def _prompts(model: Any, processor: Any, options: argparse.Namespace) -> dict[str, dict[str, torch.Tensor]]:
    """The inputs of every task."""
    if hasattr(processor, "image_processor"):
        pages = {name.partition(".")[0]: load_media(SAMPLES / name)[0].data for name in PAGES}
        return {
            f"{task} {page}": encode_question(model, processor, question, [image])
            for page, image in pages.items()
            for task, question in PAGE_QUESTIONS.items()
        }
    ids = processor(options.text.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
    text = processor.decode(ids[: options.text_tokens])
    return {
        task: encode_question(model, processor, f"{text}\n\n{question}") for task, question in TEXT_QUESTIONS.items()
    }


if __name__ == "__main__":
    main()
