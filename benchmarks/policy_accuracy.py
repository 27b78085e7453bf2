"""How many questions each cache policy answers, and what its cache then holds.

    python -m benchmarks.policy_accuracy --data questions.jsonl [--model FOLDER_OR_ID] [--policies small balanced]
        [--pack-before-question] [--limit N] [--output FILE.json]

Every line of the data is ``{"images": [path, ...], "audio": path or null, "question": str, "answers": [str, ...]}``,
paths relative to the file. ``dynamic`` (transformers' DynamicCache) is always run first: ``kept_exact`` is the share of
the questions it answers that a policy answers too.

With ``--pack-before-question`` the media are read and packed once, and each question is then asked of the packed cache:
the harder order, in which the prompt that contains the question cannot look at exact keys. Without it, prompts are read
exactly and packed at the first decode step.

Bits are measured: bytes of all tensors over the keys and values held, for all tokens, and for media tokens with
and without their share of sinks, residual and tables; means over the questions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from kvmm import get_policy, policies
from kvmm.eval.asking import DYNAMIC, Asker, measured_bits
from kvmm.eval.metrics import anls, exact_match
from kvmm.models import load_model


@torch.no_grad()
def measure(asker: Asker, lines: list[dict], folder: Path, policy: str, before: bool) -> dict[str, Any]:
    """Ask every question under one policy; returns its scores, bits, seconds and answers."""
    answers, scores, exact, bits = [], [], [], []
    begin = time.perf_counter()
    for line in lines:
        document = (*line["images"], line.get("audio"))
        text, cache = asker.answer(asker.encode(line, folder), policy, document, before)
        answers.append(text)
        scores.append(anls(text, line["answers"]))
        exact.append(exact_match(text, line["answers"]))
        bits.append(measured_bits(cache))
    result: dict[str, Any] = {
        "policy": policy,
        "questions": len(lines),
        "anls": statistics.fmean(scores),
        "exact_match": statistics.fmean(exact),
        "seconds": time.perf_counter() - begin,
    }
    for name in ("bits", "media_bits", "media_packed_bits"):
        if found := [b[name] for b in bits if name in b]:
            result[name] = statistics.fmean(found)
    return result | {"exact": exact, "answers": answers}


def main(arguments: list[str] | None = None) -> None:
    """Command line; prints one line a policy and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="folder or hub id; default: the embedded model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--policies", nargs="+", default=list(policies()))
    parser.add_argument("--pack-before-question", action="store_true")
    parser.add_argument("--limit", type=int, default=None, help="ask only the first N questions")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args(arguments)

    for policy in options.policies:
        get_policy(policy)
    lines = [json.loads(line) for line in options.data.read_text().splitlines() if line.strip()][: options.limit]
    model, processor = load_model(options.model, dtype=options.dtype)
    asker = Asker(model, processor, options.max_new_tokens)
    results = []
    for policy in [DYNAMIC, *options.policies]:
        result = measure(asker, lines, options.data.parent, policy, options.pack_before_question)
        reference = results[0]["exact"] if results else result["exact"]
        kept = [mine for mine, right in zip(result["exact"], reference, strict=True) if right]
        result["kept_exact"] = statistics.fmean(kept) if kept else 0.0
        results.append(result)
        print(
            f"{policy:18} ANLS {result['anls']:.3f}  EM {result['exact_match']:.3f}  kept {result['kept_exact']:.3f}  "
            f"bits {result.get('bits', 16):5.2f}  media {result.get('media_packed_bits', 16):5.2f}  "
            f"{result['seconds']:.0f} s",
            flush=True,
        )
    if options.output:
        report = {
            "model": options.model or "embedded",
            "data": options.data.name,
            "pack_before_question": options.pack_before_question,
            "versions": {name: version(name) for name in ("torch", "transformers")},
            "results": results,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n")
        print(f"written: {options.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
