"""What drafts from the text itself gain over one token a step, over packed pages.

    python -m benchmarks.speculative [--model FOLDER] [--policies bf16 balanced small] [--rounds 3]

Each sample page is asked "What does it say?" twice in one conversation; the second answer is generated one token a step
and with prompt lookup, over a cache that was packed behind the first. Both must have the same tokens. A row of a policy
has the acceptance (the share of drafted tokens that were right), the calls of the model, and the seconds of both ways,
which take turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.report import Report, add_common_options
from kvmm.media import load_image
from kvmm.models import load_model
from kvmm.models.documents import Document, answer_tokens
from kvmm.models.prompting import encode_messages
from kvmm.models.speculative import PromptLookup, Speculation, generate_with_drafts
from kvmm.samples import SAMPLES

PAGES = ("invoice.png", "receipt.png", "table.png", "letter.png", "form.png")
QUESTION = "What does it say?"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder; default is the embedded model")
    parser.add_argument("--policies", nargs="+", default=["bf16", "balanced", "small"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    add_common_options(parser, "speculative")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    pages = PAGES
    if options.smoke:
        options.policies, options.rounds, options.new_tokens, pages = options.policies[:1], 1, 12, PAGES[:1]
    report = Report("speculative", given, options)
    model, processor = load_model(options.model, device=options.device, dtype=options.dtype)
    prompts = [_asked_twice(model, processor, page, options.new_tokens) for page in pages]
    for policy in options.policies:
        rows = [_compare(model, document, inputs, policy, options) for document, inputs in prompts]
        total = Speculation([], *(sum(row[name] for row in rows) for name in ("calls", "drafted", "accepted")))
        plain, drafted = (sum(row[name] for row in rows) for name in ("plain_seconds", "seconds"))
        row = {
            "name": policy,
            "tokens": sum(row["tokens"] for row in rows),
            "calls": total.calls,
            "drafted": total.drafted,
            "acceptance": total.acceptance,
            "equal": all(row["equal"] for row in rows),
            "plain_seconds": plain,
            "seconds": drafted,
            "speedup": plain / drafted,
        }
        report.add(row)
    report.finish()


def _asked_twice(model: Any, processor: Any, page: str, new_tokens: int) -> tuple[Document, dict[str, torch.Tensor]]:
    """The inputs of the second question, and the document of all that comes before it."""
    picture = load_image(SAMPLES / page)
    asked = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}
    inputs = encode_messages(model, processor, [asked], [picture])
    tokens = answer_tokens(model, inputs, Document(model, inputs).cache("dynamic"), new_tokens)
    text = processor.tokenizer.decode(tokens, skip_special_tokens=True)
    messages = [asked, {"role": "assistant", "content": [{"type": "text", "text": text}]}]
    messages.append({"role": "user", "content": [{"type": "text", "text": QUESTION}]})
    again = encode_messages(model, processor, messages, [picture])
    return Document(model, again, again["input_ids"].shape[1] - 8), again


def _compare(model: Any, document: Document, inputs: Any, policy: str, options: argparse.Namespace) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"plain": [], "drafted": []}
    found: dict[str, Speculation] = {}
    for _ in range(options.rounds):
        for name, drafter in (("plain", PromptLookup(count=0)), ("drafted", PromptLookup())):
            cache = document.cache(policy)
            begin = time.perf_counter()
            found[name] = generate_with_drafts(model, inputs, cache, options.new_tokens, drafter)
            seconds[name].append(time.perf_counter() - begin)
    drafted = found["drafted"]
    return {
        "tokens": len(drafted.tokens),
        "calls": drafted.calls,
        "drafted": drafted.drafted,
        "accepted": drafted.accepted,
        "equal": drafted.tokens == found["plain"].tokens,
        "plain_seconds": statistics.median(seconds["plain"]),
        "seconds": statistics.median(seconds["drafted"]),
    }


if __name__ == "__main__":
    main()
